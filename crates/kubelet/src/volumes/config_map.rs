//! `configMap` volumes: the keys of a ConfigMap as files.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ConfigMap, Volume};

use super::content::{self, Medium};
use super::error::{Error, Result};
use super::payload::{self, DEFAULT_MODE};
use super::plugin::{Ready, SetUp, VolumePlugin};

pub struct ConfigMapPlugin;

#[async_trait]
impl VolumePlugin for ConfigMapPlugin {
    fn name(&self) -> &'static str {
        "configmap"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.config_map.is_some()
    }

    fn refreshes(&self) -> bool {
        true
    }

    async fn set_up(&self, task: &SetUp<'_>) -> Result<Ready> {
        let Some(source) = &task.volume.config_map else {
            return Err(Error::failed("Spec does not reference a ConfigMap volume type"));
        };
        let optional = source.optional.unwrap_or(false);
        let object = match task.host.objects.config_map(task.namespace(), &source.name).await {
            Err(error) if optional && error.is_not_found() => ConfigMap::default().into(),
            other => other?,
        };
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let files = payload::config_map(&object, source.items.as_deref(), mode, optional)?;
        content::write(task, files, Medium::Disk, None).await
    }
}
