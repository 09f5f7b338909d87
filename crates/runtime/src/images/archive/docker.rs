//! Converts the list that `docker save` writes to manifests.

use serde::{Deserialize, Serialize};

use super::super::config::ConfigBlob;
use super::super::content::ContentStore;
use super::super::oci::{
    Descriptor, MAX_CONFIG_BYTES, MAX_LAYERS, Manifest, OCI_CONFIG, OCI_LAYER_TAR, OCI_MANIFEST,
};
use super::super::reference::Reference;
use super::super::refs::Target;
use super::import::{Contents, Found};
use super::{ArchiveError, ImportOptions};

/// One entry of `manifest.json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Saved {
    pub config: String,
    #[serde(default)]
    pub repo_tags: Option<Vec<String>>,
    #[serde(default)]
    pub layers: Vec<String>,
}

pub(super) fn understand(
    content: &ContentStore,
    contents: &Contents,
    saved: Vec<Saved>,
    options: &ImportOptions,
) -> Result<Vec<Found>, ArchiveError> {
    let alone = saved.len() == 1;
    let mut out = Vec::new();
    for image in saved {
        let (id, size) = contents.file(&image.config)?;
        let json = content.read(&id, MAX_CONFIG_BYTES)?;
        let config = ConfigBlob::parse(&json)
            .map_err(|source| ArchiveError::Json { name: image.config.clone(), source })?;
        let wanted = config.rootfs.diff_ids.len();
        if image.layers.len() != wanted || wanted > MAX_LAYERS {
            return Err(ArchiveError::Layers { name: image.config, found: image.layers.len(), wanted });
        }
        let mut layers = Vec::new();
        for name in &image.layers {
            let (digest, size) = contents.file(name)?;
            // Compression is recognised by the content, not by this media type.
            layers.push(Descriptor::new(OCI_LAYER_TAR, digest, size));
        }
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(OCI_MANIFEST.to_owned()),
            config: Descriptor::new(OCI_CONFIG, id, size),
            layers,
        };
        let bytes = serde_json::to_vec(&manifest)
            .map_err(|source| ArchiveError::Json { name: "manifest".to_owned(), source })?;
        let digest = content.write(&bytes)?;
        let mut names = Vec::new();
        for name in image.repo_tags.unwrap_or_default() {
            let parsed = name.parse::<Reference>();
            names.push(parsed.map_err(|source| ArchiveError::Name { name, source })?);
        }
        if names.is_empty() {
            match &options.name {
                Some(name) if alone => names.push(name.clone()),
                _ => return Err(ArchiveError::Unnamed(id)),
            }
        }
        let descriptor = Descriptor::new(OCI_MANIFEST, digest, bytes.len() as u64);
        out.push(Found { names, target: Target { descriptor, manifest: digest, inputs: None } });
    }
    Ok(out)
}
