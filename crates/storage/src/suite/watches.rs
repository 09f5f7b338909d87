//! Watches: history, live events, progress, exactly once, slow readers.

use std::sync::Arc;

use super::{Fixture, bytes, put};
use crate::{
    Error, Event, EventKind, KeyRange, OpResult, Precondition, Result, Watch, WatchItem, WatchRequest,
};

/// Reads until everything up to `revision` has been delivered, and checks the order.
pub(super) async fn collect(watch: &mut Watch, revision: u64) -> Result<Vec<Event>> {
    let mut collected = Vec::new();
    let mut reached = 0;
    while reached < revision {
        let Some(item) = watch.next().await else { panic!("the watch ended at {reached}") };
        let item = item?;
        assert!(item.revision() >= reached, "{} after {reached}", item.revision());
        if let WatchItem::Events(batch) = &item {
            assert!(!batch.events.is_empty());
            assert!(batch.events.is_sorted_by_key(|event| event.kv.mod_revision));
            assert!(batch.events.iter().all(|event| event.kv.mod_revision > reached));
            assert!(batch.events.iter().all(|event| event.kv.mod_revision <= batch.revision));
            collected.extend_from_slice(&batch.events);
        }
        reached = item.revision();
    }
    Ok(collected)
}

pub(super) async fn history_then_live(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let start = store.current_revision().await?;
    let first = put(store, "a", "1").await?.kv;
    let second = put(store, "a", "2").await?.kv;
    let mut watch = store.watch(WatchRequest::prefix("a").after(start)).await?;
    let events = collect(&mut watch, second.mod_revision).await?;
    let put_event = |kv: &crate::KeyValue, prev: Option<&crate::KeyValue>| Event {
        kind: EventKind::Put,
        kv: kv.clone(),
        prev: prev.cloned(),
    };
    assert_eq!(events, [put_event(&first, None), put_event(&second, Some(&first))]);

    let third = put(store, "a", "3").await?.kv;
    assert_eq!(collect(&mut watch, third.mod_revision).await?, [put_event(&third, Some(&second))]);
    let deleted = store.delete(bytes("a"), Precondition::Any).await?.revision;
    let events = collect(&mut watch, deleted).await?;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].kind, EventKind::Delete);
    assert_eq!((&events[0].kv.key[..], events[0].kv.mod_revision), (&b"a"[..], deleted));
    assert_eq!(events[0].prev, Some(third));

    let mut from_now = store.watch(WatchRequest::prefix("a")).await?;
    let fourth = put(store, "a", "4").await?.kv;
    assert_eq!(collect(&mut from_now, fourth.mod_revision).await?, [put_event(&fourth, None)]);
    Ok(())
}

pub(super) async fn ranges_and_progress(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let mut watch = store.watch(WatchRequest::new(KeyRange::new("b", "d"))).await?;
    for key in ["a", "b", "c", "d", "e"] {
        put(store, key, "1").await?;
    }
    let current = store.current_revision().await?;
    let requester = watch.progress_requester();
    requester.request();
    let events = collect(&mut watch, current).await?;
    let keys: Vec<_> = events.iter().map(|event| event.kv.key.clone()).collect();
    assert_eq!(keys, ["b", "c"]);

    // A watch without events receives the revision of writes to other keys if its reader requests progress.
    put(store, "a", "2").await?;
    requester.request();
    assert_eq!(collect(&mut watch, current + 1).await?, []);

    // A transaction is delivered in one batch.
    let ops = ["b", "bb", "x"].map(|key| crate::Op::Put { key: bytes(key), value: bytes("3"), lease: None });
    store.txn(vec![], ops.into()).await?;
    loop {
        if let Some(Ok(WatchItem::Events(batch))) = watch.next().await {
            assert_eq!(batch.events.len(), 2);
            break;
        }
    }
    Ok(())
}

pub(super) async fn refused_starts(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let current = put(store, "a", "1").await?.kv.mod_revision;
    store.compact(current).await?;
    let old = store.watch(WatchRequest::prefix("a").after(current - 1)).await.map(|_| ());
    assert_eq!(old, Err(Error::Compacted { requested: current - 1, compacted: current }));
    let future = store.watch(WatchRequest::prefix("a").after(current + 1)).await.map(|_| ());
    assert_eq!(future, Err(Error::FutureRevision { requested: current + 1, current }));
    store.watch(WatchRequest::prefix("a").after(current)).await?;
    Ok(())
}

/// Watchers that start at any time during many concurrent writes all see the same events from there on.
pub(super) async fn exactly_once_under_writers(fixture: Arc<Fixture>) -> Result<()> {
    const WRITERS: u64 = 6;
    const WRITES: u64 = 60;
    let start = fixture.store.current_revision().await?;
    let end = start + WRITERS * WRITES;
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(&fixture.store);
            tokio::spawn(async move {
                let mut written = Vec::new();
                for i in 0..WRITES {
                    let (key, value) =
                        (bytes(format!("w{}/{}", writer % 2, i % 5)), bytes(format!("{writer}-{i}")));
                    let op = crate::Op::Put { key, value, lease: None };
                    match store.txn(vec![], vec![op]).await?.results.pop() {
                        Some(OpResult::Put { kv, prev }) => {
                            written.push(Event { kind: EventKind::Put, kv, prev })
                        }
                        other => panic!("{other:?}"),
                    }
                }
                Ok::<_, Error>(written)
            })
        })
        .collect();
    let mut watchers = Vec::new();
    for i in 0..12u64 {
        let now = fixture.store.current_revision().await?;
        let after = start + (now - start) * (i % 4) / 3;
        let prefix = format!("w{}/", i % 2);
        let mut watch = fixture.store.watch(WatchRequest::prefix(prefix.clone()).after(after)).await?;
        let progress = watch.progress_requester();
        let task = tokio::spawn(async move { collect(&mut watch, end).await });
        watchers.push((after, prefix, progress, task));
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
    }
    let mut written = Vec::new();
    for writer in writers {
        written.extend(writer.await.expect("no writer panics")?);
    }
    written.sort_by_key(|event| event.kv.mod_revision);
    assert_eq!(fixture.store.current_revision().await?, end);
    for (after, prefix, progress, task) in watchers {
        progress.request();
        let seen = task.await.expect("no watcher panics")?;
        let expected: Vec<Event> = written
            .iter()
            .filter(|event| event.kv.mod_revision > after && event.kv.key.starts_with(prefix.as_bytes()))
            .cloned()
            .collect();
        assert_eq!(seen.len(), expected.len(), "after {after} of {prefix}");
        assert_eq!(seen, expected);
    }
    Ok(())
}

pub(super) async fn a_slow_reader_holds_up_nobody(fixture: Arc<Fixture>) -> Result<()> {
    const WRITES: u64 = 600;
    let store = &*fixture.store;
    let start = store.current_revision().await?;
    let mut slow = store.watch(WatchRequest::prefix("k")).await?;
    // One item makes the watch live; then it reads nothing.
    put(store, "k", "first").await?;
    collect(&mut slow, start + 1).await?;
    for i in 0..WRITES {
        put(store, "k", &i.to_string()).await?;
    }
    let events = collect(&mut slow, start + 1 + WRITES).await?;
    let revisions: Vec<u64> = events.iter().map(|event| event.kv.mod_revision).collect();
    assert_eq!(revisions, (start + 2..=start + 1 + WRITES).collect::<Vec<_>>());
    Ok(())
}
