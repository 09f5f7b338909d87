//! Volume plugins: they turn each kind of volume into a folder on the host.
//!
//! `list::PLUGINS` lists the plugins, one file each. [`VolumeManager`] runs them for the pods of the node,
//! refreshes the content of configMap, secret, downwardAPI and projected volumes, and unmounts and removes volumes
//! again. [`ObjectSource`] watches only the ConfigMaps and Secrets that pods of this node refer to; environment
//! variables use it, too.

mod atomic_writer;
mod beneath;
mod config_map;
mod content;
pub mod csi;
mod downward_api;
mod empty_dir;
mod error;
pub mod field_ref;
mod host;
mod host_path;
mod image;
mod list;
mod manager;
mod meter;
pub mod mounts;
pub mod object_source;
mod operations;
mod ownership;
mod payload;
mod persistent_volume_claim;
mod plugin;
mod pod_certificates;
mod projected;
mod references;
mod secret;
pub mod subpath;
mod token;
mod trust_bundles;
mod usage;

#[cfg(test)]
mod tests;

pub use csi::Csi;
pub use error::Error;
pub use host::Options;
pub use manager::VolumeManager;
pub use object_source::{ObjectSource, SourceError};
pub use plugin::VolumePlugin;
