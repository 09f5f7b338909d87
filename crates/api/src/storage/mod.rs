//! The `storage.k8s.io` group: kinds of storage, its drivers, and what they have and do on each node.

pub mod csidriver;
pub mod csinode;
pub mod csistoragecapacity;
pub mod parameters;
pub mod storageclass;
pub mod volumeattachment;
pub mod volumeattributesclass;
