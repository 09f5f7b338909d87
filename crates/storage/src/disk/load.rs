//! Loads the state from a database: first the current keys, then the log backwards to the last compaction, then
//! forwards again as if the commits happened now. Damaged rows are set aside: a key gets a placeholder, and the history
//! starts after a log record that cannot be read.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, ReadableTable, TableHandle};

use super::codec::{self, Undo};
use super::journal::{KEYS, LEASES, LOG, META, META_COMPACTED, META_FORMAT, META_LAST_LEASE, META_REVISION};
use super::migrate::{self, FORMAT};
use crate::engine::batch::tombstone;
use crate::engine::state::{Commit, FIRST_REVISION, State};
use crate::types::{Event, EventKind, KeyValue, LeaseId, damaged_value};

#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("unknown format {0}")]
    Format(u64),
    #[error("it is a database, but not a Knarr store")]
    Foreign,
    #[error("the log holds revision {found}, but the newest one is said to be {newest}")]
    Ahead { found: u64, newest: u64 },
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

/// Loads the state from a database that will be written to. Damage that makes the state unreliable is an error.
pub(super) fn load(database: &Database) -> Result<State, LoadError> {
    prepare(database)?;
    let Loaded { state, mut damage, compacted } = read(database)?;
    if let Some((_, error)) = damage.unreadable.pop() {
        return Err(error.into());
    }
    // Continuing from an older revision would treat acknowledged writes as if they had never been made.
    if let Some((found, newest)) = damage.ahead {
        return Err(LoadError::Ahead { found, newest });
    }
    damage.report(state.revision(), compacted);
    Ok(state)
}

/// The content of a database, and everything that is wrong with it.
pub(super) struct Loaded {
    pub(super) state: State,
    pub(super) damage: Damage,
    /// The compaction before any history was lost to damage.
    pub(super) compacted: u64,
}

/// Reads as much of a prepared database as can be read.
pub(super) fn read(database: &Database) -> Result<Loaded, LoadError> {
    let txn = database.begin_read()?;
    let meta = txn.open_table(META)?;
    let number = |name| -> Result<u64, LoadError> {
        meta.get(name)?.map(|number| number.value()).ok_or(LoadError::Foreign)
    };
    let (mut revision, compacted) = (number(META_REVISION)?, number(META_COMPACTED)?);
    let last_lease = number(META_LAST_LEASE)?;

    let base = compacted.max(FIRST_REVISION);
    let mut found = Found { keys: Keys::new(), damage: Damage::default() };
    let mut leases = Vec::new();
    for row in txn.open_table(LEASES)?.iter()? {
        match row {
            Ok((id, ttl_seconds)) => {
                leases.push((LeaseId::new(id.value()).ok_or(LoadError::Lease)?, ttl_seconds.value()));
            }
            Err(error) => {
                found.damage.unreadable.push(("leases", error.into()));
                break;
            }
        }
    }
    for row in txn.open_table(KEYS)?.iter()? {
        let (key, row) = match row {
            Ok(row) => row,
            Err(error) => {
                found.damage.unreadable.push(("keys", error.into()));
                break;
            }
        };
        let key = Bytes::copy_from_slice(key.value());
        match codec::decode_key_value(&key, row.value()) {
            Ok(kv) => drop(found.keys.insert(key, kv)),
            Err(error) => found.set_aside(&key, base, &error.to_string()),
        }
    }
    let log = txn.open_table(LOG)?;
    let newest = log.last()?.map_or(base, |(at, _)| at.value().max(base));
    if newest > revision {
        found.damage.ahead = Some((newest, revision));
        revision = newest;
    }
    let (base, commits) = found.walk_back(&log, base, revision);
    let Found { keys, damage } = found;
    let history = compacted.max(damage.history_lost.unwrap_or(0));
    let mut state = State::restore(base, history, last_lease, leases, keys.into_values());
    for commit in commits.into_iter().rev() {
        state.apply_commit(&Arc::new(commit));
    }
    Ok(Loaded { state, damage, compacted })
}

/// The readable content of a file.
struct Found {
    keys: Keys,
    damage: Damage,
}

impl Found {
    /// Replaces an unreadable key with a placeholder, so that it is visible and can be deleted.
    fn set_aside(&mut self, key: &Bytes, revision: u64, reason: &str) {
        self.keys.insert(key.clone(), placeholder(key, revision, reason));
        self.damage.keys.insert(key.clone(), reason.to_owned());
    }

    /// Undoes one revision after the other in the keys, down to `base` or to the first record that cannot be read: the
    /// state before that is unknown, the history after it is complete. Returns the revision where it stopped and the
    /// commits it undid.
    fn walk_back(
        &mut self,
        log: &impl ReadableTable<u64, &'static [u8]>,
        base: u64,
        revision: u64,
    ) -> (u64, Vec<Commit>) {
        let mut commits = Vec::new();
        for at in (base.saturating_add(1)..=revision).rev() {
            let undo = match log.get(at) {
                Ok(Some(row)) => codec::decode_undo(at, row.value()).map_err(|error| error.to_string()),
                Ok(None) => Err("it is missing".to_owned()),
                Err(error) => {
                    let reason = error.to_string();
                    self.damage.unreadable.push(("log", error.into()));
                    Err(reason)
                }
            };
            match undo {
                Ok(undo) if self.fits(at, &undo) => commits.push(go_back(&mut self.keys, at, undo)),
                Ok(undo) => {
                    self.mark_misfits(at, &undo);
                    self.damage.lose_history(at, "it does not fit the keys".to_owned());
                    return (at, commits);
                }
                Err(reason) => {
                    self.damage.lose_history(at, reason);
                    return (at, commits);
                }
            }
        }
        (base, commits)
    }

