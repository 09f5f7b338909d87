//! Leases, with a clock that only the test advances.

use std::sync::Arc;
use std::time::Duration;

use super::{Fixture, bytes, put};
use crate::{Error, EventKind, LeaseId, Precondition, Result, WatchRequest};

async fn put_leased(fixture: &Fixture, key: &str, lease: LeaseId) -> Result<u64> {
    let response = fixture.store.put(bytes(key), bytes("v"), Precondition::Any, Some(lease)).await?;
    assert_eq!(response.kv.lease, Some(lease));
    Ok(response.kv.mod_revision)
}

pub(super) async fn expiry(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    assert_eq!(store.expire_leases().await?, None);
    let short = store.grant_lease(10).await?;
    let long = store.grant_lease(30).await?;
    put_leased(&fixture, "a", short).await?;
    put_leased(&fixture, "b", short).await?;
    let revision = put_leased(&fixture, "c", long).await?;
    assert_eq!(store.expire_leases().await?, Some(Duration::from_secs(10)));
    assert_eq!((store.lease_ttl(short).await?, store.lease_ttl(long).await?), (10, 30));

    (fixture.advance)(Duration::from_secs(9));
    assert_eq!(store.expire_leases().await?, Some(Duration::from_secs(1)));
    assert!(store.get(b"a").await?.is_some());
    (fixture.advance)(Duration::from_secs(1));
    assert_eq!(store.expire_leases().await?, Some(Duration::from_secs(20)));
    assert_eq!((store.get(b"a").await?, store.get(b"b").await?), (None, None));
    assert!(store.get(b"c").await?.is_some());
    assert_eq!(store.current_revision().await?, revision + 1, "both keys go with one revision");
    assert_eq!(store.keep_alive_lease(short).await, Err(Error::LeaseNotFound(short)));
    assert_eq!(store.lease_ttl(short).await, Err(Error::LeaseNotFound(short)));

    (fixture.advance)(Duration::from_secs(20));
    assert_eq!(store.expire_leases().await?, None);
    assert_eq!(store.get(b"c").await?, None);
    assert_eq!(store.status().await?.leases, 0);
    Ok(())
}

pub(super) async fn keep_alive(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let lease = store.grant_lease(10).await?;
    put_leased(&fixture, "a", lease).await?;
    for _ in 0..3 {
        (fixture.advance)(Duration::from_secs(8));
        assert_eq!(store.keep_alive_lease(lease).await?, 10);
        assert_eq!(store.expire_leases().await?, Some(Duration::from_secs(10)));
    }
    assert!(store.get(b"a").await?.is_some());
    (fixture.advance)(Duration::from_secs(10));
    store.expire_leases().await?;
    assert_eq!(store.get(b"a").await?, None);
    Ok(())
}

pub(super) async fn revocation(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    let lease = store.grant_lease(10).await?;
    let start = store.current_revision().await?;
    for key in ["a", "b", "c"] {
        put_leased(&fixture, key, lease).await?;
    }
    put(store, "b", "without").await?;
    store.revoke_lease(lease).await?;
    let mut watch = store.watch(WatchRequest::prefix("").after(start)).await?;
    let events = super::watches::collect(&mut watch, start + 5).await?;
    let deleted: Vec<_> = events.iter().filter(|event| event.kind == EventKind::Delete).collect();
    assert_eq!(deleted.iter().map(|event| &event.kv.key[..]).collect::<Vec<_>>(), [b"a", b"c"]);
    assert!(deleted.iter().all(|event| event.kv.mod_revision == start + 5 && event.prev.is_some()));
    assert!(store.get(b"b").await?.is_some(), "a key written without the lease has left it");

    assert_eq!(store.revoke_lease(lease).await, Err(Error::LeaseNotFound(lease)));
    let late = store.put(bytes("a"), bytes("v"), Precondition::Any, Some(lease)).await;
    assert_eq!(late, Err(Error::LeaseNotFound(lease)));
    let next = store.grant_lease(10).await?;
    assert_ne!(next, lease);
    store.revoke_lease(next).await?;
    assert_eq!(store.current_revision().await?, start + 5, "a lease without keys costs no revision");
    Ok(())
}

pub(super) async fn attachment(fixture: Arc<Fixture>) -> Result<()> {
    let store = &*fixture.store;
    assert!(matches!(store.grant_lease(0).await, Err(Error::Invalid(_))));
    let (one, two) = (store.grant_lease(10).await?, store.grant_lease(10).await?);
    put_leased(&fixture, "moved", one).await?;
    put_leased(&fixture, "moved", two).await?;
    put_leased(&fixture, "renewed", one).await?;
    store.delete(bytes("renewed"), Precondition::Any).await?;
    put(store, "renewed", "free").await?;
    store.revoke_lease(one).await?;
    assert!(store.get(b"moved").await?.is_some());
    assert!(store.get(b"renewed").await?.is_some());
    store.revoke_lease(two).await?;
    assert_eq!(store.get(b"moved").await?, None);
    Ok(())
}
