//! What a volume plugin is.

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
    /// The name of its folders, without `kubernetes.io~`.
    fn name(&self) -> &'static str;

    fn supports(&self, volume: &Volume) -> bool;

    /// Whether the content comes from the API, so that it has to be brought up to date while the pod runs.
    fn refreshes(&self) -> bool {
        false
    }

    /// Makes the volume ready. May be repeated, also after a restart of the server.
    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready>;
}

/// A volume of a pod that is to be made ready.
pub struct SetUp<'a> {
    pub(super) host: &'a Host,
    pub pod: &'a Pod,
    pub volume: &'a Volume,
    /// The volume's folder; it may not exist yet.
    pub dir: PathBuf,
    /// The pod has the volume already; it may need to be brought up to date.
    pub again: bool,
    /// What was written the last time, if that is known.
    pub(super) written: Option<Fingerprint>,
}

/// A volume that is ready.
#[derive(Debug, Clone, PartialEq)]
pub struct Ready {
    pub volume: MountedVolume,
    pub(super) written: Option<Fingerprint>,
    /// When its content has to be looked at again, whatever happens.
    pub renew_after: Option<Duration>,
    /// Who knows how full it is; only volumes behind claims are asked about.
    pub(super) meter: Option<Meter>,
}

impl Ready {
    pub fn at(host_path: &Path) -> Self {
        let volume = MountedVolume { host_path: host_path.to_owned(), read_only: false, image: None };
        Self { volume, written: None, renew_after: None, meter: None }
    }
}

impl SetUp<'_> {
    pub fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or("")
    }

    /// `fsGroup` of the pod.
    pub fn fs_group(&self) -> Option<u32> {
        let context = self.pod.spec.as_ref()?.security_context.as_ref()?;
        u32::try_from(context.fs_group?).ok()
    }

    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub fn change_on_root_mismatch(&self) -> bool {
        let context = self.pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
        context.and_then(|c| c.fs_group_change_policy.as_deref()) == Some("OnRootMismatch")
    }
}

/// Runs file system work away from the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::failed(format!("the work was given up: {error}"))),
    }
}
