//! The embedded container runtime: images and their snapshots, pod sandboxes, container processes.

pub mod containers;
pub mod images;
