//! Errors of mounting volumes, with upstream's texts.

use std::io;
use std::path::{Path, PathBuf};

use super::object_source::SourceError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The text that upstream's plugin returns.
    #[error("{0}")]
    Failed(String),
    /// The whole text of the event.
    #[error("{0}")]
    Whole(String),
    /// The volume could not be processed at all: the text becomes part of the message about all volumes of the
    /// pod.
    #[error("{0}")]
    Unprocessed(String),
    /// The volume is expected to become available without action of the user; the pod gets an event only if it
    /// does not.
    #[error("{0}")]
    Waiting(String),
    /// Several causes, listed as `[a, b]`.
    #[error("[{}]", .0.join(", "))]
    Several(Vec<String>),
    #[error("{what} {}: {source}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    /// Returns one cause as it is, several as a list, and `None` without any.
    pub fn aggregate(mut causes: Vec<String>) -> Option<Self> {
        match causes.len() {
            0 => None,
            1 => causes.pop().map(Self::Failed),
            _ => Some(Self::Several(causes)),
        }
    }
}
