//! The names of images, stored as the OCI layout's `index.json`, which is replaced as a whole at every change.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::content::{io_error, replace_file};
use super::digest::Digest;
use super::error::ContentError;
use super::oci::{Descriptor, Index, NAME_ANNOTATION, OCI_INDEX, REF_NAME_ANNOTATION};
use super::reference::Reference;

const MANIFEST_ANNOTATION: &str = "knarr.manifest";
const INPUTS_ANNOTATION: &str = "knarr.build-inputs";
const LAYOUT: &str = "{\"imageLayoutVersion\":\"1.0.0\"}\n";

/// The image that a name refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The image's descriptor from the registry or archive: a manifest, or an index of several platforms.
    pub descriptor: Descriptor,
    /// The manifest of the chosen platform; the descriptor's own digest if that is not an index.
    pub manifest: Digest,
    /// For images that were built here: a fingerprint of their inputs.
    pub inputs: Option<String>,
}

/// The images by name.
pub type Refs = BTreeMap<Reference, Target>;

/// Identifies one version of the file, to notice another process's change without reading the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// Returns the stamp of the file; `None` if it does not exist.
pub fn stamp(root: &Path) -> Result<Option<Stamp>, ContentError> {
    let path = root.join("index.json");
    match fs::metadata(&path) {
        Ok(m) => Ok(Some(Stamp { inode: m.ino(), size: m.len(), changed: (m.ctime(), m.ctime_nsec()) })),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ContentError::Io { action: "stat", path, source }),
    }
}

/// Reads the names; a missing file has none. Entries without a usable name were written by other tools and are
/// dropped.
pub fn load(root: &Path) -> Result<Refs, ContentError> {
    let path = root.join("index.json");
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Refs::new()),
        Err(source) => return Err(ContentError::Io { action: "read", path, source }),
    };
    let index: Index = serde_json::from_slice(&bytes).map_err(|e| ContentError::Io {
        action: "parse",
        path,
        source: io::Error::new(io::ErrorKind::InvalidData, e),
    })?;
    let mut refs = Refs::new();
    for mut descriptor in index.manifests {
        let mut take = |key: &str| descriptor.annotations.remove(key);
        let name = take(NAME_ANNOTATION).and_then(|name| name.parse::<Reference>().ok());
        let manifest = take(MANIFEST_ANNOTATION).and_then(|digest| digest.parse().ok());
        let inputs = take(INPUTS_ANNOTATION);
        take(REF_NAME_ANNOTATION);
        if let Some(name) = name {
            let manifest = manifest.unwrap_or(descriptor.digest);
            refs.insert(name, Target { descriptor, manifest, inputs });
        }
    }
    Ok(refs)
}

/// Replaces the file; the change is durable when this returns.
pub fn save(root: &Path, refs: &Refs) -> Result<(), ContentError> {
    let layout = root.join("oci-layout");
    if !layout.exists() {
        replace_file(&layout, LAYOUT.as_bytes()).map_err(io_error("write", &layout))?;
    }
    let manifests = refs
        .iter()
        .map(|(name, target)| {
            let mut descriptor = target.descriptor.clone();
            let mut put = |key: &str, value: String| descriptor.annotations.insert(key.to_owned(), value);
            put(NAME_ANNOTATION, name.to_string());
            if let Some(tag) = name.tag() {
                put(REF_NAME_ANNOTATION, tag.to_owned());
            }
            if target.manifest != target.descriptor.digest {
                put(MANIFEST_ANNOTATION, target.manifest.to_string());
            }
            if let Some(inputs) = &target.inputs {
                put(INPUTS_ANNOTATION, inputs.clone());
            }
            descriptor
        })
        .collect();
    let index = Index { schema_version: 2, media_type: Some(OCI_INDEX.to_owned()), manifests };
    let path = root.join("index.json");
    let bytes = serde_json::to_vec_pretty(&index).map_err(|e| ContentError::Io {
        action: "encode",
        path: path.clone(),
        source: e.into(),
    })?;
    replace_file(&path, &bytes).map_err(io_error("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::fixture::TempDir;
    use crate::images::oci::OCI_MANIFEST;

    #[test]
    fn names_round_trip_and_strangers_are_dropped() {
        let dir = TempDir::new();
        assert_eq!(load(dir.path()).unwrap(), Refs::new());
        assert_eq!(stamp(dir.path()).unwrap(), None);
        let target = Target {
            descriptor: Descriptor::new(OCI_MANIFEST, Digest::of(b"index"), 5),
            manifest: Digest::of(b"manifest"),
            inputs: Some("x".into()),
        };
        let mut refs = Refs::new();
        refs.insert("web:1".parse().unwrap(), target.clone());
        refs.insert("web".parse::<Reference>().unwrap().with_digest(Digest::of(b"index")), target);
        save(dir.path(), &refs).unwrap();
        assert_eq!(load(dir.path()).unwrap(), refs);

        let text = fs::read_to_string(dir.path().join("index.json")).unwrap();
        fs::write(dir.path().join("index.json"), text.replace("docker.io/library/web:1", "NO GOOD")).unwrap();
        assert_eq!(load(dir.path()).unwrap().len(), 1);
        fs::write(dir.path().join("index.json"), "{").unwrap();
        assert!(load(dir.path()).is_err());
    }

    #[test]
    fn every_save_is_noticed() {
        let dir = TempDir::new();
        save(dir.path(), &Refs::new()).unwrap();
        let first = stamp(dir.path()).unwrap();
        save(dir.path(), &Refs::new()).unwrap();
        assert_ne!(stamp(dir.path()).unwrap(), first);
    }
}
