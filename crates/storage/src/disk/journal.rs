//! Writes batches: one database transaction, one fsync each.

use redb::{Database, TableDefinition};

use super::codec;
use crate::engine::Journal;
use crate::engine::batch::Batch;

/// The keys as they stand.
pub(super) const KEYS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("keys");
/// How to undo each revision since the last compaction.
pub(super) const LOG: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("log");
/// Leases and their time to live in seconds.
pub(super) const LEASES: TableDefinition<'static, u64, u64> = TableDefinition::new("leases");
pub(super) const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");

pub(super) const META_FORMAT: &str = "format";
pub(super) const META_REVISION: &str = "revision";
pub(super) const META_COMPACTED: &str = "compacted";
pub(super) const META_LAST_LEASE: &str = "last_lease";

#[derive(Debug)]
pub(crate) struct RedbJournal {
    database: Database,
    row: Vec<u8>,
}

impl RedbJournal {
    pub(super) fn new(database: Database) -> Self {
        Self { database, row: Vec::new() }
    }

    fn write(&mut self, batch: &Batch) -> Result<(), redb::Error> {
        let txn = self.database.begin_write()?;
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
            meta.insert(META_REVISION, batch.revision)?;
            meta.insert(META_COMPACTED, batch.compacted)?;
            meta.insert(META_LAST_LEASE, batch.last_lease)?;
        }
        // The default durability: returns after the fsync.
        txn.commit()?;
        // A reserve for the usual row; one giant value need not be held for good.
        self.row.shrink_to(64 * 1024);
        Ok(())
    }
}

impl Journal for RedbJournal {
    fn commit(&mut self, batch: &Batch) -> Result<(), String> {
        self.write(batch).map_err(|error| error.to_string())
    }
}
