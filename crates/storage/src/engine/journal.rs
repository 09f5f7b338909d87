//! What makes batches survive the process, as the engine sees it.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;

use super::batch::Batch;
use crate::types::{KeyValue, ScrubFault};

/// Why a batch was not made durable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommitError {
    /// The disk is full, or the owner's quota on it is.
    #[error("{0}")]
    NoSpace(String),
    #[error("{0}")]
    Failed(String),
    /// What is on the disk is not what was acknowledged. Trying again does not help.
    #[error("{0}")]
    Diverged(String),
}

/// What became of a batch whose commit failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is on the disk.
    Kept,
    /// The disk holds what was there before it.
    Lost,
}

/// How much room the disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Room {
    Enough,
    /// The reserve is being used.
    Short,
    /// Most of the reserve is gone.
    Last,
}

/// The file as bytes, beside what the journal makes of it.
pub(crate) trait RawFile: Debug + Send + Sync {
    /// Reads the next part of it from the disk and holds it against what was written. A look begins at 0. Takes as long as
    /// the disk does; writes go on meanwhile.
    fn look(&self, offset: u64) -> FileStep;
}

/// What a look at a part of the file has found.
#[derive(Debug)]
pub(crate) struct FileStep {
    /// Where to go on; `None` at the end.
    pub(crate) next: Option<u64>,
    pub(crate) bytes: u64,
    pub(crate) faults: Vec<ScrubFault>,
    /// Whether this part, or one before it in this look, has faults.
    pub(crate) damaged: bool,
}

/// Rows of keys as the file holds them, in order.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<(Bytes, Result<KeyValue, String>)>,
    pub(crate) bytes: u64,
    /// Whether these were the last ones.
    pub(crate) ended: bool,
}

pub(crate) trait Journal: Send {
    /// Returns once the batch is durable. After an error the next call is to [`Journal::reopen`].
    fn commit(&mut self, batch: &Batch) -> Result<(), CommitError>;

    /// Opens the file anew after a failed commit, checks that it holds what was acknowledged, and answers whether the
    /// failed batch is in it, too. May be called again after an error.
    fn reopen(&mut self) -> Result<Fate, CommitError>;

    /// The size of the file.
    fn file_bytes(&self) -> u64 {
        0
    }

    /// Gives the disk back what the file does not need. After an error the next call is to [`Journal::reopen`].
    fn shrink(&mut self) -> Result<(), CommitError> {
        Ok(())
    }

    /// The file, where there is one to be looked at.
    fn raw(&self) -> Option<Arc<dyn RawFile>> {
        None
    }

    /// Reads rows after a key, until they have so many bytes. Not of a file that is known to be damaged: the next commit
    /// may fail for it.
    fn read_rows(&mut self, _after: Option<&[u8]>, _bytes: usize) -> Result<Rows, CommitError> {
        Ok(Rows { ended: true, ..Rows::default() })
    }

    /// Releases the file; an error if that failed.
    fn close(self) -> Result<(), CommitError>
    where
        Self: Sized,
    {
        Ok(())
    }

    /// How much room there is, after trying to fill up the reserve.
    fn room(&mut self) -> Room {
        Room::Enough
    }
}

/// The journal of a store that lives in memory alone.
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
