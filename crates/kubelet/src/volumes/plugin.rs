//! The interface of volume plugins.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, Volume};

use super::error::{Error, Result};
use super::host::Host;
use super::meter::Meter;
use super::payload::Fingerprint;
use crate::volume_manager::MountedVolume;

/// One kind of volume.
#[async_trait]
pub trait VolumePlugin: Send + Sync {
    /// The name of its folders, without the prefix `kubernetes.io~`.
    fn name(&self) -> &'static str;

    fn supports(&self, volume: &Volume) -> bool;

    /// Returns whether the content comes from the API, and is refreshed while the pod runs.
    fn refreshes(&self) -> bool {
        false
    }

    /// Makes the volume ready. Idempotent, also across restarts of the server.
    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready>;
}

/// A volume of a pod that a plugin makes ready.
pub struct SetUp<'a> {
    pub(super) host: &'a Host,
    pub pod: &'a Pod,
    pub volume: &'a Volume,
    /// The volume's folder; it may not exist yet.
    pub dir: PathBuf,
    /// Whether the pod has the volume already, so that its content may need a refresh.
    pub again: bool,
    /// The fingerprint of the last written payload, if it is known.
    pub(super) written: Option<Fingerprint>,
}

/// A volume that is ready to be mounted.
#[derive(Debug, Clone, PartialEq)]
pub struct Ready {
    pub volume: MountedVolume,
    pub(super) written: Option<Fingerprint>,
    /// After which time the content is refreshed in any case.
    pub renew_after: Option<Duration>,
    /// How its usage is measured; used for volumes behind claims only.
    pub(super) meter: Option<Meter>,
}

impl Ready {
    /// A volume at this path, which is neither refreshed nor measured.
    pub fn at(host_path: &Path) -> Self {
        let volume = MountedVolume { host_path: host_path.to_owned(), read_only: false, image: None };
        Self { volume, written: None, renew_after: None, meter: None }
    }
}

impl SetUp<'_> {
    pub fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("")
    }

    /// Returns the pod's `fsGroup`.
    pub fn fs_group(&self) -> Option<u32> {
        let context = self.pod.spec.as_ref()?.security_context.as_ref()?;
        u32::try_from(context.fs_group?).ok()
    }

    /// Returns whether the pod has `fsGroupChangePolicy: OnRootMismatch`.
    pub fn change_on_root_mismatch(&self) -> bool {
        let context = self.pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        context.and_then(|c| c.fs_group_change_policy.as_deref()) == Some("OnRootMismatch")
    }
}

/// Runs file system work on a thread for blocking work.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::failed(format!("the work was given up: {error}"))),
    }
}
