//! Writes batches: one database transaction and one fsync for each.

use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use redb::{Database, ReadableDatabase, TableDefinition};

use super::codec;
use super::file::OpenError;
use super::reserve::{Reserve, is_full};
use crate::engine::batch::Batch;
use crate::engine::journal::{CommitError, Fate, Journal, RawFile, Room, Rows};
use crate::engine::scrub::bound;

/// The current state of the keys.
pub(super) const KEYS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("keys");
/// How to undo each revision since the last compaction.
pub(super) const LOG: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("log");
/// Leases with their time to live in seconds.
pub(super) const LEASES: TableDefinition<'static, u64, u64> = TableDefinition::new("leases");
pub(super) const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");

pub(super) const META_FORMAT: &str = "format";
pub(super) const META_REVISION: &str = "revision";
pub(super) const META_COMPACTED: &str = "compacted";
pub(super) const META_LAST_LEASE: &str = "last_lease";
/// Increases with every batch, including those without a revision; missing before the first batch.
pub(super) const META_BATCH: &str = "batch";

/// The numbers that identify a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) batch: u64,
    pub(super) revision: u64,
}

/// Opens the database of a store; called again after failed commits.
pub(super) type Opener = Box<dyn FnMut() -> Result<Database, OpenError> + Send>;

pub(crate) struct RedbJournal {
    opener: Opener,
    /// `None` after a failed commit.
    database: Option<Database>,
    reserve: Arc<Reserve>,
    path: PathBuf,
    /// The last durable batch, and the batch that was tried after it.
    durable: Mark,
    tried: Mark,
    row: Vec<u8>,
    raw: Option<Arc<dyn RawFile>>,
}

impl RedbJournal {
    pub(super) fn new(
        opener: Opener,
        database: Database,
        reserve: Arc<Reserve>,
        path: PathBuf,
    ) -> Result<Self, redb::Error> {
        let durable = mark_of(&database)?;
        let (database, tried, row) = (Some(database), durable, Vec::new());
        Ok(Self { opener, database, reserve, path, durable, tried, row, raw: None })
    }

    /// Adds the reader of the raw file.
    pub(super) fn with_raw(self, raw: Arc<dyn RawFile>) -> Self {
        Self { raw: Some(raw), ..self }
    }

    fn write(&mut self, batch: &Batch) -> Result<(), redb::Error> {
        let Some(database) = &self.database else { return Err(redb::Error::PreviousIo) };
        let txn = database.begin_write()?;
        {
            let mut keys = txn.open_table(KEYS)?;
            for (key, head) in &batch.heads {
                match head {
                    Some(kv) => {
                        codec::encode_key_value(&mut self.row, kv);
                        keys.insert(&key[..], &self.row[..])?;
                    }
                    None => {
                        keys.remove(&key[..])?;
                    }
                }
            }
            let mut log = txn.open_table(LOG)?;
            for commit in &batch.commits {
                codec::encode_undo(&mut self.row, commit.revision, &commit.events);
                log.insert(commit.revision, &self.row[..])?;
            }
            if batch.prune_through > 0 {
                log.retain_in(..=batch.prune_through, |_, _| false)?;
            }
            if !batch.granted.is_empty() || !batch.revoked.is_empty() {
                let mut leases = txn.open_table(LEASES)?;
                for (id, ttl_seconds) in &batch.granted {
                    leases.insert(id.get(), ttl_seconds)?;
                }
                for id in &batch.revoked {
                    leases.remove(id.get())?;
                }
            }
            let mut meta = txn.open_table(META)?;
            meta.insert(META_BATCH, self.tried.batch)?;
            meta.insert(META_REVISION, batch.revision)?;
            meta.insert(META_COMPACTED, batch.compacted)?;
            meta.insert(META_LAST_LEASE, batch.last_lease)?;
        }
        // With redb's default durability, this returns after the fsync.
        txn.commit()?;
        // Keeps the buffer for rows of common size, but not for a huge value.
        self.row.shrink_to(64 * 1024);
        Ok(())
    }
}

