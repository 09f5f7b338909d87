//! Tests of the store without a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::engine::journal::{CommitError, Fate};
use crate::suite::{self, Fixture};
use crate::{KeyRange, Precondition, TimeSource};

/// A time source, with a function that advances it.
pub(crate) fn manual_time() -> (TimeSource, Box<dyn Fn(Duration) + Send + Sync>) {
    let now = Arc::new(AtomicU64::new(0));
    let source = {
        let now = Arc::clone(&now);
        TimeSource::new(move || Duration::from_millis(now.load(Ordering::SeqCst)))
    };
    let advance = Box::new(move |by: Duration| {
        now.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    });
    (source, advance)
}

async fn write(store: &Embedded, key: &str, value: Bytes) -> u64 {
    let key = Bytes::copy_from_slice(key.as_bytes());
    store.put(key, value, Precondition::Any, None).await.unwrap().kv.mod_revision
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conforms() {
    suite::run(|| async {
        let (time, advance) = manual_time();
        let store = Embedded::memory(Options { time, watch_buffer: 16, ..Options::default() });
        Fixture { store: Arc::new(store), advance, keep: Box::new(()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commit_thread_conforms() {
    suite::run(|| async {
        let (time, advance) = manual_time();
        let options = Options { time, watch_buffer: 4, batch_requests: 8, ..Options::default() };
        let store = Embedded::start(State::default(), NoJournal, options, None).unwrap();
        Fixture { store: Arc::new(store), advance, keep: Box::new(()) }
    })
    .await;
}

#[tokio::test]
async fn history_is_capped_by_number_and_by_size() {
    for options in [
        Options { history_revisions: 50, ..Options::default() },
        Options { history_bytes: 50 * 1256, ..Options::default() },
    ] {
        let store = Embedded::memory(options);
        let value = Bytes::from(vec![b'x'; 999]);
        for _ in 0..500 {
            write(&store, "k", value.clone()).await;
        }
        let status = store.status().await.unwrap();
        assert_eq!(status.history_revisions, 50);
        assert_eq!(status.compacted_revision, status.revision - 50);
        let state = store.core.read().unwrap();
        assert_eq!(state.live_keys(), 1);
    }
}

#[tokio::test]
async fn compaction_leaves_nothing_behind() {
    let store = Embedded::memory(Options::default());
    for i in 0..2000 {
        let key = format!("k{}", i % 10);
        write(&store, &key, Bytes::from_static(b"value")).await;
        if i % 3 == 0 {
            store.delete(key.into(), Precondition::Any).await.unwrap();
        }
    }
    for i in 0..10 {
        store.delete(format!("k{i}").into(), Precondition::Any).await.unwrap();
    }
    store.compact(store.current_revision().await.unwrap()).await.unwrap();
    let state = store.core.read().unwrap();
    assert_eq!((state.live_keys(), state.log_len(), state.history_bytes()), (0, 0, 0));
    let mut scan = Scan::new(KeyRange::all(), state.revision(), usize::MAX, true);
    assert!(state.scan(&mut scan, 1), "deleted keys are removed from the state");
}

#[tokio::test]
async fn a_reader_behind_the_compaction_is_told_so() {
    let store = Embedded::memory(Options { watch_buffer: 4, ..Options::default() });
    let mut watch = store.watch(WatchRequest::prefix("k")).await.unwrap();
    let start = watch.next().await.unwrap().unwrap().revision();
    for _ in 0..20 {
        write(&store, "k", Bytes::new()).await;
    }
    let current = store.current_revision().await.unwrap();
    store.compact(current).await.unwrap();
    let mut reached = 0;
    let error = loop {
        match watch.next().await.unwrap() {
            Ok(item) => {
                assert!(item.revision() > reached);
                reached = item.revision();
            }
            Err(error) => break error,
        }
    };
    // Batches that were in the buffer are still delivered.
    assert_eq!(reached, start + 4);
    assert_eq!(error, Error::Compacted { requested: reached, compacted: current });
    assert_eq!(watch.next().await, None);
    assert_eq!(store.status().await.unwrap().watchers, 0);
}

#[tokio::test]
async fn compaction_does_not_hurt_a_live_watch_of_a_quiet_range() {
    let store = Embedded::memory(Options { watch_buffer: 4, ..Options::default() });
    let mut watch = store.watch(WatchRequest::prefix("quiet")).await.unwrap();
    assert!(matches!(watch.next().await, Some(Ok(crate::WatchItem::Progress(_)))));
    for _ in 0..20 {
        write(&store, "loud", Bytes::new()).await;
    }
    store.compact(store.current_revision().await.unwrap()).await.unwrap();
    let revision = write(&store, "quiet", Bytes::new()).await;
    assert_eq!(watch.next().await.unwrap().unwrap().revision(), revision);
}

#[tokio::test]
async fn a_dropped_watch_is_forgotten() {
    let store = Embedded::memory(Options::default());
    let mut watch = store.watch(WatchRequest::prefix("k")).await.unwrap();
    watch.next().await.unwrap().unwrap();
    assert_eq!(store.status().await.unwrap().watchers, 1);
    drop(watch);
    assert_eq!(store.status().await.unwrap().watchers, 0);
}

#[tokio::test]
async fn a_closed_store_ends_its_watches_and_refuses_everything() {
    for store in [
        Embedded::memory(Options::default()),
        Embedded::start(State::default(), NoJournal, Options::default(), None).unwrap(),
    ] {
        let mut watch = store.watch(WatchRequest::prefix("k")).await.unwrap();
        watch.next().await.unwrap().unwrap();
        write(&store, "k", Bytes::new()).await;
        store.close().await.unwrap();
        assert!(matches!(watch.next().await, Some(Ok(crate::WatchItem::Events(_)))));
        assert_eq!(watch.next().await, Some(Err(Error::Closed)));
        assert_eq!(watch.next().await, None);
        assert_eq!(store.get(b"k").await, Err(Error::Closed));
        let write = store.put(Bytes::from("k"), Bytes::new(), Precondition::Any, None).await;
        assert_eq!(write, Err(Error::Closed));
        store.close().await.unwrap();
    }
}

/// A journal that panics.
struct FaultyJournal;

impl Journal for FaultyJournal {
    fn commit(&mut self, _batch: &batch::Batch) -> std::result::Result<(), CommitError> {
        panic!("a fault in the code");
    }

    fn reopen(&mut self) -> std::result::Result<Fate, CommitError> {
        Ok(Fate::Lost)
    }
}

/// The process can end then, and another one can open the file.
#[tokio::test]
async fn whoever_waits_for_the_end_hears_of_every_end() {
    let store = Arc::new(Embedded::start(State::default(), FaultyJournal, Options::default(), None).unwrap());
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.closed().await }
    });
    let early = tokio::time::timeout(Duration::from_millis(20), store.closed()).await;
    assert!(early.is_err(), "it is open");
    let write = store.put(Bytes::from("k"), Bytes::new(), Precondition::Any, None).await;
    assert_eq!(write, Err(Error::Closed));
    waiting.await.unwrap();
    store.closed().await;
    for _ in 0..2 {
        // The store was not closed by the caller that asks now.
        let error = store.close().await.unwrap_err();
        assert_eq!(error.to_string(), "the store was not closed cleanly: its writer ended by a fault");
    }
    let closed = Embedded::memory(Options::default());
    closed.close().await.unwrap();
    closed.closed().await;
}

/// Acknowledged writes are durable, but the caller that closes must learn of the rest.
#[tokio::test]
async fn a_store_that_is_not_in_order_is_not_closed_cleanly() {
    let (store, open_gate, _) = gated_store();
    drop(open_gate);
    let put = store.put(Bytes::from("k"), Bytes::new(), Precondition::NotExists, None).await;
    assert!(matches!(put, Err(Error::Unavailable { .. })), "{put:?}");
    let error = store.close().await.unwrap_err();
    assert_eq!(error.to_string(), "the store was not closed cleanly: the gate is gone");
    assert_eq!(store.close().await.unwrap_err(), error, "later callers get the same result");
    assert_eq!(store.get(b"k").await, Err(Error::Closed));
}

/// A journal that panics when it is closed.
struct FaultyEnd;

impl Journal for FaultyEnd {
    fn commit(&mut self, _batch: &batch::Batch) -> std::result::Result<(), CommitError> {
        Ok(())
    }

    fn reopen(&mut self) -> std::result::Result<Fate, CommitError> {
        Ok(Fate::Lost)
    }
}

impl Drop for FaultyEnd {
    fn drop(&mut self) {
        panic!("a fault in the code");
    }
}

#[tokio::test]
async fn a_fault_at_the_end_is_a_failed_close() {
    let store = Embedded::start(State::default(), FaultyEnd, Options::default(), None).unwrap();
    write(&store, "k", Bytes::new()).await;
    let error = store.close().await.unwrap_err();
    assert_eq!(error.to_string(), "the store was not closed cleanly: its writer ended by a fault");
}

#[tokio::test]
async fn sizes_are_limited() {
    let options = Options { max_key_bytes: 4, max_value_bytes: 8, max_txn_ops: 2, ..Options::default() };
    let store = Embedded::memory(options);
    let put = |key: &'static str, value: &'static str| {
        store.put(Bytes::from(key), Bytes::from(value), Precondition::Any, None)
    };
    assert!(put("1234", "12345678").await.is_ok());
    assert!(matches!(put("12345", "").await, Err(Error::TooLarge { what: "key", size: 5, limit: 4 })));
    assert!(matches!(put("k", "123456789").await, Err(Error::TooLarge { what: "value", .. })));
    let ops = ["a", "b", "c"].map(|key| Op::Delete { key: key.into() });
    assert!(matches!(store.txn(vec![], ops.into()).await, Err(Error::TooLarge { .. })));
}

/// A journal that blocks until it is released, and counts its batches.
struct GatedJournal {
    gate: std::sync::mpsc::Receiver<()>,
    batches: Arc<AtomicU64>,
}

impl Journal for GatedJournal {
    fn commit(&mut self, _batch: &batch::Batch) -> std::result::Result<(), CommitError> {
        self.gate.recv().map_err(|_| CommitError::Failed("the gate is gone".to_owned()))?;
        self.batches.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn reopen(&mut self) -> std::result::Result<Fate, CommitError> {
        Err(CommitError::Failed("the gate is gone".to_owned()))
    }
}

fn gated_store() -> (Arc<Embedded>, std::sync::mpsc::SyncSender<()>, Arc<AtomicU64>) {
    let (open_gate, gate) = std::sync::mpsc::sync_channel(100);
    let batches = Arc::new(AtomicU64::new(0));
    let journal = GatedJournal { gate, batches: Arc::clone(&batches) };
    let store = Embedded::start(State::default(), journal, Options::default(), None).unwrap();
    (Arc::new(store), open_gate, batches)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_shows_before_it_is_durable() {
    let (store, open_gate, _) = gated_store();
    let mut watch = store.watch(WatchRequest::prefix("k")).await.unwrap();
    let start = watch.next().await.unwrap().unwrap().revision();
    let writer = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { write(&store, "k", Bytes::new()).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writer.is_finished());
    assert_eq!(store.get(b"k").await, Ok(None));
    assert_eq!(store.current_revision().await, Ok(start));
    let early = tokio::time::timeout(Duration::from_millis(20), watch.next()).await;
    assert!(early.is_err(), "{early:?}");

    open_gate.send(()).unwrap();
    assert_eq!(writer.await.unwrap(), start + 1);
    assert_eq!(watch.next().await.unwrap().unwrap().revision(), start + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_wait_together_share_one_commit() {
    const WRITERS: u64 = 50;
    let (store, open_gate, batches) = gated_store();
    let writers: Vec<_> = (0..WRITERS)
        .map(|i| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { write(&store, &format!("k{i}"), Bytes::new()).await })
        })
        .collect();
    // The first batch waits for the gate while the other requests queue up behind it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    for _ in 0..WRITERS {
        open_gate.send(()).unwrap();
    }
    let mut revisions = Vec::new();
    for writer in writers {
        revisions.push(writer.await.unwrap());
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (2..2 + WRITERS).collect::<Vec<_>>());
    let batches = batches.load(Ordering::SeqCst);
    assert!(batches <= 5, "{batches} commits for {WRITERS} writers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_batch_fails_all_its_writers() {
    let (store, open_gate, _) = gated_store();
    let writers: Vec<_> = (0..10)
        .map(|i| {
            let store = Arc::clone(&store);
            let key = Bytes::from(format!("k{i}"));
            tokio::spawn(async move { store.put(key, Bytes::new(), Precondition::NotExists, None).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(open_gate);
    for writer in writers {
        let result = writer.await.unwrap();
        assert!(matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
    }
    assert_eq!(store.status().await.unwrap().keys, 0);
}

fn limited() -> Options {
    Options { quota_bytes: 64_000, reserved: vec![KeyRange::prefix("r/")], ..Options::default() }
}

#[tokio::test]
async fn a_used_up_quota_leaves_deletions_and_clears_by_itself() {
    let store = Embedded::memory(limited());
    let put = async |key: String, len: usize| {
        store.put(key.into(), vec![0; len].into(), Precondition::Any, None).await.map(drop)
    };
    let mut keys = 0;
    while put(format!("k{keys}"), 1000).await.is_ok() {
        keys += 1;
    }
    assert_eq!(put("k".into(), 1000).await, Err(Error::NoSpace));
    let status = store.status().await.unwrap();
    assert_eq!((status.no_space, status.quota_bytes), (Some(crate::NoSpace::Quota), Some(64_000)));
    assert!((62_000..=64_000).contains(&status.live_bytes), "{}", status.live_bytes);
    assert_eq!(put("small".into(), 1).await, Err(Error::NoSpace), "nothing new while the alarm is on");
    put("k0".into(), 1000).await.expect("what stays as large as it was is written");
    put("r/lease".into(), 300).await.expect("there is a reserve");
    assert!(store.get(b"k1").await.unwrap().is_some());
    store.compact(status.revision).await.unwrap();
    store.delete("k1".into(), Precondition::Exists).await.unwrap();
    assert_eq!(store.status().await.unwrap().no_space, Some(crate::NoSpace::Quota), "not room enough yet");
    for key in 2..5 {
        store.delete(format!("k{key}").into(), Precondition::Exists).await.unwrap();
    }
    assert_eq!(store.status().await.unwrap().no_space, None);
    put("k1".into(), 1000).await.unwrap();
}

fn share_of(key: &[u8]) -> Option<&[u8]> {
    key.split(|byte| *byte == b'/').nth(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_cannot_take_more_than_their_share() {
    const WRITERS: u64 = 8;
    let options = Options { share_bytes: 100_000, share_of: Some(share_of), ..Options::default() };
    let store = Arc::new(Embedded::start(State::default(), NoJournal, options, None).unwrap());
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(writer);
                let mut refused = 0;
                for i in 0..300 {
                    let key = Bytes::from(format!("x/{}/{writer}-{}", writer % 2, i % 40));
                    if rng.u8(..4) == 0 {
                        store.delete(key, Precondition::Any).await.unwrap();
                        continue;
                    }
                    let value = vec![0; rng.usize(..2000)].into();
                    match store.put(key, value, Precondition::Any, None).await {
                        Ok(_) => {}
                        Err(Error::ShareExceeded { share, limit, .. }) => {
                            assert_eq!((share, limit), ((writer % 2).to_string(), 100_000));
                            refused += 1;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    let state = store.core.read().unwrap();
                    // The margin for deletion timestamps is above the limit.
                    assert!(state.usage().share(b"0") <= 100_000 + 2 * 100_000 / 32);
                }
                refused
            })
        })
        .collect();
    let mut refused = 0;
    for writer in writers {
        refused += writer.await.unwrap();
    }
    assert!(refused > 0, "the limit was reached");
    let kvs = store.range(crate::RangeRequest::new(KeyRange::all())).await.unwrap().kvs;
    for share in [b"0", b"1"] {
        let of_share = kvs.iter().filter(|kv| share_of(&kv.key) == Some(share));
        let counted: usize = of_share.map(|kv| kv.key.len() + kv.value.len() + 256).sum();
        assert_eq!(store.core.read().unwrap().usage().share(share), counted as u64, "exact");
    }
}
