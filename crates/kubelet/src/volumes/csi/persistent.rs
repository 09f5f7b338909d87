//! Persistent volumes of CSI drivers: attached, staged on the node, and published to the pod.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim, SecretReference,
};
use knarr_api::kind::Kind;

use super::super::error::{Error, Result};
use super::super::meter::Meter;
use super::super::plugin::{Ready, SetUp, blocking};
use super::identity::VolumeId;
use super::measure::Measured;
use super::publish::{Driver, Publication, make_dir};
use super::record::{self, Record};
use super::request::Form;
use super::{Csi, RENEW, lock};
use crate::csi::is_final;
use crate::csi::messages::NodeStageVolumeRequest;

/// A claim and its volume, for a pod.
pub(in crate::volumes) struct Claimed<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub volume: &'a PersistentVolume,
    pub source: &'a CSIPersistentVolumeSource,
    /// Whether the pod mounts the claim read-only.
    pub read_only: bool,
}

impl Claimed<'_> {
    pub fn id(&self) -> VolumeId {
        VolumeId::new(&self.source.driver, &self.source.volume_handle)
    }

    pub fn form(&self) -> Form {
        let spec = self.volume.spec.as_ref();
        Form {
            fs_type: self.source.fs_type.clone().unwrap_or_default(),
            mount_options: spec.and_then(|s| s.mount_options.clone()).unwrap_or_default(),
            access_modes: spec.and_then(|s| s.access_modes.clone()),
            block: false,
        }
    }

    /// Returns the error of a failed step, with the text of upstream's event.
    pub fn failed(&self, step: &str, text: impl std::fmt::Display) -> Error {
        Error::Whole(format!("MountVolume.{step} failed for volume {:?} : {text}", self.volume.name()))
    }
}

/// Returns the namespace and name of a secret.
pub(super) fn place(secret: Option<&SecretReference>) -> Option<(String, String)> {
    secret.map(|s| (s.namespace.clone().unwrap_or_default(), s.name.clone().unwrap_or_default()))
}

/// Makes the volume ready for the pod. Idempotent.
pub(in crate::volumes) async fn set_up(task: &SetUp<'_>, claimed: &Claimed<'_>) -> Result<Ready> {
    let csi = &task.host.csi;
    let (pod_uid, volume) = (task.pod.uid(), claimed.id());
    if !volume.is_safe() {
        return Err(claimed.failed("MountDevice", "kubernetes.io/csi: driver or volume handle is empty"));
    }
    let failed = |text: &str, error: &dyn std::fmt::Display| {
        claimed.failed("MountDevice", format!("kubernetes.io/csi: attacher.MountDevice {text}: {error}"))
    };
    let policy = csi.policy(&volume.driver).await?;
    csi.in_use.want(pod_uid, &volume);
    csi.publish_in_use();
    let publish_context = match policy.attach_required {
        true => csi.publish_context(pod_uid, claimed.volume, &volume).await?,
        false => BTreeMap::new(),
    };
    let _alone = csi.alone_with(&volume).await;
    csi.wait(pod_uid);
    let client = csi.drivers().client(&volume.driver);
    let client = client.map_err(|e| failed("failed to create newCsiDriverClient", &e))?;
    let can = client.capabilities().await.map_err(|e| claimed.failed("MountDevice", e))?;
    let driver = Driver { client: &client, can: &can, policy: &policy };
    let staged = csi.stage(task, claimed, &driver, &publish_context).await?;
    policy.check_mode(&volume.driver, "Persistent").map_err(|e| {
        let text = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode";
        claimed.failed("SetUp", format!("{text}: {e}"))
    })?;
    let target = if task.again && !policy.requires_republish {
        csi.dirs.volume_dir(pod_uid, "csi", claimed.volume.name()).join("mount")
    } else {
        let publication = Publication {
            volume: volume.clone(),
            spec_name: claimed.volume.name().to_owned(),
            ephemeral: false,
            read_only: claimed.read_only,
            form: claimed.form(),
            attributes: claimed.source.volume_attributes.clone().unwrap_or_default(),
            publish_context,
            secret: place(claimed.source.node_publish_secret_ref.as_ref()),
            staged: staged.clone(),
        };
        csi.publish(task, &driver, publication).await.map_err(|e| claimed.failed("SetUp", e))?
    };
    csi.expand_if_due(task, claimed, &driver, &target, staged.as_deref()).await?;
    let mut ready = Ready::at(&target);
    ready.volume.read_only = claimed.read_only;
    ready.meter = can.volume_stats().then_some(Meter::Driver(Measured { volume, staged }));
    ready.renew_after = (policy.requires_republish || can.expand()).then_some(RENEW);
    Ok(ready)
}

impl Csi {
    /// Stages the volume on the node if the driver supports it; returns the staging path.
    async fn stage(
        &self,
        task: &SetUp<'_>,
        claimed: &Claimed<'_>,
        driver: &Driver<'_>,
        publish_context: &BTreeMap<String, String>,
    ) -> Result<Option<PathBuf>> {
        if !driver.can.stage_unstage() {
            return Ok(None);
        }
        let volume = claimed.id();
        let global = volume.global_mount(&self.dirs);
        if lock(&self.devices).contains(&volume) {
            return Ok(Some(global));
        }
        let secrets = match place(claimed.source.node_stage_secret_ref.as_ref()) {
            None => BTreeMap::new(),
            Some((namespace, name)) => self.secret(&namespace, &name).await.map_err(|e| {
                claimed.failed(
                    "MountDevice",
                    format!("fetching NodeStageSecretRef {namespace}/{name} failed: {e}"),
                )
            })?,
        };
        let group = task.fs_group().filter(|_| driver.can.mount_group());
        let request = NodeStageVolumeRequest {
            volume_id: volume.handle.clone(),
            publish_context: publish_context.clone(),
            staging_target_path: global.display().to_string(),
            volume_capability: Some(claimed.form().capability(driver.can, group)),
            secrets,
            volume_context: claimed.source.volume_attributes.clone().unwrap_or_default(),
        };
        let record =
            Record { volume: volume.clone(), spec_name: None, node_name: String::new(), ephemeral: false };
        let (folder, mount) = (volume.device_dir(&self.dirs), global.clone());
        let made = blocking(move || {
            make_dir(&mount)?;
            record.save(&folder)
        });
        made.await.map_err(|e| claimed.failed("MountDevice", e))?;
        self.in_use.stage(&volume);
        if let Err(error) = driver.client.stage(&request).await {
            if is_final(&error) {
                let mount = global.clone();
                if let Err(error) = blocking(move || record::remove(&mount)).await {
                    tracing::debug!(%error, "cannot clean up after a failed stage");
                }
                self.in_use.unstage(&volume);
            }
            return Err(claimed.failed("MountDevice", error));
        }
        lock(&self.devices).insert(volume);
        Ok(Some(global))
    }
}