impl Journal for RedbJournal {
    fn commit(&mut self, batch: &Batch) -> Result<(), CommitError> {
        self.tried = Mark { batch: self.durable.batch + 1, revision: batch.revision };
        match guarded(|| self.write(batch)) {
            Ok(()) => {
                self.durable = self.tried;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// After a failed sync the kernel may treat pages as written that never reached the disk. Therefore the file is
    /// read from the disk again, by a database that checks every page.
    fn reopen(&mut self) -> Result<Fate, CommitError> {
        if let Some(failed) = self.database.take() {
            let _ = guarded(|| {
                drop(failed);
                Ok(())
            });
        }
        let database = (self.opener)().map_err(|error| match error {
            OpenError::Io { source, .. } if is_full(&source) => CommitError::NoSpace(source.to_string()),
            OpenError::Io { source, .. } => CommitError::Failed(source.to_string()),
            error => CommitError::Failed(error.to_string()),
        })?;
        let found = guarded(|| mark_of(&database))?;
        let fate = match found {
            found if found == self.tried => Fate::Kept,
            found if found == self.durable => Fate::Lost,
            found => {
                let (found, expected) = (found.revision, self.durable.revision);
                let reason = format!("the file holds revision {found} where {expected} was acknowledged");
                return Err(CommitError::Diverged(reason));
            }
        };
        self.durable = found;
        self.database = Some(database);
        Ok(fate)
    }

    fn file_bytes(&self) -> u64 {
        self.path.metadata().map_or(0, |of| of.len())
    }

    fn shrink(&mut self) -> Result<(), CommitError> {
        // If this fails, no batch is affected.
        self.tried = self.durable;
        let Some(database) = &mut self.database else { return Ok(()) };
        guarded(|| match database.compact() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    fn read_rows(&mut self, after: Option<&[u8]>, most: usize) -> Result<Rows, CommitError> {
        let Some(database) = &self.database else { return Ok(Rows { ended: true, ..Rows::default() }) };
        guarded(|| {
            let keys = database.begin_read()?.open_table(KEYS)?;
            let mut read = Rows { ended: true, ..Rows::default() };
            for row in keys.range::<&[u8]>((bound(after), Bound::Unbounded))? {
                if read.bytes >= most as u64 {
                    read.ended = false;
                    break;
                }
                let (key, row) = row?;
                let (key, row) = (key.value(), row.value());
                read.bytes += (key.len() + row.len()) as u64;
                let decoded = codec::decode_key_value(key, row).map_err(|error| error.to_string());
                read.rows.push((bytes::Bytes::copy_from_slice(key), decoded));
            }
            Ok(read)
        })
    }

    fn raw(&self) -> Option<Arc<dyn RawFile>> {
        self.raw.clone()
    }

    /// Closes the database. redb does not report errors while it closes; the reserve file has recorded them.
    fn close(self) -> Result<(), CommitError> {
        let Some(database) = self.database else { return Ok(()) };
        self.reserve.take_failure();
        guarded(|| {
            drop(database);
            Ok(())
        })?;
        self.reserve.take_failure().map_or(Ok(()), |why| Err(CommitError::Failed(why)))
    }

    fn room(&mut self) -> Room {
        self.reserve.refill();
        self.reserve.room()
    }
}

fn mark_of(database: &Database) -> Result<Mark, redb::Error> {
    let meta = database.begin_read()?.open_table(META)?;
    let number = |name| Ok::<_, redb::Error>(meta.get(name)?.map_or(0, |number| number.value()));
    Ok(Mark { batch: number(META_BATCH)?, revision: number(META_REVISION)? })
}

/// Runs a step on the database; redb panics on some damaged files.
fn guarded<T>(step: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, CommitError> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(redb::Error::Io(error))) if is_full(&error) => Err(CommitError::NoSpace(error.to_string())),
        Ok(Err(error)) => Err(CommitError::Failed(error.to_string())),
        Err(_) => Err(CommitError::Failed("the database cannot be used".to_owned())),
    }
}
