//! Reads a database back into a state: the keys as they stand, then the log backwards to the last
//! compaction, then forwards again as if it happened now.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableHandle};

use super::FORMAT;
use super::codec::{self, CodecError, Undo};
use super::journal::{KEYS, LEASES, LOG, META, META_COMPACTED, META_FORMAT, META_LAST_LEASE, META_REVISION};
use crate::engine::batch::tombstone;
use crate::engine::state::{Commit, FIRST_REVISION, State};
use crate::types::{Event, EventKind, KeyValue, LeaseId};

#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("unknown format {0}")]
    Format(u64),
    #[error("it is a database, but not a Knarr store")]
    Foreign,
    #[error("{0}")]
    Row(#[from] CodecError),
    #[error("revision {0} is missing from the log")]
    Gap(u64),
    #[error("revision {0} of the log does not fit the keys")]
    Mismatch(u64),
    #[error("a lease has the number 0")]
    Lease,
    #[error("{0}")]
    Database(#[from] redb::Error),
}

macro_rules! from_redb {
    ($($error:ty),*) => {$(
        impl From<$error> for LoadError {
            fn from(error: $error) -> Self {
                Self::Database(error.into())
            }
        }
    )*};
}
from_redb!(redb::TransactionError, redb::TableError, redb::StorageError, redb::CommitError);

type Keys = BTreeMap<Bytes, KeyValue>;

pub(super) fn load(database: &Database) -> Result<State, LoadError> {
    prepare(database)?;
    let txn = database.begin_read()?;
    let meta = txn.open_table(META)?;
    let number = |name| -> Result<u64, LoadError> {
        meta.get(name)?.map(|number| number.value()).ok_or(LoadError::Foreign)
    };
    let (revision, compacted) = (number(META_REVISION)?, number(META_COMPACTED)?);
    let last_lease = number(META_LAST_LEASE)?;

    let mut leases = Vec::new();
    for row in txn.open_table(LEASES)?.iter()? {
        let (id, ttl_seconds) = row?;
        leases.push((LeaseId::new(id.value()).ok_or(LoadError::Lease)?, ttl_seconds.value()));
    }
    let mut keys = Keys::new();
    for row in txn.open_table(KEYS)?.iter()? {
        let (key, row) = row?;
        let kv = codec::decode_key_value(key.value(), row.value())?;
        keys.insert(kv.key.clone(), kv);
    }
    let base = compacted.max(FIRST_REVISION);
    let mut commits = Vec::new();
    let mut expected = revision;
    for row in txn.open_table(LOG)?.range(base.saturating_add(1)..)?.rev() {
        let (at, row) = row?;
        if at.value() != expected || expected <= base {
            return Err(LoadError::Gap(expected));
        }
        commits.push(go_back(&mut keys, expected, codec::decode_undo(expected, row.value())?)?);
        expected -= 1;
    }
    if expected != base {
        return Err(LoadError::Gap(expected));
    }
    let mut state = State::restore(base, compacted, last_lease, leases, keys.into_values());
    for commit in commits.into_iter().rev() {
        state.apply_commit(&Arc::new(commit));
    }
    Ok(state)
}

/// Makes a new database into a store, or sees that it is one of ours.
fn prepare(database: &Database) -> Result<(), LoadError> {
    let txn = database.begin_read()?;
    let tables: Vec<String> = txn.list_tables()?.map(|table| table.name().to_owned()).collect();
    if !tables.is_empty() {
        if !tables.iter().any(|table| table == META.name()) {
            return Err(LoadError::Foreign);
        }
        let format = txn.open_table(META)?.get(META_FORMAT)?.map(|format| format.value());
        return match format {
            Some(FORMAT) => Ok(()),
            Some(other) => Err(LoadError::Format(other)),
            None => Err(LoadError::Foreign),
        };
    }
    drop(txn);
    let txn = database.begin_write()?;
    {
        txn.open_table(KEYS)?;
        txn.open_table(LOG)?;
        txn.open_table(LEASES)?;
        let mut meta = txn.open_table(META)?;
        meta.insert(META_FORMAT, FORMAT)?;
        meta.insert(META_REVISION, FIRST_REVISION)?;
        meta.insert(META_COMPACTED, 0)?;
        meta.insert(META_LAST_LEASE, 0)?;
    }
    txn.commit()?;
    Ok(())
}

/// Takes one revision out of the keys and answers what it had done.
fn go_back(keys: &mut Keys, revision: u64, undo: Vec<Undo>) -> Result<Commit, LoadError> {
    let mut events = Vec::with_capacity(undo.len());
    for Undo { kind, key, prev } in undo {
        let written = keys.remove(&key);
        let kv = match (kind, written) {
            (EventKind::Put, Some(kv)) if kv.mod_revision == revision => kv,
            (EventKind::Delete, None) if prev.is_some() => tombstone(key.clone(), revision),
            _ => return Err(LoadError::Mismatch(revision)),
        };
        if let Some(prev) = &prev {
            keys.insert(key, prev.clone());
        }
        events.push(Event { kind, kv, prev });
    }
    Ok(Commit { revision, events })
}
