//! Inline `csi` volumes of pods: published at once, without claim, attachment or staging.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::super::error::{Error, Result};
use super::super::plugin::{Ready, SetUp, VolumePlugin};
use super::identity::{VolumeId, inline_handle};
use super::publish::{Driver, Publication};
use super::request::Form;

pub struct InlinePlugin;

#[async_trait]
impl VolumePlugin for InlinePlugin {
    fn name(&self) -> &'static str {
        "csi"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.csi.is_some()
    }

    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready> {
        let Some(source) = &task.volume.csi else {
            return Err(Error::failed("kubernetes.io/csi: volume source not found in volume.Spec"));
        };
        let csi = &task.host.csi;
        let pod_uid = task.pod.metadata.uid.as_deref().unwrap_or("");
        // Registered before the check, so that no registration of a driver is missed in between.
        csi.wait(pod_uid);
        let client = csi.drivers().client(&source.driver).map_err(|e| {
            Error::failed(format!("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: {e}"))
        })?;
        let policy = csi.policy(&source.driver).await?;
        policy.check_mode(&source.driver, "Ephemeral").map_err(|e| {
            Error::failed(format!(
                "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: {e}"
            ))
        })?;
        if task.again && !policy.requires_republish {
            return Ok(Ready::at(&task.dir.join("mount")));
        }
        let volume = VolumeId::new(&source.driver, &inline_handle(pod_uid, &task.volume.name));
        if !volume.is_safe() {
            return Err(Error::failed("driver name is empty"));
        }
        let _alone = csi.alone_with(&volume).await;
        let can = client.capabilities().await.map_err(|error| {
            Error::failed(format!(
                "kubernetes.io/csi: mounter.SetUpAt failed to determine if the node service has \
                 VOLUME_MOUNT_GROUP capability: {error}"
            ))
        })?;
        let secret = source.node_publish_secret_ref.as_ref();
        let publication = Publication {
            volume,
            spec_name: task.volume.name.clone(),
            ephemeral: true,
            read_only: source.read_only == Some(true),
            form: Form { fs_type: source.fs_type.clone().unwrap_or_default(), ..Form::default() },
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            publish_context: Default::default(),
            secret: secret.map(|s| (task.namespace().to_owned(), s.name.clone())),
            staged: None,
        };
        let driver = Driver { client: &client, can: &can, policy: &policy };
        let target = csi.publish(task, &driver, publication).await?;
        let mut ready = Ready::at(&target);
        ready.volume.read_only = source.read_only == Some(true);
        ready.renew_after = policy.requires_republish.then_some(super::RENEW);
        Ok(ready)
    }
}
