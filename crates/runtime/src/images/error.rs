//! Errors of images, worded so that the chain of errors reads like containerd's messages.

use std::io;
use std::path::{Path, PathBuf};

use super::archive::ArchiveError;
use super::builder::BuildError;
pub use super::content_error::ContentError;
use super::digest::Digest;
pub use super::error_kind::ErrorKind;
use super::layers::LayerError;
use super::oci::DocumentError;
use super::reference::ReferenceError;
use super::registry::RegistryError;

/// Why an operation on images or snapshots failed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("failed to pull and unpack image {reference:?}")]
    Pull { reference: String, source: Box<ImageError> },
    #[error("failed to resolve reference {reference:?}")]
    Resolve { reference: String, source: Box<RegistryError> },
    #[error("failed to copy")]
    Fetch(#[source] Box<RegistryError>),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("malformed image config {digest}")]
    Config { digest: Digest, source: serde_json::Error },
    #[error("image has {layers} layers but its config lists {diff_ids}")]
    LayerCount { layers: usize, diff_ids: usize },
    #[error("failed to extract layer {layer}")]
    Layer { layer: Digest, source: LayerError },
    #[error("failed to import {name}")]
    Archive { name: String, source: ArchiveError },
    #[error("failed to build image {name:?}")]
    Build { name: String, source: BuildError },
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error("image {0:?}: not found")]
    NoImage(String),
    #[error("snapshot {0:?}: not found")]
    NoSnapshot(String),
    #[error("snapshot {0:?}: already exists")]
    SnapshotExists(String),
    #[error("{0:?} is not a snapshot name: want 1 to 128 of A-Z a-z 0-9 _ . -")]
    SnapshotName(String),
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the worker thread for {0} panicked")]
    Panicked(&'static str),
}

impl ImageError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            ImageError::Reference(_) => ErrorKind::InvalidReference,
            ImageError::Pull { source, .. } => source.kind(),
            ImageError::Resolve { source, .. } | ImageError::Fetch(source) => source.kind(),
            ImageError::Document(DocumentError::NoPlatform) => ErrorKind::NotFound,
            ImageError::Document(_) | ImageError::Config { .. } | ImageError::LayerCount { .. } => {
                ErrorKind::InvalidImage
            }
            ImageError::Layer { source, .. } => source.kind(),
            ImageError::Archive { source, .. } => source.kind(),
            ImageError::Build { source, .. } => source.kind(),
            ImageError::Content(source) => source.kind(),
            ImageError::NoImage(_) | ImageError::NoSnapshot(_) => ErrorKind::NotFound,
            ImageError::SnapshotExists(_) => ErrorKind::AlreadyExists,
            ImageError::SnapshotName(_) => ErrorKind::InvalidReference,
            ImageError::Io { .. } | ImageError::Panicked(_) => ErrorKind::Io,
        }
    }

    /// Returns the error and its sources in one line, `outer: inner: innermost`.
    pub fn chain(&self) -> String {
        let mut out = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            out.push_str(": ");
            out.push_str(&error.to_string());
            source = error.source();
        }
        out
    }

    pub(super) fn fetch(source: impl Into<RegistryError>) -> ImageError {
        ImageError::Fetch(Box::new(source.into()))
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
        let path = path.to_owned();
        move |source| ImageError::Io { action, path, source }
    }
}
