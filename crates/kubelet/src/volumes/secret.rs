//! `secret` volumes: the keys of a Secret as files, in memory.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Secret, Volume};

use super::content::{self, Medium};
use super::error::{Error, Result};
use super::payload::{self, DEFAULT_MODE};
use super::plugin::{Ready, SetUp, VolumePlugin};

pub struct SecretPlugin;

#[async_trait]
impl VolumePlugin for SecretPlugin {
    fn name(&self) -> &'static str {
        "secret"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.secret.is_some()
    }

    fn refreshes(&self) -> bool {
        true
    }

    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready> {
        let Some(source) = &task.volume.secret else {
            return Err(Error::failed("Spec does not reference a Secret volume type"));
        };
        let optional = source.optional.unwrap_or(false);
        let name = source.secret_name.as_deref().unwrap_or("");
        let object = match task.host.objects.secret(task.namespace(), name).await {
            Err(error) if optional && error.is_not_found() => Secret::default().into(),
            other => other?,
        };
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let files = payload::secret(&object, source.items.as_deref(), mode, optional)?;
        content::write(task, files, Medium::Memory, None).await
    }
}
