//! The interface between pod workers and volumes; `crate::volumes` implements it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;

/// A volume that is ready to be mounted into containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountedVolume {
    /// The folder (or, for a hostPath, file, socket or device) on the host.
    pub host_path: PathBuf,
    /// Whether the volume cannot be written, whatever the mount sets (configMap, secret, projected, downwardAPI).
    pub read_only: bool,
    /// The id of the image of an image volume, once it is pulled. Such a volume has no `host_path`.
    pub image: Option<String>,
}

/// Mounted volumes by the volume's name in the pod.
pub type MountedVolumes = BTreeMap<String, MountedVolume>;

/// Text for the FailedMount event, such as
/// `MountVolume.SetUp failed for volume "config" : configmap "web" not found`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct VolumeError {
    pub message: String,
    /// Whether no event is needed, as the volume is expected to become ready.
    pub quiet: bool,
}

impl VolumeError {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), quiet: false }
    }

    pub fn quiet(message: impl Into<String>) -> Self {
        Self { message: message.into(), quiet: true }
    }
}

/// The capacity and the used amount of something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    pub available: u64,
    pub capacity: u64,
    pub used: u64,
}

/// The usage of a pod's volume behind a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The volume's name in the pod.
    pub volume: String,
    /// The claim's name, in the pod's namespace.
    pub claim: String,
    pub bytes: Room,
    pub inodes: Room,
}

/// Mounts and unmounts volumes. All calls are idempotent, also across restarts of the server.
#[async_trait]
pub trait Volumes: Send + Sync + 'static {
    /// Mounts all volumes of the pod below its folder ([`crate::config::PodDirs::volume_dir`]) and sets their
    /// ownership (fsGroup). Called before containers are started and at every later sync of the pod, where it
    /// refreshes changed content (configMap, secret, tokens that expire soon). Must be quick if nothing has
    /// changed.
    async fn mount(&self, pod: &Pod) -> Result<MountedVolumes, VolumeError>;

    /// Unmounts and removes all volumes of the pod; its containers are gone. Succeeds if there is nothing to do.
    /// The caller removes the pod's folder afterwards, and does not cross file systems.
    async fn unmount(&self, pod_uid: &str) -> Result<(), VolumeError>;

    /// Returns metrics of the operations, as text for Prometheus.
    fn metrics(&self) -> String {
        String::new()
    }

    /// Returns the usage of the pod's volumes, as far as it is known.
    async fn usage(&self, _pod_uid: &str) -> Vec<VolumeUsage> {
        Vec::new()
    }
}
