//! Checks the file of a store that is not in use: finds what is damaged, and what of that a rewrite would repair.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;

use bytes::Bytes;
use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend};

use super::file::{OpenError, database_error, file, guarded};
use super::journal::{KEYS, LEASES};
use super::load::{self, Damage, LoadError, Loaded};
use super::overlay::{Overlay, Unread};
use crate::engine::state::{Scan, State};
use crate::types::{KeyRange, KeyValue, LeaseId, damage};

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The file, or rows of it, cannot be read.
    Unreadable,
    /// Pages do not match their checksums, or the records of free pages are wrong. All rows can be read.
    Pages,
    /// A key whose row cannot be read, or whose acknowledged write is missing.
    Key,
    /// The log does not cover the revisions from the last compaction to the newest.
    History,
    /// Numbers that contradict each other.
    Numbers,
    /// A key with a lease that does not exist.
    Lease,
}

/// A fault of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    /// The key that has the fault, if it is about one.
    pub key: Option<Bytes>,
    pub reason: String,
}

impl Fault {
    fn of(kind: FaultKind, reason: String) -> Self {
        Self { kind, key: None, reason }
    }

    fn about(kind: FaultKind, key: &Bytes, reason: String) -> Self {
        Self { kind, key: Some(key.clone()), reason }
    }

    /// What a repair does about the fault; `None` if nothing.
    pub fn repair(&self) -> Option<&'static str> {
        match self.kind {
            FaultKind::Pages => Some("the file is written anew"),
            FaultKind::History => Some("the history is dropped; watches from before start anew"),
            FaultKind::Numbers => Some("the numbers are set from what is there"),
            FaultKind::Lease => Some("the lease is made anew for an hour, after which the key goes"),
            FaultKind::Unreadable | FaultKind::Key => None,
        }
    }
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct Checked {
    pub faults: Vec<Fault>,
    pub revision: u64,
    /// The keys that could be read, with placeholders for those that are set aside.
    pub kvs: Vec<KeyValue>,
    pub(super) leases: BTreeMap<LeaseId, u64>,
    pub(super) last_lease: u64,
}

impl Checked {
    /// Returns whether nothing in the file can be relied on.
    pub fn is_unreadable(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind == FaultKind::Unreadable)
    }
}

/// Checks the store in a folder. Changes nothing. No server may use the store at the same time.
pub(crate) fn check(dir: &Path) -> Result<Checked, OpenError> {
    check_file(&file(dir))
}

pub(super) fn check_file(path: &Path) -> Result<Checked, OpenError> {
    check_with(path, &|unread| open(path, unread))
}

type Open<'a> = &'a dyn Fn(Unread) -> Result<Database, OpenError>;

pub(super) fn check_with(path: &Path, open: Open<'_>) -> Result<Checked, OpenError> {
    let mut faults = Vec::new();
    let unread = Unread::default();
    let open = || open(unread.clone());
    // On the unchanged file: after a failed check of the pages, redb no longer reads from that database.
    match with_database(path, &open, |database| pages(database, path)) {
        Ok((true, true)) => {}
        Ok(_) => {
            let reason = "pages do not match their checksums, or free pages are not known for what they are";
            faults.push(Fault::of(FaultKind::Pages, reason.to_owned()));
        }
        Err(error) => faults.push(Fault::of(FaultKind::Pages, corruption(error)?)),
    }
    let found = with_database(path, &open, |database| rows(database, path));
    let of_disk = unread.words().into_iter().map(|reason| Fault::of(FaultKind::Pages, reason));
    match found {
        Ok((checked, _)) => {
            faults.splice(0..0, of_disk);
            Ok(Checked { faults: [faults, checked.faults].concat(), ..checked })
        }
        Err(error) => {
            let reason = Fault::of(FaultKind::Unreadable, corruption(error)?);
            Ok(Checked { faults: of_disk.chain([reason]).collect(), ..Checked::default() })
        }
    }
}

/// Returns the reason if the error is damage. If the file cannot be used at all, that remains an error.
fn corruption(error: OpenError) -> Result<String, OpenError> {
    match error {
        OpenError::Corrupt { reason, .. } => Ok(reason),
        error => Err(error),
    }
}

