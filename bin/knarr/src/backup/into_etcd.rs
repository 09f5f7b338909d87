//! Restores a backup's keys into an etcd cluster, below a prefix that holds none.
//!
//! etcd assigns its own revisions, and may be younger than the cluster: the difference to the wanted revision
//! is stored as an offset, which servers add. While the keys are written, a mark keeps servers from starting.
//! Before the last transaction removes it, etcd's history is compacted, so that no watch starts from before
//! the restore.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use knarr_storage::{Compare, Entry, KeyRange, LeaseId, Op, Precondition, RangeRequest, Store};

use super::archive::{ArchiveError, Manifest};
use crate::store::{EtcdArgs, IDENTITY, OFFSET, RESTORING};

/// Below etcd's defaults of 128 operations and 1.5 MiB per request.
const BATCH_OPS: usize = 100;
const BATCH_BYTES: usize = 1024 * 1024;
/// The approximate size of an operation besides its key and value.
const OP_BYTES: usize = 64;

/// Restores the keys; every key gets a revision above `revision`.
pub fn restore(
    etcd: &EtcdArgs,
    entries: impl Iterator<Item = Result<Entry, ArchiveError>>,
    manifest: &Manifest,
    revision: u64,
) -> Result<()> {
    let runtime = crate::memory::runtime()?;
    runtime.block_on(async {
        let store = etcd.connect_plain()?;
        let started = begin(&*store, etcd.prefix()).await?;
        let written = write(&store, entries, manifest, revision.saturating_sub(started)).await;
        if written.is_err() {
            clear(&*store).await.with_context(|| {
                format!("cannot delete what was restored: delete all keys below {}/ in etcd", etcd.prefix())
            })?;
        }
        written?;
        open(&*store).await.with_context(|| {
            format!(
                "all is written, and the mark is not taken off: delete all keys below {}/ in etcd",
                etcd.prefix()
            )
        })
    })
}

/// Writes the mark below an empty prefix; returns etcd's revision.
async fn begin(store: &dyn Store, prefix: &str) -> Result<u64> {
    let all = RangeRequest::new(KeyRange::all());
    let held = store.range(all.limit(0)).await.context("cannot use etcd")?.remaining;
    if held > 0 {
        bail!("etcd holds {held} keys below {prefix}: choose another --etcd-prefix, or delete them");
    }
    let absent = [RESTORING, IDENTITY]
        .map(|key| Compare { key: Bytes::from_static(key), condition: Precondition::NotExists });
    let mark = Op::Put { key: Bytes::from_static(RESTORING), value: Bytes::new(), lease: None };
    let marked = store.txn(absent.to_vec(), vec![mark]).await;
    Ok(marked.context("etcd is no longer empty")?.revision)
}

/// Writes everything except the removal of the mark, and compacts the history before it.
async fn write(
    store: &Arc<dyn Store>,
    entries: impl Iterator<Item = Result<Entry, ArchiveError>>,
    manifest: &Manifest,
    offset: u64,
) -> Result<()> {
    let mut leases = BTreeMap::new();
    let mut batch = Batch::default();
    for entry in entries {
        match entry? {
            Entry::Lease { id, ttl_seconds } => {
                let granted = store.grant_lease(ttl_seconds).await.context("cannot grant a lease in etcd")?;
                leases.insert(id, granted);
            }
            Entry::Key { key, value, lease } => {
                let lease = lease.map(|id| granted(&leases, id)).transpose()?;
                if !batch.has_room(&key, &value) {
                    batch.send(&**store).await?;
                }
                batch.push(Op::Put { key, value, lease });
            }
        }
    }
    batch.send(&**store).await?;
    let put = |key, value: String| Op::Put { key: Bytes::from_static(key), value: value.into(), lease: None };
    let mut last = vec![put(IDENTITY, manifest.cluster_identity.clone())];
    if offset > 0 {
        last.push(put(OFFSET, offset.to_string()));
    }
    let revision = store.txn(Vec::new(), last).await.context("cannot write to etcd")?.revision;
    store.compact(revision).await.context("cannot compact etcd")
}

/// Removes the mark, so that servers may start.
async fn open(store: &dyn Store) -> Result<()> {
    store.delete(Bytes::from_static(RESTORING), Precondition::Any).await.context("cannot write to etcd")?;
    Ok(())
}

fn granted(leases: &BTreeMap<LeaseId, LeaseId>, id: LeaseId) -> Result<LeaseId> {
    leases
        .get(&id)
        .copied()
        .with_context(|| format!("the backup holds no lease {id}, which one of its keys has"))
}

