//! `image` volumes: the file tree of an image. The kubelet pulls the image, and the runtime mounts it with each
//! container that uses the volume.

use std::path::Path;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Volume;

use super::error::Result;
use super::plugin::{Ready, SetUp, VolumePlugin};

pub struct ImagePlugin;

#[async_trait]
impl VolumePlugin for ImagePlugin {
    fn name(&self) -> &'static str {
        "image"
    }

    fn supports(&self, volume: &Volume) -> bool {
        volume.image.is_some()
    }

    /// Returns an empty path: nothing is on the host before a container starts.
    async fn set_up(&self, _: &SetUp<'_>) -> Result<Ready> {
        let mut ready = Ready::at(Path::new(""));
        ready.volume.read_only = true;
        Ok(ready)
    }
}