/// Runs a step on the database. Returns its result, and whether the database could be closed: redb panics on some
/// damaged files.
fn with_database<T>(
    path: &Path,
    open: &dyn Fn() -> Result<Database, OpenError>,
    step: impl FnOnce(&mut Database) -> Result<T, OpenError>,
) -> Result<(T, bool), OpenError> {
    let mut database = open()?;
    let result = guarded(path, || step(&mut database));
    let closed = close(database, path).is_ok();
    Ok((result?, closed))
}

pub(super) fn close(database: Database, path: &Path) -> Result<(), OpenError> {
    guarded(path, || {
        drop(database);
        Ok(())
    })
}

/// Opens the database with its lock, so that nothing that is written reaches the disk.
pub(super) fn open(path: &Path, unread: Unread) -> Result<Database, OpenError> {
    let io_error = |source| OpenError::Io { path: path.to_owned(), source };
    // Locking requires a file that is open for writing.
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error)?;
    if file.metadata().map_err(io_error)?.len() == 0 {
        return Err(OpenError::Corrupt { path: path.to_owned(), reason: "the file is empty".to_owned() });
    }
    guarded(path, || {
        let file = FileBackend::new(file).map_err(|error| database_error(path, error))?;
        open_on(path, file, unread)
    })
}

pub(super) fn open_on(path: &Path, file: impl StorageBackend, unread: Unread) -> Result<Database, OpenError> {
    let io_error = |source| OpenError::Io { path: path.to_owned(), source };
    let overlay = Overlay::new(file, unread).map_err(io_error)?;
    redb::Builder::new().create_with_backend(overlay).map_err(|error| database_error(path, error))
}

fn pages(database: &mut Database, path: &Path) -> Result<bool, OpenError> {
    database.check_integrity().map_err(|error| database_error(path, error))
}

pub(super) fn rows(database: &Database, path: &Path) -> Result<Checked, OpenError> {
    let corrupt = |error: LoadError| match error {
        LoadError::Format(found) => {
            OpenError::Format { path: path.to_owned(), found, supported: super::FORMAT }
        }
        error => OpenError::Corrupt { path: path.to_owned(), reason: error.to_string() },
    };
    load::prepare(database).map_err(corrupt)?;
    let Loaded { state, damage, .. } = load::read(database).map_err(corrupt)?;
    let missing = missing(database, &state, &damage).map_err(corrupt)?;
    let mut checked = Checked {
        faults: missing,
        revision: state.revision(),
        kvs: kvs(&state),
        leases: state.leases().iter().map(|(id, lease)| (*id, lease.ttl_seconds)).collect(),
        last_lease: state.last_lease(),
    };
    checked.faults.extend(of_damage(&damage, checked.revision));
    checked.faults.extend(contradictions(&checked));
    Ok(checked)
}

fn kvs(state: &State) -> Vec<KeyValue> {
    let mut scan = Scan::new(KeyRange::all(), state.revision(), usize::MAX, false);
    state.scan(&mut scan, usize::MAX);
    scan.kvs
}

/// Finds rows that the tables count but that cannot be reached.
fn missing(database: &Database, state: &State, damage: &Damage) -> Result<Vec<Fault>, LoadError> {
    let txn = database.begin_read()?;
    let (keys, leases) = (txn.open_table(KEYS)?, txn.open_table(LEASES)?);
    let mut faults = Vec::new();
    for (table, error) in &damage.unreadable {
        let kind = if *table == "log" { FaultKind::History } else { FaultKind::Unreadable };
        faults.push(Fault::of(kind, format!("rows of the table {table} cannot be reached: {error}")));
    }
    let is_whole = |table: &str| damage.unreadable.iter().all(|(other, _)| *other != table);
    let reached = keys.iter()?.take_while(Result::is_ok).count() as u64;
    for (table, said, reached) in
        [("keys", keys.len()?, reached), ("leases", leases.len()?, state.leases().len() as u64)]
    {
        if is_whole(table) && said != reached {
            let reason = format!("{reached} of the {said} rows of the table {table} are reached");
            faults.push(Fault::of(FaultKind::Unreadable, reason));
        }
    }
    Ok(faults)
}

