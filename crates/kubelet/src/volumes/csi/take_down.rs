//! Removes CSI volumes from the pod, and from the node after the last pod has ended.

use std::path::Path;

use super::super::error::{Error, Result};
use super::super::plugin::blocking;
use super::identity::{VolumeId, csi_dir};
use super::record::{self, Record};
use super::{Csi, Operation, csi_plugin, lock};

impl Csi {
    /// Unpublishes all volumes of the pod that are recorded on disk, and unstages those that no other pod uses.
    pub async fn take_down(&self, pod_uid: &str) -> Result<()> {
        let folder = self.dirs.volumes_dir(pod_uid).join("kubernetes.io~csi");
        let looked = {
            let folder = folder.clone();
            blocking(move || Ok(record::below(&folder))).await?
        };
        let mut failures = Vec::new();
        for (folder, record) in looked {
            let plugin = csi_plugin(&record.volume.driver);
            let unpublished = self.unpublish(pod_uid, &folder, &record);
            if let Err(error) = self.operations.measured(&plugin, Operation::Unmount, unpublished).await {
                failures.push(error.to_string());
            }
        }
        if let Some(error) = Error::aggregate(failures) {
            return Err(error);
        }
        for volume in self.in_use.wanted_by(pod_uid) {
            self.unstage(pod_uid, &volume).await?;
        }
        self.in_use.forget(pod_uid);
        lock(&self.waiting).remove(pod_uid);
        self.publish_in_use();
        Ok(())
    }

    async fn unpublish(&self, pod_uid: &str, folder: &Path, record: &Record) -> Result<()> {
        let _alone = self.alone_with(&record.volume).await;
        self.wait(pod_uid);
        let client = self.drivers().client(&record.volume.driver).map_err(|e| {
            Error::failed(format!("kubernetes.io/csi: Unmounter.TearDownAt failed to get CSI client: {e}"))
        })?;
        let target = folder.join("mount");
        let unpublished = client.unpublish(&record.volume.handle, &target.display().to_string()).await;
        unpublished
            .map_err(|e| Error::failed(format!("kubernetes.io/csi: Unmounter.TearDownAt failed: {e}")))?;
        blocking(move || record::remove(&target)).await
    }

    /// Unstages the volume, unless another pod needs it or it was never staged.
    async fn unstage(&self, pod_uid: &str, volume: &VolumeId) -> Result<()> {
        let _alone = self.alone_with(volume).await;
        let folder = volume.device_dir(&self.dirs);
        if self.in_use.is_wanted_by_others(pod_uid, volume) || Record::load(&folder)?.is_none() {
            return Ok(());
        }
        let plugin = csi_plugin(&volume.driver);
        self.operations.measured(&plugin, Operation::UnmountDevice, self.unstage_alone(pod_uid, volume)).await
    }

    /// Unstages a volume that no other pod needs; the caller holds the volume's lock.
    async fn unstage_alone(&self, pod_uid: &str, volume: &VolumeId) -> Result<()> {
        self.wait(pod_uid);
        let failed = |text: &str, error: &dyn std::fmt::Display| {
            Error::failed(format!("kubernetes.io/csi: attacher.UnmountDevice {text}: {error}"))
        };
        let client = self.drivers().client(&volume.driver);
        let client = client.map_err(|e| failed("failed to create newCsiDriverClient", &e))?;
        let can = client.capabilities().await;
        let can = can.map_err(|e| failed("failed to check whether STAGE_UNSTAGE_VOLUME set", &e))?;
        let global = volume.global_mount(&self.dirs);
        lock(&self.devices).remove(volume);
        if can.stage_unstage() {
            let unstaged = client.unstage(&volume.handle, &global.display().to_string()).await;
            unstaged.map_err(|e| failed("failed", &e))?;
        }
        blocking(move || record::remove(&global)).await?;
        self.in_use.unstage(volume);
        Ok(())
    }

    /// Unstages the driver's volumes that no pod on this node needs, as a crash between two steps may leave them.
    pub(super) async fn unstage_unused(&self, driver: &str) {
        let folder = csi_dir(&self.dirs).join(driver);
        let looked = blocking(move || Ok(record::below(&folder))).await.unwrap_or_default();
        for (_, record) in looked {
            if !self.in_use.is_wanted_by_others("", &record.volume)
                && let Err(error) = self.unstage("", &record.volume).await
            {
                tracing::warn!(driver, volume = record.volume.handle, %error, "cannot unstage an unused volume");
            }
        }
        self.publish_in_use();
    }
}
