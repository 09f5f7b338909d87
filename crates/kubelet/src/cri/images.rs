//! Images, by the runtime's image service.

use knarr_grpc::CallError;
use knarr_runtime::images::{Credential, DiskUsage, Reference, fs_info};

use super::messages as cri;
use super::{Cri, client, status};
use crate::runtime::{FsInfo, Image, Keyring, PulledImage, Result, RuntimeError};

const LIST: &str = "/runtime.v1.ImageService/ListImages";
const STATUS: &str = "/runtime.v1.ImageService/ImageStatus";
const PULL: &str = "/runtime.v1.ImageService/PullImage";
const REMOVE: &str = "/runtime.v1.ImageService/RemoveImage";
const FS_INFO: &str = "/runtime.v1.ImageService/ImageFsInfo";

fn auth(credential: Credential) -> cri::AuthConfig {
    cri::AuthConfig {
        username: credential.username,
        password: credential.password,
        identity_token: credential.identity_token.unwrap_or_default(),
        registry_token: credential.registry_token.unwrap_or_default(),
        ..cri::AuthConfig::default()
    }
}

/// Joins several errors as upstream does: each text once, in brackets unless there is only one.
fn aggregate(errors: Vec<CallError>) -> RuntimeError {
    let mut texts: Vec<String> = Vec::new();
    for error in &errors {
        let text = error.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match (errors.into_iter().next(), texts.len()) {
        (Some(only), 1) => client::error(only),
        _ => RuntimeError::Failed(format!("[{}]", texts.join(", "))),
    }
}

impl Cri {
    pub(super) async fn find_image(&self, name: &str) -> Result<Option<Image>> {
        let request = cri::ImageRequest { image: Some(cri::ImageSpec::named(name)) };
        let answer: cri::ImageStatusResponse =
            self.inner.images.call(STATUS, &request).await.map_err(client::error)?;
        match answer.image.map(status::image) {
            Some(image) if image.id.is_empty() || image.size == 0 => {
                Err(RuntimeError::Failed(format!("Id or size of image {name:?} is not set")))
            }
            found => Ok(found),
        }
    }

    pub(super) async fn all_images(&self) -> Result<Vec<Image>> {
        let request = cri::ListImagesRequest {};
        let answer: cri::ListImagesResponse =
            self.inner.images.call(LIST, &request).await.map_err(client::error)?;
        Ok(answer.images.into_iter().map(status::image).collect())
    }

    /// Pulls an image with one matching credential after the other until one is accepted; without a time limit.
    pub(super) async fn pull(&self, name: &str, keyring: &Keyring) -> Result<PulledImage> {
        let reference: Reference = name.parse().map_err(|error| {
            RuntimeError::InvalidImageName(format!("couldn't parse image name {name:?}: {error}"))
        })?;
        let mut attempts: Vec<Option<Credential>> =
            keyring.lookup(&reference).into_iter().map(Some).collect();
        if attempts.is_empty() {
            attempts.push(None);
        }
        let mut errors = Vec::new();
        for credential in attempts {
            let auth = credential.clone().map(auth);
            let request = cri::PullImageRequest { image: Some(cri::ImageSpec::named(name)), auth };
            let pulled = self.inner.images.call_within(PULL, &request, None).await;
            match pulled.map(|answer: cri::PullImageResponse| answer.image_ref) {
                Ok(id) if !id.is_empty() => {
                    let found = self.find_image(&id).await?;
                    let image =
                        found.ok_or_else(|| RuntimeError::NotFound(format!("image {id:?} not found")))?;
                    return Ok(PulledImage { image, credential });
                }
                Ok(_) => {
                    return Err(RuntimeError::Failed(format!("imageRef of image {name:?} is not set")));
                }
                Err(error) => errors.push(error),
            }
        }
        Err(aggregate(errors))
    }

    pub(super) async fn drop_image(&self, name: &str) -> Result<()> {
        let request = cri::ImageRequest { image: Some(cri::ImageSpec::named(name)) };
        client::fine_if_missing(self.inner.images.call::<cri::Done>(REMOVE, &request).await)
    }

    /// Returns the usage of images as the runtime reports it, and the size of their file system from the kernel.
    pub(super) async fn image_file_system(&self) -> Result<FsInfo> {
        let answer: cri::ImageFsInfoResponse =
            self.inner.images.call(FS_INFO, &cri::Done {}).await.map_err(client::error)?;
        let found = answer.image_filesystems.into_iter().next();
        let usage = found
            .ok_or_else(|| RuntimeError::Failed("the runtime reports no image file system".to_owned()))?;
        let mount = usage.fs_id.map(|id| id.mountpoint).unwrap_or_default();
        let read = tokio::task::spawn_blocking(move || {
            fs_info(std::path::Path::new(&mount))
                .map_err(|error| RuntimeError::Failed(format!("cannot read {mount}: {error}")))
        });
        let info =
            read.await.map_err(|error| RuntimeError::Failed(format!("background work: {error}")))??;
        let value = |number: Option<cri::UInt64Value>| number.map_or(0, |number| number.value);
        let used = DiskUsage { bytes: value(usage.used_bytes), inodes: value(usage.inodes_used) };
        Ok(FsInfo { used, ..info })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_grpc::Code;

    #[test]
    fn errors_of_several_credentials() {
        let error = |text: &str| CallError::Status { code: Code::UNKNOWN, message: text.to_owned() };
        assert_eq!(aggregate(vec![error("a"), error("a")]).to_string(), "rpc error: code = Unknown desc = a");
        assert_eq!(
            aggregate(vec![error("a"), error("b")]).to_string(),
            "[rpc error: code = Unknown desc = a, rpc error: code = Unknown desc = b]"
        );
    }
}
