//! The errors of a store's operations.

use std::sync::Arc;

use bytes::Bytes;

use crate::types::{KeyValue, LeaseId};

/// A precondition that did not hold, with the data for the next attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub key: Bytes,
    /// The present state of the key; `None` if it does not exist.
    pub current: Option<KeyValue>,
    /// The store's revision when the condition was checked.
    pub revision: u64,
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("precondition failed for key {:?}", String::from_utf8_lossy(&.0.key))]
    Conflict(Box<Conflict>),
    /// The history before `compacted` is gone: read or watch again from the current revision.
    #[error("required revision {requested} has been compacted, the oldest is {compacted}")]
    Compacted { requested: u64, compacted: u64 },
    #[error("required revision {requested} is a future revision, the current one is {current}")]
    FutureRevision { requested: u64, current: u64 },
    #[error("lease {0} not found")]
    LeaseNotFound(LeaseId),
    #[error("{what} of {size} is above the limit of {limit}")]
    TooLarge { what: &'static str, size: usize, limit: usize },
    #[error("invalid request: {0}")]
    Invalid(&'static str),
    /// A write could not be made durable. Reads work; writes are refused until the file has been reopened and contains
    /// what was acknowledged, which is retried continually.
    #[error("store is read-only: {reason}")]
    Unavailable { reason: Arc<str> },
    /// There is no space for what the write adds, on the disk or within the quota. The message is etcd's. Deletions
    /// still work.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// The keys of one share take as much space as they may.
    #[error(
        "the share {share:?} of the store is used up: requested: {requested}, used: {used}, limited: {limit} bytes"
    )]
    ShareExceeded { share: String, used: u64, requested: u64, limit: u64 },
    /// The engine behind the store returned an error of its own, with its message, or could not be reached. A later
    /// attempt may succeed.
    #[error("{0}")]
    Backend(Arc<str>),
    /// The engine behind the store did not answer in time.
    #[error("context deadline exceeded")]
    Timeout,
    #[error("store is closed")]
    Closed,
    /// The store has ended with an error: check its file when it is opened again. It contains everything acknowledged.
    #[error("the store was not closed cleanly: {reason}")]
    NotClosed { reason: Arc<str> },
}

impl Error {
    /// The conflict, if the error is one.
    pub fn conflict(&self) -> Option<&Conflict> {
        match self {
            Self::Conflict(conflict) => Some(conflict),
            _ => None,
        }
    }
}

/// The result of the operations of a [`Store`](crate::Store).
pub type Result<T, E = Error> = std::result::Result<T, E>;