fn of_damage(damage: &Damage, revision: u64) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some((found, newest)) = damage.ahead {
        let reason = format!("the log holds revision {found}, but the newest one is said to be {newest}");
        faults.push(Fault::of(FaultKind::Numbers, reason));
    }
    if let Some(lost) = damage.history_lost {
        let place = load::place(lost, revision);
        let reason =
            format!("the record of revision {lost} in the {place} of the log is damaged: {}", damage.reason);
        faults.push(Fault::of(FaultKind::History, reason));
    }
    let keys = damage.keys.iter();
    faults.extend(keys.map(|(key, reason)| Fault::about(FaultKind::Key, key, reason.clone())));
    faults
}

/// Checks each key against the store's numbers and leases.
fn contradictions(checked: &Checked) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some((highest, _)) = checked.leases.last_key_value()
        && highest.get() > checked.last_lease
    {
        let reason = format!("lease {highest} exists, but the last one is said to be {}", checked.last_lease);
        faults.push(Fault::of(FaultKind::Numbers, reason));
    }
    for kv in &checked.kvs {
        if let Some(reason) = damage(&kv.value) {
            let is_known = |f: &Fault| f.kind == FaultKind::Key && f.key.as_ref() == Some(&kv.key);
            if !checked.faults.iter().any(is_known) {
                faults.push(Fault::about(FaultKind::Key, &kv.key, reason.to_owned()));
            }
            continue;
        }
        let number = |reason| Fault::about(FaultKind::Numbers, &kv.key, reason);
        let (created, written) = (kv.create_revision, kv.mod_revision);
        if written > checked.revision {
            let newest = checked.revision;
            faults.push(number(format!("it is of revision {written}, and the newest one is {newest}")));
        } else if created > written || created == 0 {
            faults.push(number(format!("it was created by revision {created} and written by {written}")));
        } else if kv.version == 0 || kv.version > written - created + 1 {
            let version = kv.version;
            faults.push(number(format!("it is version {version} between revisions {created} and {written}")));
        }
        if let Some(lease) = kv.lease.filter(|lease| !checked.leases.contains_key(lease)) {
            let reason = format!("it is under lease {lease}, which does not exist: it would stay for good");
            faults.push(Fault::about(FaultKind::Lease, &kv.key, reason));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &'static str, created: u64, written: u64, version: u64, lease: u64) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: "v".into(),
            create_revision: created,
            mod_revision: written,
            version,
            lease: LeaseId::new(lease),
        }
    }

    #[test]
    fn keys_are_held_against_the_numbers() {
        let lease = LeaseId::new(4).unwrap();
        for (kv, expected) in [
            (kv("a", 2, 9, 8, 4), None),
            (kv("a", 2, 2, 1, 0), None),
            (kv("a", 2, 11, 1, 0), Some((FaultKind::Numbers, "newest one is 10"))),
            (kv("a", 9, 2, 1, 0), Some((FaultKind::Numbers, "created by revision 9"))),
            (kv("a", 0, 2, 1, 0), Some((FaultKind::Numbers, "created by revision 0"))),
            (kv("a", 2, 3, 3, 0), Some((FaultKind::Numbers, "version 3"))),
            (kv("a", 2, 3, 0, 0), Some((FaultKind::Numbers, "version 0"))),
            (kv("a", 2, 3, 1, 5), Some((FaultKind::Lease, "under lease 5"))),
        ] {
            let shown = format!("{kv:?}");
            let leases = BTreeMap::from([(lease, 60)]);
            let checked = Checked { revision: 10, kvs: vec![kv], leases, last_lease: 4, faults: Vec::new() };
            let found = contradictions(&checked);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{shown}: {found:?}");
            if let Some((kind, reason)) = expected {
                assert_eq!(found[0].kind, kind, "{shown}");
                assert!(found[0].reason.contains(reason), "{shown}: {}", found[0].reason);
            }
        }
        let leases = BTreeMap::from([(lease, 60)]);
        let behind = Checked { leases, last_lease: 3, ..Checked::default() };
        assert_eq!(contradictions(&behind)[0].kind, FaultKind::Numbers);
    }
}