/// Keys that are written in one transaction.
#[derive(Default)]
struct Batch {
    ops: Vec<Op>,
    bytes: usize,
}

impl Batch {
    /// Returns whether the batch has room. The first key always fits; etcd itself refuses it if it is too
    /// large.
    fn has_room(&self, key: &[u8], value: &[u8]) -> bool {
        let bytes = self.bytes + OP_BYTES + key.len() + value.len();
        self.ops.is_empty() || (self.ops.len() < BATCH_OPS && bytes <= BATCH_BYTES)
    }

    fn push(&mut self, op: Op) {
        if let Op::Put { key, value, .. } = &op {
            self.bytes += OP_BYTES + key.len() + value.len();
        }
        self.ops.push(op);
    }

    async fn send(&mut self, store: &dyn Store) -> Result<()> {
        let Self { ops, .. } = std::mem::take(self);
        let Some(first) = ops.first().map(|op| op.key().clone()) else { return Ok(()) };
        store.txn(Vec::new(), ops).await.with_context(|| {
            format!("cannot write {} and what follows to etcd", String::from_utf8_lossy(&first))
        })?;
        Ok(())
    }
}

/// Deletes everything, the mark last.
async fn clear(store: &dyn Store) -> Result<()> {
    loop {
        let page = store.range(RangeRequest::new(KeyRange::all()).limit(BATCH_OPS).without_count()).await?;
        let keys: Vec<Bytes> =
            page.kvs.into_iter().map(|kv| kv.key).filter(|key| &key[..] != RESTORING).collect();
        if keys.is_empty() {
            break;
        }
        store.txn(Vec::new(), keys.into_iter().map(|key| Op::Delete { key }).collect()).await?;
    }
    store.delete(Bytes::from_static(RESTORING), Precondition::Any).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use knarr_storage::{Embedded, Options, Shifted, snapshot};

    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            knarr_version: String::new(),
            cluster_identity: "ab".to_owned(),
            node: String::new(),
            store: String::new(),
            revision: 7,
            time: String::new(),
            keys: 0,
            damaged: 0,
            leases: 0,
            files: 0,
        }
    }

    fn entries(count: usize) -> Vec<Result<Entry, ArchiveError>> {
        let id = LeaseId::new(77).unwrap();
        let mut entries = vec![Ok(Entry::Lease { id, ttl_seconds: 60 })];
        for n in 0..count {
            let lease = (n == 0).then_some(id);
            entries.push(Ok(Entry::Key {
                key: format!("/registry/{n:04}").into(),
                value: "1".into(),
                lease,
            }));
        }
        entries
    }

    #[tokio::test]
    async fn keys_come_above_the_revision_wanted() {
        let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
        let started = begin(&*store, "/k").await.unwrap();
        assert!(store.get(RESTORING).await.unwrap().is_some(), "servers are kept away");
        let revision = 1_000_000;
        let offset = revision - started;
        write(&store, entries(250).into_iter(), &manifest(), offset).await.unwrap();
        assert!(store.get(RESTORING).await.unwrap().is_some(), "history is compacted before servers start");
        let old = store.watch(knarr_storage::WatchRequest::prefix("").after(started)).await;
        assert!(matches!(old, Err(knarr_storage::Error::Compacted { .. })), "{old:?}");
        open(&*store).await.unwrap();
        assert!(store.get(RESTORING).await.unwrap().is_none());
        assert_eq!(&store.get(IDENTITY).await.unwrap().unwrap().value[..], b"ab");
        let by: u64 =
            std::str::from_utf8(&store.get(OFFSET).await.unwrap().unwrap().value).unwrap().parse().unwrap();
        let taken = snapshot(&*Shifted::wrap(store, by)).await.unwrap();
        let keys: Vec<_> = taken.kvs.iter().filter(|kv| kv.key.starts_with(b"/registry/")).collect();
        assert_eq!(keys.len(), 250);
        assert!(keys.iter().all(|kv| kv.mod_revision > revision));
        let ttl = keys[0].lease.and_then(|lease| taken.leases.get(&lease));
        assert_eq!((ttl, keys[1].lease), (Some(&60), None));
    }

    #[tokio::test]
    async fn a_restore_that_fails_leaves_nothing() {
        let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
        begin(&*store, "/k").await.unwrap();
        assert!(begin(&*store, "/k").await.is_err(), "one at a time");
        let mut broken = entries(250);
        broken.push(Err(ArchiveError::Truncated));
        assert!(write(&store, broken.into_iter(), &manifest(), 1).await.is_err());
        assert!(store.status().await.unwrap().keys > 100);
        clear(&*store).await.unwrap();
        assert_eq!(store.status().await.unwrap().keys, 0);
    }
}
