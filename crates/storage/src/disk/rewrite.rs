//! Writes a new store from everything that could be read of a damaged file, and replaces the file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use redb::Database;

use super::check::{self, Checked, Fault};
use super::codec;
use super::file::{OpenError, file, guarded};
use super::journal::{KEYS, LEASES};
use super::overlay::Unread;
use super::restore::{begin, create, seal};
use crate::types::{KeyValue, LeaseId};

/// The name of the new file until it is complete.
const NEW_NAME: &str = "store.redb.repaired";
/// The number of bytes of rows in one database transaction.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// The time to live of a lease that was lost. Keys with a lease are temporary: events last an hour, servers' addresses
/// less.
const LOST_LEASE_SECONDS: u64 = 3600;

/// Why a store was not repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the store cannot be repaired: {0}")]
    Unreadable(String),
    #[error("what there is could not be kept beforehand")]
    Keep(#[source] io::Error),
    #[error("cannot write the repaired store")]
    Database(#[source] redb::Error),
    #[error("cannot put the repaired store in its place")]
    Io(#[source] io::Error),
    #[error("the repaired store is not in order: {0}")]
    Failed(String),
}

/// Repairs the store in a folder and returns the repaired faults. `keep` is called before anything is written, while
/// the file is locked. All keys keep their values and revisions.
pub(crate) fn repair(
    dir: &Path,
    keep: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<Vec<Fault>, RepairError> {
    let path = file(dir);
    let found = check::check(dir)?;
    if let Some(fault) = found.faults.iter().find(|f| f.kind == check::FaultKind::Unreadable) {
        return Err(RepairError::Unreadable(fault.reason.clone()));
    }
    let mended: Vec<Fault> = found.faults.iter().filter(|f| f.repair().is_some()).cloned().collect();
    if mended.is_empty() {
        return Ok(mended);
    }
    // The lock is held until the new file has replaced the old one, so that no server starts on the old one.
    let locked = check::open(&path, Unread::default())?;
    let replaced = guarded(&path, || check::rows(&locked, &path))
        .map_err(RepairError::from)
        .and_then(|found| replace(dir, &path, found, keep));
    // Faults of the old file no longer matter.
    let _ = check::close(locked, &path);
    replaced.map(|()| mended)
}

fn replace(
    dir: &Path,
    path: &Path,
    found: Checked,
    keep: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), RepairError> {
    keep(path).map_err(RepairError::Keep)?;
    let new = dir.join(NEW_NAME);
    remove(&new).map_err(RepairError::Io)?;
    let made = make(dir, &new, found).and_then(|()| fs::rename(&new, path).map_err(RepairError::Io));
    if made.is_err() {
        // On a full disk, the incomplete file would keep a server from using the store as it is.
        let _ = fs::remove_file(&new);
    }
    made?;
    let sync = || File::open(dir)?.sync_all();
    sync().map_err(RepairError::Io)
}

/// Writes the new file, and checks it.
fn make(dir: &Path, new: &Path, found: Checked) -> Result<(), RepairError> {
    write(dir, new, &mend(found)?)?;
    let left = check::check_file(new)?;
    match left.faults.iter().find(|fault| fault.kind != check::FaultKind::Key) {
        Some(fault) => Err(RepairError::Failed(fault.reason.clone())),
        None => Ok(()),
    }
}

/// Returns the content to write instead: no key is removed, and no revision decreases.
fn mend(mut found: Checked) -> Result<Checked, RepairError> {
    let newest = found.kvs.iter().map(|kv| kv.mod_revision).max().unwrap_or(0);
    // Clients treat revisions as signed numbers.
    if newest.max(found.revision) > i64::MAX as u64 / 2 {
        return Err(RepairError::Unreadable(format!("it holds revision {newest}")));
    }
    found.revision = found.revision.max(newest);
    for kv in &mut found.kvs {
        if kv.create_revision == 0 || kv.create_revision > kv.mod_revision {
            kv.create_revision = kv.mod_revision;
        }
        kv.version = kv.version.clamp(1, kv.mod_revision - kv.create_revision + 1);
        if let Some(lease) = kv.lease {
            found.leases.entry(lease).or_insert(LOST_LEASE_SECONDS);
        }
    }
    let highest = found.leases.last_key_value().map_or(0, |(id, _)| id.get());
    found.last_lease = found.last_lease.max(highest);
    Ok(found)
}

fn write(dir: &Path, path: &Path, contents: &Checked) -> Result<(), RepairError> {
    let database = create(dir, path)?;
    let write = || -> Result<(), redb::Error> {
        begin(&database, contents.revision)?;
        put_leases(&database, &contents.leases)?;
        let mut rest = contents.kvs.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |kv: &&KeyValue| {
                bytes += kv.key.len() + kv.value.len();
                bytes <= BATCH_BYTES
            };
            let (batch, left) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            put_keys(&database, batch)?;
            rest = left;
        }
        seal(&database, contents.revision, contents.last_lease)
    };
    write().map_err(RepairError::Database)
}

fn put_leases(database: &Database, leases: &BTreeMap<LeaseId, u64>) -> Result<(), redb::Error> {
    let txn = database.begin_write()?;
    {
        let mut table = txn.open_table(LEASES)?;
        for (id, ttl_seconds) in leases {
            table.insert(id.get(), ttl_seconds)?;
        }
        txn.open_table(KEYS)?;
    }
    txn.commit()?;
    Ok(())
}

fn put_keys(database: &Database, kvs: &[KeyValue]) -> Result<(), redb::Error> {
    let txn = database.begin_write()?;
    {
        let mut table = txn.open_table(KEYS)?;
        let mut row = Vec::new();
        for kv in kvs {
            codec::encode_key_value(&mut row, kv);
            table.insert(&kv.key[..], &row[..])?;
        }
    }
    txn.commit()?;
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
