//! The embedded container runtime: images and their snapshots, pod sandboxes, container processes.

pub mod app_armor;
mod child;
pub mod containers;
pub mod images;
mod removal;

pub use removal::remove_folder;
