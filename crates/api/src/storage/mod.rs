//! The `storage.k8s.io` group: storage classes, CSI drivers, their nodes and attachments.

pub mod csidriver;
pub mod csinode;
pub mod csistoragecapacity;
pub mod parameters;
pub mod storageclass;
pub mod volumeattachment;
pub mod volumeattributesclass;
