//! The list of all volume plugins, one line each.

use super::plugin::VolumePlugin;
use super::{
    config_map, csi, downward_api, empty_dir, host_path, image, persistent_volume_claim, projected, secret,
};

/// The plugins of all kinds of volumes.
pub const PLUGINS: &[&dyn VolumePlugin] = &[
    &config_map::ConfigMapPlugin,
    &csi::InlinePlugin,
    &downward_api::DownwardApiPlugin,
    &empty_dir::EmptyDirPlugin,
    &host_path::HostPathPlugin,
    &image::ImagePlugin,
    &persistent_volume_claim::PersistentVolumeClaimPlugin,
    &projected::ProjectedPlugin,
    &secret::SecretPlugin,
];
