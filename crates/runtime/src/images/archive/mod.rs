//! Imports and exports image archives: OCI layouts and the output of `docker save`.

mod docker;
mod export;
mod import;

use std::io;

use super::digest::Digest;
use super::error::{ContentError, ErrorKind};
use super::oci::{DocumentError, Platform};
use super::reference::{Reference, ReferenceError};

/// How to import an archive.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// The platform to choose among several.
    pub platform: Platform,
    /// The name of an image that has no name in the archive, or only a tag.
    pub name: Option<Reference>,
    /// The largest size of the archive, in uncompressed bytes.
    pub max_bytes: u64,
}

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions { platform: Platform::host(), name: None, max_bytes: 256 << 30 }
    }
}

/// Why an archive could not be imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    #[error("cannot write the archive")]
    Write(#[source] io::Error),
    #[error("not an image archive: it has neither index.json nor manifest.json")]
    NotAnImage,
    #[error("more than {0} files")]
    TooManyFiles(usize),
    #[error("{name} is {size} bytes, the limit is {limit}")]
    DocumentTooLarge { name: String, size: u64, limit: u64 },
    #[error("malformed {name}")]
    Json { name: String, source: serde_json::Error },
    #[error("{name} is missing from the archive")]
    MissingFile { name: String },
    #[error("image {0} has no name in the archive: give it one")]
    Unnamed(Digest),
    #[error("the archive holds no image for {0}/{1}")]
    NoPlatform(String, String),
    #[error("the archive has {found} layers for image {name}, its config lists {wanted}")]
    Layers { name: String, found: usize, wanted: usize },
    #[error("{name:?} is not an image name")]
    Name { name: String, source: ReferenceError },
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl ArchiveError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            ArchiveError::Read(_) | ArchiveError::Write(_) => ErrorKind::Io,
            ArchiveError::Content(source) => source.kind(),
            ArchiveError::NoPlatform(..) => ErrorKind::NotFound,
            ArchiveError::Name { .. } => ErrorKind::InvalidReference,
            _ => ErrorKind::InvalidImage,
        }
    }
}
