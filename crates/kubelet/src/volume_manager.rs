//! The boundary between pod workers and volumes; `crate::volumes` implements it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;

/// A volume that is ready to be mounted into containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountedVolume {
    /// The folder (or, for a hostPath, file, socket or device) on the host.
    pub host_path: PathBuf,
    /// The volume itself allows no writing, whatever the mount says (configMap, secret, projected, downwardAPI).
    pub read_only: bool,
    /// For an image volume: the image's id, once the image is there. It has no `host_path`.
    pub image: Option<String>,
}

/// By the volume's name in the pod.
pub type MountedVolumes = BTreeMap<String, MountedVolume>;

/// Text for the FailedMount event, such as
/// `MountVolume.SetUp failed for volume "config" : configmap "web" not found`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct VolumeError {
    pub message: String,
    /// Nothing is wrong yet; users need not be told.
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

/// How much there is of something, and how much of it is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    pub available: u64,
    pub capacity: u64,
    pub used: u64,
}

/// How full a pod's volume behind a claim is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The volume's name in the pod.
    pub volume: String,
    /// The claim's name, in the pod's namespace.
    pub claim: String,
    pub bytes: Room,
    pub inodes: Room,
}

/// Makes volumes ready and takes them away again. All calls may be repeated, also after a restart of the server.
#[async_trait]
pub trait Volumes: Send + Sync + 'static {
    /// Makes all volumes of the pod ready below its folder
    /// ([`crate::config::PodDirs::volume_dir`]) and sets their ownership (fsGroup). Called before containers are
    /// started and at every later sync of the pod, where it refreshes content that changed (configMap, secret,
    /// tokens near their end). Must be quick when nothing changed.
    async fn mount(&self, pod: &Pod) -> Result<MountedVolumes, VolumeError>;

    /// Takes down everything of the pod; its containers are gone. Fine if there is nothing. The pod's folder is
    /// removed afterwards by the caller, who refuses to cross file systems.
    async fn unmount(&self, pod_uid: &str) -> Result<(), VolumeError>;

    /// What has been counted of the work, as text for Prometheus.
    fn metrics(&self) -> String {
        String::new()
    }

    /// How full the pod's volumes are, as far as somebody knows.
    async fn usage(&self, _pod_uid: &str) -> Vec<VolumeUsage> {
        Vec::new()
    }
}
