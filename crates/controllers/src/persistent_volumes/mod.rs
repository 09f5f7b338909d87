//! PersistentVolumes and their claims: binding, and protection while in use.

pub mod binder;
mod matching;
pub mod protection;
