//! Lookup of images by name, and image pulls.

use knarr_runtime::images::{Image as StoredImage, PullOptions, Reference};

use super::{Embedded, errors};
use crate::runtime::{Image, Keyring, PulledImage, Result, RuntimeError};

pub fn image(stored: &StoredImage) -> Image {
    Image {
        id: stored.id.to_string(),
        repo_tags: stored.repo_tags.clone(),
        repo_digests: stored.repo_digests.clone(),
        size: stored.size,
        user: stored.config.image_user(),
    }
}

/// Returns the names for a container's status: the image's name (the requested one, if it has several) and its
/// reference by digest. Each falls back to the id.
pub fn names(stored: &StoredImage, asked_for: &str) -> (String, String) {
    let id = stored.id.to_string();
    let asked_for = asked_for.parse::<Reference>().ok();
    let (full, repository) = match &asked_for {
        Some(reference) => (reference.to_string(), format!("{}@", reference.repository())),
        None => Default::default(),
    };
    let name = stored.repo_tags.iter().find(|t| **t == full).or(stored.repo_tags.first());
    let digest =
        stored.repo_digests.iter().find(|d| d.starts_with(&repository)).or(stored.repo_digests.first());
    (name.unwrap_or(&id).clone(), digest.unwrap_or(&id).clone())
}

impl Embedded {
    pub(super) async fn find_image(&self, name: &str) -> Result<Option<Image>> {
        let found = self.inner.images.get(name).await.map_err(errors::image)?;
        Ok(found.as_ref().map(image))
    }

    pub(super) async fn pull(&self, name: &str, keyring: &Keyring) -> Result<PulledImage> {
        let reference: Reference = name.parse().map_err(|e: knarr_runtime::images::ReferenceError| {
            RuntimeError::InvalidImageName(format!("couldn't parse image name {name:?}: {e}"))
        })?;
        let options = PullOptions { keyring: keyring.clone(), ..self.inner.pull.clone() };
        let pulled = self.inner.images.pull_with(&reference, &options).await.map_err(errors::image)?;
        Ok(PulledImage { image: image(&pulled.image), credential: pulled.credential })
    }
}
