//! Errors of the content store.

use std::io;
use std::path::PathBuf;

use super::digest::Digest;
use super::error_kind::ErrorKind;

/// A blob is missing, cannot be read or written, or does not match its digest, size or limit.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    #[error("blob {0}: not found")]
    Missing(Digest),
    #[error("digest mismatch: content is {actual}, expected {expected}")]
    Mismatch { expected: Digest, actual: Digest },
    #[error("content is {actual} bytes, expected {expected}")]
    Size { expected: u64, actual: u64 },
    #[error("blob {digest} of {size} bytes is larger than the limit of {limit}")]
    TooLarge { digest: Digest, size: u64, limit: u64 },
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl ContentError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            ContentError::Missing(_) => ErrorKind::NotFound,
            ContentError::Mismatch { .. } | ContentError::Size { .. } => ErrorKind::DigestMismatch,
            ContentError::TooLarge { .. } => ErrorKind::InvalidImage,
            ContentError::Io { .. } => ErrorKind::Io,
        }
    }
}
