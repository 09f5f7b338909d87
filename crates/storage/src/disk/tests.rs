//! Tests of the file: restarts, locks, faults, damage, power loss.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use fastrand::Rng;
use redb::StorageBackend;
use redb::backends::FileBackend;

use super::*;
use crate::damage;
use crate::embedded::tests::manual_time;
use crate::suite::{self, Fixture};
use crate::{Embedded, Error, Event, KeyRange, Precondition, RangeRequest, Store, WatchItem, WatchRequest};

/// A folder that is removed when it is dropped.
pub(super) struct TempDir(pub(super) PathBuf);

impl TempDir {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("knarr-storage-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    fn file(&self) -> PathBuf {
        self.0.join(FILE_NAME)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn put(store: &Embedded, key: String, value: impl Into<Bytes>) -> crate::Result<u64> {
    Ok(store.put(key.into(), value.into(), Precondition::Any, None).await?.kv.mod_revision)
}

/// The visible content of a store: keys at the latest revision, and all events since the compaction.
async fn contents(store: &Embedded) -> (u64, u64, Vec<crate::KeyValue>, Vec<Event>) {
    let status = store.status().await.unwrap();
    let kvs = store.range(RangeRequest::new(KeyRange::all())).await.unwrap().kvs;
    let request = WatchRequest::new(KeyRange::all()).after(status.compacted_revision);
    let mut watch = store.watch(request).await.unwrap();
    let mut events = Vec::new();
    while let WatchItem::Events(batch) = watch.next().await.unwrap().unwrap() {
        events.extend(batch.events);
    }
    (status.revision, status.compacted_revision, kvs, events)
}

async fn churn(store: &Embedded, rng: &mut Rng, count: usize) {
    for _ in 0..count {
        let key = format!("k{}", rng.u32(..30));
        if rng.u32(..4) == 0 {
            store.delete(key.into(), Precondition::Any).await.unwrap();
        } else {
            let value = vec![rng.u8(..); rng.usize(..3000)];
            put(store, key, value).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_conforms() {
    suite::run(|| async {
        let dir = TempDir::new();
        let (time, advance) = manual_time();
        let store = Embedded::open(&dir.0, Options { time, ..Options::default() }).unwrap();
        Fixture { store: Arc::new(store), advance, keep: Box::new(dir) }
    })
    .await;
}

#[tokio::test]
async fn a_restart_changes_nothing() {
    let dir = TempDir::new();
    let mut rng = Rng::with_seed(5);
    let mut before = None;
    for round in 0..4u64 {
        let store = Embedded::open(&dir.0, Options::default()).unwrap();
        if let Some(before) = before {
            assert_eq!(contents(&store).await, before);
        }
        churn(&store, &mut rng, 150).await;
        if round % 2 == 1 {
            let revision = store.current_revision().await.unwrap() - 40;
            store.compact(revision).await.unwrap();
        }
        churn(&store, &mut rng, 20).await;
        before = Some(contents(&store).await);
        if round == 2 {
            store.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn leases_outlive_a_restart() {
    let dir = TempDir::new();
    let (time, advance) = manual_time();
    let options = Options { time, ..Options::default() };
    let store = Embedded::open(&dir.0, options.clone()).unwrap();
    let kept = store.grant_lease(10).await.unwrap();
    let revoked = store.grant_lease(10).await.unwrap();
    for (key, lease) in [("a", kept), ("b", revoked)] {
        store.put(Bytes::from(key), Bytes::new(), Precondition::Any, Some(lease)).await.unwrap();
    }
    store.revoke_lease(revoked).await.unwrap();
    advance(std::time::Duration::from_secs(9));
    drop(store);

    let store = Embedded::open(&dir.0, options).unwrap();
    assert!(store.grant_lease(10).await.unwrap() > revoked, "lease numbers are not reused");
    advance(std::time::Duration::from_secs(9));
    store.expire_leases().await.unwrap();
    assert!(store.get(b"a").await.unwrap().is_some(), "its time to live started again");
    advance(std::time::Duration::from_secs(1));
    store.expire_leases().await.unwrap();
    assert_eq!(store.get(b"a").await.unwrap(), None);
}

#[test]
fn one_process_at_a_time_and_nobody_else_reads_it() {
    let dir = TempDir::new();
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    let second = Embedded::open(&dir.0, Options::default());
    assert!(matches!(second, Err(OpenError::Locked(_))), "{second:?}");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir.0), mode(&dir.file())), (0o700, 0o600));
    drop(store);
    Embedded::open(&dir.0, Options::default()).unwrap();
}

#[tokio::test]
async fn closing_releases_the_file() {
    let dir = TempDir::new();
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    store.close().await.unwrap();
    Embedded::open(&dir.0, Options::default()).unwrap();
    drop(store);
}

#[test]
fn foreign_files_are_refused() {
    let dir = TempDir::new();
    std::fs::create_dir_all(&dir.0).unwrap();
    for garbage in [&b"hello"[..], &[0; 100_000], &[0xff; 100_000]] {
        std::fs::write(dir.file(), garbage).unwrap();
        let opened = Embedded::open(&dir.0, Options::default());
        assert!(matches!(opened, Err(OpenError::Corrupt { .. })), "{opened:?}");
        assert_eq!(std::fs::read(dir.file()).unwrap(), garbage, "left unchanged");
    }
    std::fs::remove_file(dir.file()).unwrap();
    let database = redb::Database::create(dir.file()).unwrap();
    let txn = database.begin_write().unwrap();
    txn.open_table(redb::TableDefinition::<u64, u64>::new("other")).unwrap();
    txn.commit().unwrap();
    drop(database);
    assert!(matches!(Embedded::open(&dir.0, Options::default()), Err(OpenError::Corrupt { .. })));
}

#[test]
fn a_newer_format_is_named() {
    let dir = TempDir::new();
    drop(Embedded::open(&dir.0, Options::default()).unwrap());
    let database = redb::Database::create(dir.file()).unwrap();
    let txn = database.begin_write().unwrap();
    txn.open_table(journal::META).unwrap().insert(journal::META_FORMAT, FORMAT + 1).unwrap();
    txn.commit().unwrap();
    drop(database);
    let opened = Embedded::open(&dir.0, Options::default());
    assert!(matches!(opened, Err(OpenError::Format { found: 2, supported: 1, .. })), "{opened:?}");
}

/// A flipped bit anywhere leads to a refusal, to a key that is set aside, or was in a page that nothing uses.
#[tokio::test]
async fn damage_is_refused_or_set_aside() {
    let dir = TempDir::new();
    let mut rng = Rng::with_seed(11);
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    churn(&store, &mut rng, 100).await;
    let before = contents(&store).await;
    drop(store);
    let good = std::fs::read(dir.file()).unwrap();
    // The flipped bits are mostly in the database's trees. The test harness captures the output of redb's panics.
    let (mut refused, mut found_damaged) = (0, 0);
    for _ in 0..100 {
        let mut bad = good.clone();
        let at = rng.usize(..bad.len());
        bad[at] ^= 1 << rng.u32(..8);
        std::fs::write(dir.file(), &bad).unwrap();
        match Embedded::open(&dir.0, Options::default()) {
            Ok(store) => {
                let (revision, _, kvs, events) = contents(&store).await;
                assert!(revision >= before.0, "byte {at}");
                let set_aside = kvs.iter().filter(|kv| damage(&kv.value).is_some()).count();
                let missing = before.2.iter().filter(|kv| !kvs.contains(kv)).count();
                assert!(missing <= set_aside, "byte {at}: nothing goes unnoticed");
                let others = kvs.iter().filter(|kv| damage(&kv.value).is_none());
                assert!(others.into_iter().all(|kv| before.2.contains(kv)), "byte {at}: nothing is made up");
                // An event of a damaged key contains the placeholder.
                let whole = |event: &&Event| before.3.contains(event) || damage(&event.kv.value).is_some();
                assert!(events.iter().all(|event| whole(&event)), "byte {at}");
                found_damaged += set_aside;
            }
            Err(OpenError::Corrupt { .. } | OpenError::Format { .. }) => refused += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(refused > 0 && found_damaged > 0, "{refused} {found_damaged}");
}

/// Changes the file of a closed store.
fn tamper(dir: &TempDir, change: impl FnOnce(&redb::WriteTransaction)) {
    let database = redb::Database::create(dir.file()).unwrap();
    let txn = database.begin_write().unwrap();
    change(&txn);
    txn.commit().unwrap();
}

#[tokio::test]
async fn a_damaged_key_is_set_aside_and_can_be_deleted() {
    let dir = TempDir::new();
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    for key in ["old", "a", "b"] {
        put(&store, key.to_owned(), "1").await.unwrap();
    }
    store.compact(store.current_revision().await.unwrap()).await.unwrap();
    let written = put(&store, "a".to_owned(), "2").await.unwrap();
    store.close().await.unwrap();
    drop(store);
    tamper(&dir, |txn| {
        let mut keys = txn.open_table(journal::KEYS).unwrap();
        // One key within the history, one from before it.
        keys.insert(&b"a"[..], &b"nonsense"[..]).unwrap();
        keys.insert(&b"old"[..], &b"nonsense"[..]).unwrap();
    });
    for _ in 0..2 {
        let store = Embedded::open(&dir.0, Options::default()).unwrap();
        assert_eq!(store.current_revision().await.unwrap(), written);
        assert_eq!(store.get(b"b").await.unwrap().unwrap().value, "1");
        let kv = store.get(b"a").await.unwrap().unwrap();
        assert_eq!(
            (damage(&kv.value), kv.mod_revision),
            (Some("a row does not match its checksum"), written)
        );
        assert!(damage(&store.get(b"old").await.unwrap().unwrap().value).is_some());
        let before = RangeRequest::new(KeyRange::key("a")).at(written - 1);
        assert_eq!(store.range(before).await.unwrap().kvs[0].value, "1", "the history is whole");
    }
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    store.delete("a".into(), Precondition::ModRevision(written)).await.unwrap();
    put(&store, "old".into(), "again").await.unwrap();
    drop(store);
    let (_, _, kvs, _) = contents(&Embedded::open(&dir.0, Options::default()).unwrap()).await;
    let values: Vec<_> = kvs.iter().map(|kv| (&kv.key[..], &kv.value[..])).collect();
    assert_eq!(values, [(&b"b"[..], &b"1"[..]), (b"old", b"again")]);
}

#[tokio::test]
async fn damage_in_the_log_costs_history_alone() {
    for lost in [3, 5] {
        let dir = TempDir::new();
        let store = Embedded::open(&dir.0, Options::default()).unwrap();
        for value in 2..=5 {
            put(&store, "k".to_owned(), value.to_string()).await.unwrap();
        }
        drop(store);
        tamper(&dir, |txn| {
            let mut log = txn.open_table(journal::LOG).unwrap();
            if lost == 5 {
                log.remove(lost).unwrap();
            } else {
                log.insert(lost, &b"nonsense"[..]).unwrap();
            }
        });
        let store = Embedded::open(&dir.0, Options::default()).unwrap();
        let (revision, compacted, kvs, events) = contents(&store).await;
        assert_eq!(
            (revision, compacted, &kvs[0].value[..], events.len()),
            (5, lost, &b"5"[..], 5 - lost as usize)
        );
        // Later writes work as usual, and the damaged record is dropped with the history.
        put(&store, "k".to_owned(), "6").await.unwrap();
        store.compact(6).await.unwrap();
        drop(store);
        let store = Embedded::open(&dir.0, Options::default()).unwrap();
        assert_eq!(contents(&store).await.0, 6);
    }
}

#[tokio::test]
async fn an_acknowledged_write_that_is_gone_is_noticed() {
    let dir = TempDir::new();
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    for key in ["a", "b", "c"] {
        put(&store, key.to_owned(), key).await.unwrap();
    }
    drop(store);
    tamper(&dir, |txn| {
        txn.open_table(journal::KEYS).unwrap().remove(&b"b"[..]).unwrap();
    });
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    let kv = store.get(b"b").await.unwrap().expect("the key does not disappear");
    assert_eq!(damage(&kv.value), Some("it was written by revision 3, which the keys do not show"));
    drop(store);
    tamper(&dir, |txn| {
        txn.open_table(journal::META).unwrap().insert(journal::META_REVISION, 3).unwrap();
    });
    let opened = Embedded::open(&dir.0, Options::default());
    assert!(matches!(opened, Err(OpenError::Corrupt { .. })), "{opened:?}");
}

/// A file that fails on request, and remembers what has been written since the last sync.
#[derive(Debug)]
pub(super) struct FaultyFile {
    pub(super) inner: FileBackend,
    pub(super) faults: Arc<Faults>,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    sync: AtomicBool,
    write: AtomicBool,
    /// The offset of a byte that cannot be read; 0 for none.
    pub(super) bad_byte: AtomicU64,
}

impl Faults {
    fn of_read(&self, offset: u64, len: usize) -> io::Result<()> {
        let bad = self.bad_byte.load(Ordering::SeqCst);
        let is_in = bad != 0 && (offset..offset + len as u64).contains(&bad);
        if is_in { Err(io::Error::from_raw_os_error(nix::libc::EIO)) } else { Ok(()) }
    }
}

fn fault(flag: &AtomicBool, kind: io::ErrorKind) -> io::Result<()> {
    if flag.load(Ordering::SeqCst) { Err(kind.into()) } else { Ok(()) }
}

impl StorageBackend for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.faults.of_read(offset, out.len())?;
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        fault(&self.faults.write, io::ErrorKind::StorageFull)?;
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        fault(&self.faults.sync, io::ErrorKind::Other)?;
        self.inner.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        fault(&self.faults.write, io::ErrorKind::StorageFull)?;
        self.inner.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}

/// Returns a store on a file that can be made to fail.
fn faulty_store(dir: &TempDir, options: Options) -> (Embedded, Arc<Faults>) {
    drop(Embedded::open(&dir.0, options.clone()).unwrap());
    let (faults, reserve) = (Arc::new(Faults::default()), no_reserve());
    let opener: Opener = {
        let (path, faults, behind) = (dir.file(), Arc::clone(&faults), Arc::clone(&reserve));
        Box::new(move || {
            let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let backend = FaultyFile { inner: FileBackend::new(file).unwrap(), faults: Arc::clone(&faults) };
            let backend = ReservedFile::new(backend, Arc::clone(&behind), Arc::default());
            redb::Builder::new().create_with_backend(backend).map_err(|error| database_error(&path, error))
        })
    };
    let (journal, state) = start(opener, reserve, &dir.file()).unwrap();
    let source = FaultySource(File::open(dir.file()).unwrap(), Arc::clone(&faults));
    let journal = journal.with_raw(Arc::new(Looker::new(source, Arc::default())));
    let store = Embedded::start(state, journal, options, Some(dir.file())).unwrap();
    (store, faults)
}

/// The same file, for reads beside the database.
#[derive(Debug)]
struct FaultySource(File, Arc<Faults>);

impl look::Source for FaultySource {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let bad = self.1.bad_byte.load(Ordering::SeqCst);
        // The bytes before it can be read.
        let page = bad - bad % 4096;
        let len = if bad != 0 && page > offset { out.len().min((page - offset) as usize) } else { out.len() };
        self.1.of_read(offset, len)?;
        look::Source::read(&self.0, offset, &mut out[..len])
    }
}

/// A sector that cannot be read, in a page that no write touches: it is reported, and writes go on.
#[tokio::test]
async fn a_look_at_a_sector_that_cannot_be_read_does_no_harm() {
    let dir = TempDir::new();
    let (store, faults) = faulty_store(&dir, Options { cache_bytes: 0, ..Options::default() });
    for n in 0..60u8 {
        put(&store, format!("k{n:02}"), vec![n; 700]).await.unwrap();
    }
    let bytes = std::fs::read(dir.file()).unwrap();
    // The newest copy of a value, far from where the next write goes.
    let at = bytes.windows(700).rposition(|window| window == [5; 700]).unwrap() as u64;
    faults.bad_byte.store(at, Ordering::SeqCst);
    let (mut from, mut found) = (None, Vec::new());
    while let Some(step) = store.scrub(from).await.unwrap() {
        found.extend(step.faults);
        from = step.next;
        if from.is_none() {
            break;
        }
    }
    let named: Vec<_> = found.iter().map(|fault| fault.bytes.clone().unwrap().contains(&at)).collect();
    assert_eq!(named, [true], "{found:?}");
    assert!(found[0].reason.contains("Input/output error"), "{found:?}");
    put(&store, "k59".into(), "again").await.unwrap();
    assert_eq!(store.status().await.unwrap().failure, None);
}

/// redb does not report errors while it closes.
#[tokio::test]
async fn a_disk_that_fails_at_the_end_is_a_failed_close() {
    for full in [false, true] {
        let dir = TempDir::new();
        let (store, faults) = faulty_store(&dir, Options::default());
        put(&store, "a".into(), "1").await.unwrap();
        let before = contents(&store).await;
        let flag = if full { &faults.write } else { &faults.sync };
        flag.store(true, Ordering::SeqCst);
        let error = store.close().await.unwrap_err().to_string();
        assert!(error.starts_with("the store was not closed cleanly: "), "{error}");
        flag.store(false, Ordering::SeqCst);
        let store = Embedded::open(&dir.0, Options::default()).unwrap();
        assert_eq!(contents(&store).await, before, "acknowledged writes are kept");
        store.close().await.expect("an error that is over does not count");
    }
}

fn no_reserve() -> Arc<Reserve> {
    Arc::new(Reserve::open(Path::new("/nowhere"), 0))
}

#[tokio::test]
async fn writes_go_on_when_the_disk_does() {
    for disk_full in [false, true] {
        let dir = TempDir::new();
        let (store, faults) = faulty_store(&dir, Options::default());
        let revision = put(&store, "a".into(), "1").await.unwrap();
        let mut watch = store.watch(WatchRequest::prefix("").after(revision)).await.unwrap();
        assert_eq!(watch.next().await, Some(Ok(WatchItem::Progress(revision))));
        let flag = if disk_full { &faults.write } else { &faults.sync };
        flag.store(true, Ordering::SeqCst);
        let big = vec![b'x'; 2_000_000];
        let refused = |result: crate::Result<u64>| match result {
            Err(Error::NoSpace) => disk_full,
            // The error of a reopened database at its first write.
            Err(Error::Unavailable { .. }) => true,
            _ => false,
        };
        assert!(refused(put(&store, "a".into(), big).await));
        assert!(refused(put(&store, "b".into(), "1").await));
        assert!(store.grant_lease(5).await.is_err());
        assert_eq!(store.get(b"a").await.unwrap().map(|kv| kv.value), Some("1".into()), "reads go on");
        assert_eq!(store.current_revision().await.unwrap(), revision);
        assert!(store.status().await.unwrap().failure.is_some());

        // Without any write or restart, the store recovers by itself.
        flag.store(false, Ordering::SeqCst);
        while store.status().await.unwrap().failure.is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let after = put(&store, "b".into(), "2").await.unwrap();
        let before = contents(&store).await;
        // A failed batch that the disk has kept completely counts, for watches as well as for reads.
        let mut seen = revision;
        while seen < after {
            if let WatchItem::Events(batch) = watch.next().await.unwrap().unwrap() {
                for event in batch.events {
                    assert_eq!(event.kv.mod_revision, seen + 1);
                    seen += 1;
                }
            }
        }
        store.close().await.unwrap();
        let store = Embedded::open(&dir.0, Options::default()).unwrap();
        assert_eq!(contents(&store).await, before);
    }
}

/// Returns a store with little content in a large file, so that compacting makes it worth shrinking.
async fn emptied(store: &Embedded) -> u64 {
    for i in 0..70 {
        put(store, format!("k{i}"), vec![i; 1_000_000]).await.unwrap();
    }
    for i in 1..70 {
        store.delete(format!("k{i}").into(), Precondition::Exists).await.unwrap();
    }
    let large = store.status().await.unwrap().file_bytes;
    assert!(large > 70_000_000, "{large}");
    let revision = store.current_revision().await.unwrap();
    store.compact(revision).await.unwrap();
    large
}

async fn until_smaller(store: &Embedded, than: u64) {
    while store.status().await.unwrap().file_bytes > than {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_store_at_rest_gives_back_what_it_does_not_need() {
    let dir = TempDir::new();
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    let large = emptied(&store).await;
    until_smaller(&store, large / 8).await;
    put(&store, "after".into(), "1").await.unwrap();
    let before = contents(&store).await;
    drop(store);
    let store = Embedded::open(&dir.0, Options::default()).unwrap();
    assert_eq!(contents(&store).await, before);
}

#[tokio::test]
async fn shrinking_that_fails_loses_nothing() {
    let dir = TempDir::new();
    let (store, faults) = faulty_store(&dir, Options::default());
    emptied(&store).await;
    let before = contents(&store).await;
    faults.sync.store(true, Ordering::SeqCst);
    while store.status().await.unwrap().failure.is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(contents(&store).await, before);
    faults.sync.store(false, Ordering::SeqCst);
    while store.status().await.unwrap().failure.is_some() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    put(&store, "after".into(), "1").await.unwrap();
    assert_eq!(store.get(b"k0").await.unwrap().map(|kv| kv.value.len()), Some(1_000_000));
}

#[tokio::test]
async fn a_failed_revocation_is_made_up_for() {
    let dir = TempDir::new();
    let (time, advance) = manual_time();
    let (store, faults) = faulty_store(&dir, Options { time, ..Options::default() });
    let lease = store.grant_lease(5).await.unwrap();
    store.put("a".into(), "1".into(), Precondition::Any, Some(lease)).await.unwrap();
    advance(std::time::Duration::from_secs(6));
    faults.write.store(true, Ordering::SeqCst);
    assert!(store.expire_leases().await.is_err());
    faults.write.store(false, Ordering::SeqCst);
    advance(std::time::Duration::from_secs(6));
    store.expire_leases().await.unwrap();
    assert_eq!(store.get(b"a").await.unwrap(), None);
}

#[tokio::test]
async fn a_file_that_lost_what_was_acknowledged_is_not_written_again() {
    let dir = TempDir::new();
    let (store, faults) = faulty_store(&dir, Options::default());
    put(&store, "a".into(), "1").await.unwrap();
    let old = std::fs::read(dir.file()).unwrap();
    put(&store, "a".into(), "2").await.unwrap();
    faults.write.store(true, Ordering::SeqCst);
    assert!(put(&store, "a".into(), "3").await.is_err());
    // As if the disk had been replaced by an older copy.
    std::fs::write(dir.file(), old).unwrap();
    faults.write.store(false, Ordering::SeqCst);
    let reason = loop {
        match put(&store, "b".into(), "1").await {
            Err(Error::Unavailable { reason }) if reason.contains("was acknowledged") => break reason,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
            Ok(_) => panic!("written"),
        }
    };
    assert_eq!(&*reason, "the file holds revision 2 where 3 was acknowledged");
    assert_eq!(store.get(b"a").await.unwrap().map(|kv| kv.value), Some("2".into()));
    assert_eq!(store.status().await.unwrap().failure.as_deref(), Some(&*reason));
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(put(&store, "b".into(), "1").await.is_err());
}

/// A disk that may lose or keep each write since the last sync when the power fails.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<std::sync::Mutex<DiskState>>);

#[derive(Debug, Default)]
struct DiskState {
    synced: Vec<u8>,
    seen: Vec<u8>,
    unsynced: Vec<(usize, Vec<u8>)>,
}

impl Disk {
    fn after_power_loss(&self, rng: &mut Rng) -> Self {
        let state = self.0.lock().unwrap();
        let mut bytes = state.synced.clone();
        for (offset, data) in &state.unsynced {
            if rng.bool() {
                bytes.resize(bytes.len().max(offset + data.len()), 0);
                bytes[*offset..offset + data.len()].copy_from_slice(data);
            }
        }
        // A sync makes the length durable as well; here the length is always kept.
        bytes.resize(bytes.len().max(state.seen.len()), 0);
        let state = DiskState { synced: bytes.clone(), seen: bytes, unsynced: Vec::new() };
        Self(Arc::new(std::sync::Mutex::new(state)))
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock().unwrap();
        let offset = offset as usize;
        let bytes = state.seen.get(offset..offset + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().unwrap().seen.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.synced = state.seen.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let offset = offset as usize;
        state.seen[offset..offset + data.len()].copy_from_slice(data);
        state.unsynced.push((offset, data.to_vec()));
        Ok(())
    }
}

fn on(disk: &Disk) -> Opener {
    let disk = disk.clone();
    Box::new(move || Ok(redb::Builder::new().create_with_backend(disk.clone()).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_loss_takes_nothing_that_was_acknowledged() {
    let path = Path::new("disk");
    for seed in 0..8 {
        let mut rng = Rng::with_seed(seed);
        let disk = Disk::default();
        let (journal, state) = start(on(&disk), no_reserve(), path).unwrap();
        let store = Arc::new(Embedded::start(state, journal, Options::default(), None).unwrap());
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let store = Arc::clone(&store);
                let acknowledged = Arc::new(std::sync::Mutex::new((0, 0)));
                let answer = Arc::clone(&acknowledged);
                let task = tokio::spawn(async move {
                    for i in 0u32.. {
                        let value = i.to_le_bytes().to_vec();
                        let Ok(revision) = put(&store, format!("w{writer}"), value).await else { break };
                        *answer.lock().unwrap() = (i, revision);
                    }
                });
                (writer, acknowledged, task)
            })
            .collect();
        tokio::time::sleep(std::time::Duration::from_millis(rng.u64(20..60))).await;
        // Everything acknowledged by now must be on what is left of the disk a moment later.
        let acknowledged: Vec<_> =
            writers.iter().map(|(writer, last, _)| (*writer, *last.lock().unwrap())).collect();
        let left = disk.after_power_loss(&mut rng);
        for (_, _, task) in &writers {
            task.abort();
        }
        let (_, state) = start(on(&left), no_reserve(), path).unwrap();
        // On a slow machine a writer may not have got an answer yet.
        for (writer, (count, revision)) in acknowledged.into_iter().filter(|(_, (_, revision))| *revision > 0)
        {
            let kv = state.get(format!("w{writer}").as_bytes()).unwrap();
            let found = u32::from_le_bytes(kv.value[..].try_into().unwrap());
            assert!(found >= count && kv.mod_revision >= revision, "seed {seed}: {found} of {count}");
            assert!(state.revision() >= revision);
        }
    }
}