    fn fits(&mut self, revision: u64, undo: &[Undo]) -> bool {
        for event in undo {
            // The revision of a damaged key is unknown; it gets that of the last event that wrote it.
            if event.kind == EventKind::Put
                && self.damage.keys.contains_key(&event.key)
                && let Some(kv) = self.keys.get_mut(&event.key)
                && kv.mod_revision != revision
                && crate::types::damage(&kv.value).is_some()
            {
                kv.mod_revision = revision;
                kv.create_revision = event.prev.as_ref().map_or(revision, |prev| prev.create_revision);
                kv.version = event.prev.as_ref().map_or(1, |prev| prev.version + 1);
            }
        }
        undo.iter().all(|event| fits(&self.keys, revision, event))
    }

    /// Sets aside the keys of an acknowledged write that is not stored as written: it must not go unnoticed.
    fn mark_misfits(&mut self, revision: u64, undo: &[Undo]) {
        for event in undo.iter().filter(|event| !fits(&self.keys, revision, event)).collect::<Vec<_>>() {
            let what = if event.kind == EventKind::Put { "written" } else { "deleted" };
            let reason = format!("it was {what} by revision {revision}, which the keys do not show");
            self.set_aside(&event.key, revision, &reason);
        }
    }
}

/// Returns whether the key's state is the one after this event of that revision.
fn fits(keys: &Keys, revision: u64, event: &Undo) -> bool {
    match (event.kind, keys.get(&event.key)) {
        (EventKind::Put, Some(kv)) => kv.mod_revision == revision,
        (EventKind::Delete, None) => event.prev.is_some(),
        _ => false,
    }
}

fn placeholder(key: &Bytes, revision: u64, reason: &str) -> KeyValue {
    KeyValue {
        key: key.clone(),
        value: damaged_value(reason),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        lease: None,
    }
}

/// The damage found in a file.
#[derive(Debug, Default)]
pub(super) struct Damage {
    /// The keys that were set aside, with the reasons.
    pub(super) keys: BTreeMap<Bytes, String>,
    /// The revision of the damaged record after which the history starts, and the reason.
    pub(super) history_lost: Option<u64>,
    pub(super) reason: String,
    /// The newest revision in the log, and the lower one that is recorded as the newest.
    pub(super) ahead: Option<(u64, u64)>,
    /// Tables with rows that cannot be reached.
    pub(super) unreadable: Vec<(&'static str, redb::Error)>,
}

impl Damage {
    fn lose_history(&mut self, revision: u64, reason: String) {
        self.history_lost = Some(revision);
        self.reason = reason;
    }

    fn report(&self, revision: u64, compacted: u64) {
        if let Some(lost) = self.history_lost {
            let place = place(lost, revision);
            tracing::error!(
                revision = lost,
                newest = revision,
                compacted_before = compacted,
                reason = self.reason,
                "a record in the {place} of the store's log is damaged: the keys stand as they were written, the history \
                 up to this revision is dropped"
            );
        }
        for (key, reason) in &self.keys {
            let key = String::from_utf8_lossy(key);
            tracing::error!(%key, reason, "a key of the store is damaged and set aside");
        }
        if !self.keys.is_empty() {
            let keys = self.keys.len();
            tracing::error!(keys, "damaged keys were set aside; delete or restore what they are named after");
        }
    }
}

/// Only the newest record can be incomplete after a crash; all others were complete before.
pub(super) fn place(lost: u64, newest: u64) -> &'static str {
    if lost == newest { "tail" } else { "middle" }
}

/// Initializes a new database as a store, or checks that it is a Knarr store and migrates it to the current format.
pub(super) fn prepare(database: &Database) -> Result<(), LoadError> {
    let txn = database.begin_read()?;
    let tables: Vec<String> = txn.list_tables()?.map(|table| table.name().to_owned()).collect();
    if !tables.is_empty() {
        if !tables.iter().any(|table| table == META.name()) {
            return Err(LoadError::Foreign);
        }
        drop(txn);
        return migrate::migrate(database, migrate::STEPS);
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

/// Undoes one revision, which must fit, in the keys, and returns its commit.
fn go_back(keys: &mut Keys, revision: u64, undo: Vec<Undo>) -> Commit {
    let mut events = Vec::with_capacity(undo.len());
    for Undo { kind, key, prev } in undo {
        let kv = keys.remove(&key).unwrap_or_else(|| tombstone(key.clone(), revision));
        if let Some(prev) = &prev {
            keys.insert(key, prev.clone());
        }
        events.push(Event { kind, kv, prev });
    }
    Commit { revision, events }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_told_apart_from_the_middle() {
        for (lost, newest, expected) in [(9, 9, "tail"), (8, 9, "middle"), (2, 9, "middle")] {
            assert_eq!(place(lost, newest), expected);
        }
    }
}
