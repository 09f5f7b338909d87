//! What compaction removes and what it keeps.

use std::sync::Arc;

use super::{Fixture, bytes, put};
use crate::{Error, KeyRange, Precondition, RangeRequest, Result, WatchRequest};

pub(super) async fn compaction_forgets_the_past_only(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let all = || RangeRequest::new(KeyRange::all());
    for i in 0..20 {
        put(store, &format!("k{}", i % 4), &i.to_string()).await?;
    }
    store.delete(bytes("k0"), Precondition::Any).await?;
    let at = store.current_revision().await?;
    let expected = store.range(all()).await?.kvs;
    assert_eq!(expected.len(), 3);
    put(store, "k1", "later").await?;
    put(store, "k0", "later").await?;

    store.compact(at).await?;
    assert_eq!(store.range(all().at(at)).await?.kvs, expected);
    let past = store.range(all().at(at - 1)).await;
    assert_eq!(past, Err(Error::Compacted { requested: at - 1, compacted: at }));
    let watched = store.watch(WatchRequest::new(KeyRange::all()).after(at - 1)).await.map(|_| ());
    assert_eq!(watched, Err(Error::Compacted { requested: at - 1, compacted: at }));

    store.compact(at).await?;
    store.compact(at - 5).await?;
    assert_eq!(store.range(all().at(at)).await?.kvs, expected, "an older compaction changes nothing");
    let current = store.current_revision().await?;
    let future = store.compact(current + 1).await;
    assert_eq!(future, Err(Error::FutureRevision { requested: current + 1, current }));

    store.compact(current).await?;
    assert_eq!(store.range(all()).await?.kvs.len(), 4);
    assert_eq!(store.current_revision().await?, current);
    Ok(())
}

pub(super) async fn history_is_served_after_compaction(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let before = put(store, "a", "1").await?.kv;
    store.compact(before.mod_revision).await?;
    let after = put(store, "a", "2").await?.kv;
    let mut watch = store.watch(WatchRequest::prefix("a").after(before.mod_revision)).await?;
    let events = super::watches::collect(&mut watch, after.mod_revision).await?;
    assert_eq!(events.len(), 1);
    assert_eq!(
        (&events[0].kv, &events[0].prev),
        (&after, &Some(before)),
        "the value before is not compacted"
    );
    Ok(())
}
