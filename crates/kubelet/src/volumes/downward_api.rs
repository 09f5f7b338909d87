//! `downwardAPI` volumes: fields of the pod as files.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::content::{self, Medium};
use super::error::{Error, Result};
use super::payload::{self, DEFAULT_MODE};
use super::plugin::{Ready, SetUp, VolumePlugin};

pub struct DownwardApiPlugin;

#[async_trait]
impl VolumePlugin for DownwardApiPlugin {
    fn name(&self) -> &'static str {
        "downward-api"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.downward_api.is_some()
    }

    fn refreshes(&self) -> bool {
        true
    }

    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready> {
        let Some(source) = &task.volume.downward_api else {
            return Err(Error::failed("Spec does not reference a DownwardAPI volume type"));
        };
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let items = source.items.as_deref().unwrap_or_default();
        let files = payload::downward_api(task.pod, items, mode, &task.host.options.allocatable)?;
        content::write(task, files, Medium::Memory, None).await
    }
}
