//! The documents of an image: descriptors, manifests, indexes and platforms, in the OCI and docker formats.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::Digest;

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_LAYER_TAR: &str = "application/vnd.oci.image.layer.v1.tar";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// The name annotation of containerd and docker, also used in the store's own index.
pub const NAME_ANNOTATION: &str = "io.containerd.image.name";
pub const REF_NAME_ANNOTATION: &str = "org.opencontainers.image.ref.name";

/// The largest manifest or index that is read (the distribution specification asks for at least 4 MiB).
pub const MAX_MANIFEST_BYTES: u64 = 4 << 20;
/// The largest image configuration that is read: a hundred times the usual size.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// The highest number of lower directories of an overlayfs mount.
pub const MAX_LAYERS: usize = 500;

/// A reference to a blob: its media type, digest and size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Descriptor {
        Descriptor {
            media_type: media_type.to_owned(),
            digest,
            size,
            platform: None,
            annotations: BTreeMap::new(),
        }
    }

    pub fn is_index(&self) -> bool {
        matches!(self.media_type.as_str(), OCI_INDEX | DOCKER_LIST)
    }
}

/// The manifest of one platform's image.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// An index of manifests, usually one per platform.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    #[serde(default)]
    pub manifests: Vec<Descriptor>,
}

/// A manifest or an index, distinguished by its content if the media type does not say.
#[derive(Debug, Clone)]
pub enum Document {
    Manifest(Manifest),
    Index(Index),
}

/// Why a manifest or index could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("malformed manifest")]
    Json(#[from] serde_json::Error),
    #[error("schema version {0} manifests are not supported")]
    Schema(u64),
    #[error("unsupported manifest media type {0:?}")]
    MediaType(String),
    #[error("{0} layers are more than the {MAX_LAYERS} that can be stacked")]
    TooManyLayers(usize),
    #[error("no match for platform in manifest: not found")]
    NoPlatform,
}

/// Parses a manifest or index. `media_type` is the one that the transport reported, if any.
pub fn parse_document(bytes: &[u8], media_type: &str) -> Result<Document, DocumentError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Probe {
        #[serde(default)]
        schema_version: u64,
        media_type: Option<String>,
        manifests: Option<serde::de::IgnoredAny>,
        config: Option<serde::de::IgnoredAny>,
    }
    let probe: Probe = serde_json::from_slice(bytes)?;
    if probe.schema_version != 2 {
        return Err(DocumentError::Schema(probe.schema_version));
    }
    let media_type = probe.media_type.as_deref().unwrap_or(media_type);
    match media_type {
        OCI_INDEX | DOCKER_LIST => Ok(Document::Index(serde_json::from_slice(bytes)?)),
        OCI_MANIFEST | DOCKER_MANIFEST => parse_manifest(bytes).map(Document::Manifest),
        _ if probe.manifests.is_some() && probe.config.is_none() => {
            Ok(Document::Index(serde_json::from_slice(bytes)?))
        }
        _ if probe.config.is_some() && probe.manifests.is_none() => {
            parse_manifest(bytes).map(Document::Manifest)
        }
        other => Err(DocumentError::MediaType(other.to_owned())),
    }
}

fn parse_manifest(bytes: &[u8]) -> Result<Manifest, DocumentError> {
    let manifest: Manifest = serde_json::from_slice(bytes)?;
    if manifest.layers.len() > MAX_LAYERS {
        return Err(DocumentError::TooManyLayers(manifest.layers.len()));
    }
    Ok(manifest)
}

