//! PersistentVolumes and their claims: binding, and protection while in use.

pub mod binder;
pub mod class_protection;
pub mod expander;
mod matching;
mod migration;
pub mod protection;
mod recycler;
mod volumes;

pub use matching::class_of;
