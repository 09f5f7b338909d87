//! The journal as the engine sees it: makes batches durable.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use super::batch::Batch;
use crate::types::{KeyValue, ScrubFault};

/// Why a batch was not made durable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommitError {
    /// The disk is full, or the file owner's disk quota is used up.
    #[error("{0}")]
    NoSpace(String),
    #[error("{0}")]
    Failed(String),
    /// The file does not contain what was acknowledged. A retry does not help.
    #[error("{0}")]
    Diverged(String),
}

/// The fate of a batch whose commit failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The batch is on the disk.
    Kept,
    /// The disk has the state before the batch.
    Lost,
}

/// How much space the disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    Enough,
    /// A part of the reserve is in use.
    Short,
    /// Most of the reserve is used up.
    Last,
}

/// Access to the bytes of the file, independent of the journal's database.
pub(crate) trait RawFile: Debug + Send + Sync {
    /// Reads the next part of the file from the disk and compares it with what was written. A scrub starts at offset 0.
    /// Takes as long as the disk does; writes go on at the same time.
    fn look(&self, offset: u64) -> FileStep;
}

/// The result of scrubbing a part of the file.
#[derive(Debug)]
pub(crate) struct FileStep {
    /// The offset of the next part; `None` at the end.
    pub(crate) next: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) faults: Vec<ScrubFault>,
    /// Whether this part, or one before it in this scrub, has faults.
    pub(crate) damaged: bool,
}

/// Rows of keys in the file, in order.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<(Bytes, Result<KeyValue, String>)>,
    pub(crate) bytes: u64,
    /// Whether these are the last rows.
    pub(crate) ended: bool,
}

pub(crate) trait Journal: Send {
    /// Makes the batch durable. After an error, the next call must be [`Journal::reopen`].
    fn commit(&mut self, batch: &Batch) -> Result<(), CommitError>;

    /// Reopens the file after a failed commit, and checks that it contains what was acknowledged. Returns whether it
    /// contains the failed batch as well. May be called again after an error.
    fn reopen(&mut self) -> Result<Fate, CommitError>;

    /// The size of the file.
    fn file_bytes(&self) -> u64 {
        0
    }

    /// Releases unused space of the file to the disk. After an error, the next call must be [`Journal::reopen`].
    fn shrink(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    /// The raw file, if there is one to scrub.
    fn raw(&self) -> Option<Arc<dyn RawFile>> {
        None
    }

    /// Reads the rows after a key, until they have this many bytes. Must not be called for a file with known damage:
    /// the next commit might fail because of it.
    fn read_rows(&mut self, _after: Option<&[u8]>, _bytes: usize) -> Result<Rows, CommitError> {
        Ok(Rows { ended: true, ..Rows::default() })
    }

    /// Releases the file; returns an error if that failed.
    fn close(self) -> Result<(), CommitError>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// How much space is left, after an attempt to fill up the reserve.
    fn room(&mut self) -> Room {
        Room::Enough
    }
}

/// The journal of a store that only exists in memory.
#[derive(Debug)]
pub(crate) struct NoJournal;

impl Journal for NoJournal {
    fn commit(&mut self, _batch: &Batch) -> Result<(), CommitError> {
        Ok(())
    }

    fn reopen(&mut self) -> Result<Fate, CommitError> {
        Ok(Fate::Lost)
    }
}