/// An operating system and architecture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// Returns the platform of this machine.
    pub fn host() -> Platform {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "aarch64" => ("arm64", None),
            "x86" => ("386", None),
            "arm" => ("arm", Some("v7")),
            "powerpc64" => ("ppc64le", None),
            other => (other, None),
        };
        Platform {
            architecture: architecture.to_owned(),
            os: "linux".to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// Ranks how well `offered` suits this platform: `None` means not at all, lower is better.
    fn rank(&self, offered: &Platform) -> Option<u8> {
        if offered.os != self.os || offered.architecture != self.architecture {
            return None;
        }
        let plain = |variant: &Option<String>| match (self.architecture.as_str(), variant.as_deref()) {
            // v8 is the default variant of arm64, and v1 that of amd64.
            (_, None | Some("")) | ("arm64", Some("v8")) | ("amd64", Some("v1")) => None,
            (_, Some(v)) => Some(v.to_owned()),
        };
        match (plain(&self.variant), plain(&offered.variant)) {
            (wanted, got) if wanted == got => Some(0),
            (Some(_), None) => Some(1),
            // Code for older 32-bit arm runs on newer cores, but not the reverse.
            (Some(wanted), Some(got)) if self.architecture == "arm" && got < wanted => Some(2),
            _ => None,
        }
    }
}

/// Returns the manifest of an index that suits `platform` best; of equal ones, the first. Entries without a
/// platform are the last choice: the caller must check their configuration.
pub fn select_platform<'a>(index: &'a Index, platform: &Platform) -> Option<&'a Descriptor> {
    let usable = |d: &&Descriptor| {
        matches!(d.media_type.as_str(), OCI_MANIFEST | DOCKER_MANIFEST | OCI_INDEX | DOCKER_LIST | "")
    };
    let named = index
        .manifests
        .iter()
        .filter(usable)
        .filter_map(|d| d.platform.as_ref().and_then(|p| platform.rank(p)).map(|rank| (rank, d)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, d)| d);
    named.or_else(|| index.manifests.iter().filter(usable).find(|d| d.platform.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(arch: &str, variant: Option<&str>) -> Descriptor {
        let mut descriptor =
            Descriptor::new(OCI_MANIFEST, Digest::of(format!("{arch}{variant:?}").as_bytes()), 1);
        descriptor.platform = Some(Platform {
            architecture: arch.to_owned(),
            os: "linux".to_owned(),
            variant: variant.map(str::to_owned),
        });
        descriptor
    }

    fn index(manifests: Vec<Descriptor>) -> Index {
        Index { schema_version: 2, media_type: None, manifests }
    }

    fn platform(arch: &str, variant: Option<&str>) -> Platform {
        Platform { architecture: arch.into(), os: "linux".into(), variant: variant.map(str::to_owned) }
    }

    #[test]
    fn platform_is_chosen_by_architecture_then_variant() {
        let all = index(vec![
            offered("unknown", None),
            offered("amd64", Some("v3")),
            offered("amd64", None),
            offered("arm", Some("v6")),
            offered("arm", Some("v7")),
            offered("arm64", Some("v8")),
        ]);
        for (wanted, at) in [
            (platform("amd64", None), Some(2)),
            (platform("arm", Some("v7")), Some(4)),
            (platform("arm", Some("v6")), Some(3)),
            (platform("arm64", None), Some(5)),
            (platform("s390x", None), None),
        ] {
            let got = select_platform(&all, &wanted);
            assert_eq!(got, at.map(|at: usize| &all.manifests[at]), "{wanted:?}");
        }
    }

    #[test]
    fn an_entry_without_platform_is_the_last_resort() {
        let all = index(vec![Descriptor::new(OCI_MANIFEST, Digest::of(b"x"), 1), offered("amd64", None)]);
        assert_eq!(select_platform(&all, &platform("amd64", None)), Some(&all.manifests[1]));
        assert_eq!(select_platform(&all, &platform("arm64", None)), Some(&all.manifests[0]));
    }

    #[test]
    fn documents_are_told_apart() {
        let d = Digest::of(b"");
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"c","digest":"{d}","size":1}},"layers":[]}}"#
        );
        assert!(matches!(parse_document(manifest.as_bytes(), ""), Ok(Document::Manifest(_))));
        assert!(matches!(
            parse_document(br#"{"schemaVersion":2,"manifests":[]}"#, ""),
            Ok(Document::Index(_))
        ));
        assert!(matches!(parse_document(br#"{"schemaVersion":1}"#, ""), Err(DocumentError::Schema(1))));
        assert!(matches!(
            parse_document(br#"{"schemaVersion":2,"mediaType":"text/html"}"#, ""),
            Err(DocumentError::MediaType(_))
        ));
        assert!(parse_document(b"<html>", "").is_err());
    }
}
