//! Writes a whole store at once, to restore a backup.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use redb::Database;

use super::codec;
use super::file::{OpenError, database_error, file, open_file};
use super::journal::{KEYS, LEASES, LOG, META, META_COMPACTED, META_FORMAT, META_LAST_LEASE, META_REVISION};
use super::migrate::FORMAT;
use crate::types::{KeyValue, LeaseId};

/// The number of bytes of rows in one database transaction.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// An entry to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Lease { id: LeaseId, ttl_seconds: u64 },
    Key { key: Bytes, value: Bytes, lease: Option<LeaseId> },
}

/// Why a store was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<E> {
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot write the store")]
    Database(#[source] redb::Error),
    /// The source of the entries failed.
    #[error(transparent)]
    Source(E),
}

/// Writes the store. Every key gets this revision; reads and watches before it are refused as compacted. The row
/// `format` is written last: without it the file is not a store.
pub(crate) fn write<E>(
    dir: &Path,
    revision: u64,
    entries: impl Iterator<Item = Result<Entry, E>>,
) -> Result<(), WriteError<E>> {
    let path = file(dir);
    if path.exists() {
        return Err(WriteError::Exists(path));
    }
    let database = create(dir, &path)?;
    begin(&database, revision).map_err(WriteError::Database)?;
    let mut last_lease = 0;
    let mut batch = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let entry = entry.map_err(WriteError::Source)?;
        match &entry {
            Entry::Lease { id, .. } => last_lease = last_lease.max(id.get()),
            Entry::Key { key, value, .. } => bytes += key.len() + value.len(),
        }
        batch.push(entry);
        if bytes >= BATCH_BYTES || batch.len() >= 65_536 {
            put(&database, revision, &batch).map_err(WriteError::Database)?;
            batch.clear();
            bytes = 0;
        }
    }
    put(&database, revision, &batch).map_err(WriteError::Database)?;
    seal(&database, revision, last_lease).map_err(WriteError::Database)
}

pub(super) fn create(dir: &Path, path: &Path) -> Result<Database, OpenError> {
    let io_error = |source: io::Error| OpenError::Io { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error)?;
    let opened = open_file(dir, path).map_err(io_error)?;
    redb::Builder::new().create_file(opened).map_err(|error| database_error(path, error))
}

/// Writes the first rows. An empty database would be taken for a new store; one with a revision but without a format is
/// refused.
pub(super) fn begin(database: &Database, revision: u64) -> Result<(), redb::Error> {
    let txn = database.begin_write()?;
    txn.open_table(META)?.insert(META_REVISION, revision)?;
    txn.commit()?;
    Ok(())
}

fn put(database: &Database, revision: u64, entries: &[Entry]) -> Result<(), redb::Error> {
    let txn = database.begin_write()?;
    {
        let (mut keys, mut leases) = (txn.open_table(KEYS)?, txn.open_table(LEASES)?);
        let mut row = Vec::new();
        for entry in entries {
            match entry {
                Entry::Lease { id, ttl_seconds } => drop(leases.insert(id.get(), ttl_seconds)?),
                Entry::Key { key, value, lease } => {
                    let kv = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        create_revision: revision,
                        mod_revision: revision,
                        version: 1,
                        lease: *lease,
                    };
                    codec::encode_key_value(&mut row, &kv);
                    keys.insert(&key[..], &row[..])?;
                }
            }
        }
    }
    txn.commit()?;
    Ok(())
}

pub(super) fn seal(database: &Database, revision: u64, last_lease: u64) -> Result<(), redb::Error> {
    let txn = database.begin_write()?;
    {
        txn.open_table(LOG)?;
        let mut meta = txn.open_table(META)?;
        meta.insert(META_REVISION, revision)?;
        meta.insert(META_COMPACTED, revision)?;
        meta.insert(META_LAST_LEASE, last_lease)?;
        meta.insert(META_FORMAT, FORMAT)?;
    }
    txn.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::TempDir;
    use super::*;
    use crate::{Embedded, Error, Options, Precondition, Store, WatchRequest, snapshot};

    fn entries() -> Vec<Result<Entry, String>> {
        let lease = LeaseId::new(5);
        let key = |key: &'static str, lease| {
            Ok(Entry::Key { key: key.into(), value: format!("{key}1").into(), lease })
        };
        let of = Entry::Lease { id: lease.unwrap(), ttl_seconds: 60 };
        vec![Ok(of), key("a", None), key("b", lease)]
    }

    #[tokio::test]
    async fn a_written_store_opens_with_everything_at_its_base() {
        let dir = TempDir::new();
        let revision = 1_000_000_007;
        Embedded::write(&dir.0, revision, entries().into_iter()).unwrap();
        for _ in 0..2 {
            let store = Embedded::open(&dir.0, Options::default()).unwrap();
            let taken = snapshot(&store).await.unwrap();
            assert_eq!(taken.revision, revision);
            assert_eq!(taken.leases.into_iter().collect::<Vec<_>>(), [(LeaseId::new(5).unwrap(), 60)]);
            assert!(taken.kvs.iter().all(|kv| kv.mod_revision == revision));
            let values: Vec<_> = taken.kvs.iter().map(|kv| &kv.value[..]).collect();
            assert_eq!(values, [b"a1", b"b1"]);
            let old = store.watch(WatchRequest::prefix("").after(7)).await;
            assert!(matches!(old, Err(Error::Compacted { .. })), "{old:?}");
        }
        let store = Embedded::open(&dir.0, Options::default()).unwrap();
        let next = store.put("a".into(), "2".into(), Precondition::ModRevision(revision), None).await;
        assert_eq!(next.unwrap().kv.mod_revision, revision + 1);
        assert_eq!(store.grant_lease(1).await.unwrap().get(), 6);
    }

    #[test]
    fn what_was_not_written_whole_is_no_store() {
        let dir = TempDir::new();
        let mut broken = entries();
        broken.push(Err("torn".to_owned()));
        let written = Embedded::write(&dir.0, 9, broken.into_iter());
        assert!(matches!(written, Err(WriteError::Source(reason)) if reason == "torn"));
        assert!(Embedded::open(&dir.0, Options::default()).is_err());
        let again = Embedded::write(&dir.0, 9, entries().into_iter());
        assert!(matches!(again, Err(WriteError::Exists(_))));
    }
}
