//! Ranges: bounds, limits, old revisions, pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Fixture, bytes, put};
use crate::{Error, KeyRange, KeyValue, Precondition, RangeRequest, RangeResponse, Result};

fn keys(response: &RangeResponse) -> Vec<String> {
    response.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
}

pub(super) async fn ranges(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    for key in ["b/2", "a/1", "b/10", "b/1", "b", "c"] {
        put(store, key, key).await?;
    }
    let revision = store.current_revision().await?;
    let rows: [(KeyRange, &[&str]); 7] = [
        (KeyRange::all(), &["a/1", "b", "b/1", "b/10", "b/2", "c"]),
        (KeyRange::prefix("b/"), &["b/1", "b/10", "b/2"]),
        (KeyRange::prefix("x"), &[]),
        (KeyRange::new("b/1", "b/2"), &["b/1", "b/10"]),
        (KeyRange::new("z", "a"), &[]),
        (KeyRange::key("b"), &["b"]),
        (KeyRange::from("b/2"), &["b/2", "c"]),
    ];
    for (range, expected) in rows {
        let response = store.range(RangeRequest::new(range.clone())).await?;
        assert_eq!(keys(&response), expected, "{range:?}");
        assert_eq!((response.more, response.remaining, response.revision), (false, 0, revision));
    }
    Ok(())
}

pub(super) async fn limits_and_counts(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    for i in 0..10 {
        put(store, &format!("k{i}"), "v").await?;
    }
    store.delete(bytes("k5"), Precondition::Any).await?;
    for (limit, returned, more, remaining) in
        [(0, 0, true, 9), (4, 4, true, 5), (8, 8, true, 1), (9, 9, false, 0)]
    {
        let request = RangeRequest::prefix("k").limit(limit);
        let response = store.range(request.clone()).await?;
        assert_eq!((response.kvs.len(), response.more, response.remaining), (returned, more, remaining));
        let uncounted = store.range(request.without_count()).await?;
        assert_eq!((uncounted.kvs, uncounted.more, uncounted.remaining), (response.kvs, more, 0));
    }
    Ok(())
}

pub(super) async fn old_revisions(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let first = put(store, "a", "1").await?.kv;
    let other = put(store, "b", "1").await?.kv;
    let second = put(store, "a", "2").await?.kv;
    let deleted = store.delete(bytes("a"), Precondition::Any).await?.revision;
    let third = put(store, "a", "3").await?.kv;
    let rows: [(u64, Vec<KeyValue>); 5] = [
        (first.mod_revision, vec![first.clone()]),
        (other.mod_revision, vec![first, other.clone()]),
        (second.mod_revision, vec![second.clone(), other.clone()]),
        (deleted, vec![other.clone()]),
        (third.mod_revision, vec![third.clone(), other]),
    ];
    for (revision, expected) in rows {
        let response = store.range(RangeRequest::new(KeyRange::all()).at(revision)).await?;
        assert_eq!((response.kvs, response.revision), (expected, revision));
    }
    let future = store.range(RangeRequest::new(KeyRange::all()).at(third.mod_revision + 1)).await;
    assert!(matches!(future, Err(Error::FutureRevision { .. })), "{future:?}");
    Ok(())
}

/// Every page of a listing shows the store as it was for the first page, whatever is written in the meantime.
pub(super) async fn pages_of_one_revision_while_writing(fixture: Arc<Fixture>) -> Result<()> {
    const KEYS: usize = 200;
    for i in 0..KEYS {
        put(&*fixture.store, &format!("k{i:04}"), "old").await?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, stop) = (Arc::clone(&fixture.store), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                put(&*store, &format!("k{:04}", i % (2 * KEYS)), "new").await?;
                store.delete(bytes(format!("k{:04}", (i * 7) % KEYS)), Precondition::Any).await?;
                i += 1;
                tokio::task::yield_now().await;
            }
            Ok::<_, Error>(())
        })
    };
    for _ in 0..5 {
        let whole = fixture.store.range(RangeRequest::prefix("k")).await?;
        let mut paged = Vec::new();
        let mut request = RangeRequest::prefix("k").limit(7).at(whole.revision);
        loop {
            let page = fixture.store.range(request.clone()).await?;
            assert_eq!(page.revision, whole.revision);
            assert_eq!(paged.len() + page.kvs.len() + page.remaining as usize, whole.kvs.len());
            let last = page.kvs.last().map(|kv| kv.key.clone());
            paged.extend(page.kvs);
            match last {
                Some(last) if page.more => request.range = request.range.after(&last),
                _ => break,
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(paged, whole.kvs);
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.expect("the writer does not panic")
}
