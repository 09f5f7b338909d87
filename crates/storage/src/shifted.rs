//! A store whose revisions are those of another store plus a constant. When a cluster is restored into an etcd with
//! lower revisions, this keeps it from reusing revisions that clients have seen.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;

use crate::types::{
    Compare, Event, KeyValue, LeaseId, Op, OpResult, Precondition, RangeRequest, RangeResponse, Status,
    TxnResponse,
};
use crate::watch::{Watch, WatchItem, WatchRequest};
use crate::{Error, Result, Store};

/// See the module's documentation.
pub struct Shifted {
    inner: Arc<dyn Store>,
    by: u64,
}

impl Shifted {
    /// Returns the same store if `by` is 0.
    pub fn wrap(inner: Arc<dyn Store>, by: u64) -> Arc<dyn Store> {
        if by == 0 { inner } else { Arc::new(Self { inner, by }) }
    }

    fn up(&self, revision: u64) -> u64 {
        revision.saturating_add(self.by)
    }

    fn kv_up(&self, kv: &mut KeyValue) {
        up(kv, self.by);
    }

    /// Converts to the inner store's revision. Everything before its first revision counts as compacted.
    fn down(&self, revision: u64) -> Result<u64> {
        let oldest = self.by;
        revision.checked_sub(self.by).ok_or(Error::Compacted { requested: revision, compacted: oldest })
    }

    fn error_up(&self, error: Error) -> Error {
        match error {
            Error::Conflict(mut conflict) => {
                conflict.revision = self.up(conflict.revision);
                if let Some(kv) = &mut conflict.current {
                    self.kv_up(kv);
                }
                Error::Conflict(conflict)
            }
            error => error_up(error, self.by),
        }
    }

    fn condition_down(&self, condition: Precondition) -> Precondition {
        match condition {
            // No key was written by a revision that low; nor by 0, which the inner store may take for no revision.
            Precondition::ModRevision(revision) => Precondition::ModRevision(
                revision.checked_sub(self.by).filter(|inner| *inner > 0).unwrap_or(u64::MAX),
            ),
            other => other,
        }
    }
}

fn up(kv: &mut KeyValue, by: u64) {
    // 0 stands for a deleted key.
    for revision in [&mut kv.create_revision, &mut kv.mod_revision] {
        if *revision > 0 {
            *revision = revision.saturating_add(by);
        }
    }
}

fn error_up(error: Error, by: u64) -> Error {
    match error {
        Error::Compacted { requested, compacted } => Error::Compacted {
            requested: requested.saturating_add(by),
            compacted: compacted.saturating_add(by),
        },
        Error::FutureRevision { requested, current } => Error::FutureRevision {
            requested: requested.saturating_add(by),
            current: current.saturating_add(by),
        },
        error => error,
    }
}

fn item_up(mut item: WatchItem, by: u64) -> WatchItem {
    match &mut item {
        WatchItem::Progress(revision) => *revision = revision.saturating_add(by),
        WatchItem::Events(batch) => {
            batch.revision = batch.revision.saturating_add(by);
            for Event { kv, prev, .. } in &mut batch.events {
                up(kv, by);
                if let Some(prev) = prev {
                    up(prev, by);
                }
            }
        }
    }
    item
}

#[async_trait]
impl Store for Shifted {
    async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>> {
        let mut kv = self.inner.get(key).await?;
        if let Some(kv) = &mut kv {
            self.kv_up(kv);
        }
        Ok(kv)
    }

    async fn range(&self, mut request: RangeRequest) -> Result<RangeResponse> {
        request.revision = request.revision.map(|revision| self.down(revision)).transpose()?;
        let mut response = self.inner.range(request).await.map_err(|error| self.error_up(error))?;
        response.kvs.iter_mut().for_each(|kv| self.kv_up(kv));
        response.revision = self.up(response.revision);
        Ok(response)
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnResponse> {
        let lowered =
            |compare: Compare| Compare { condition: self.condition_down(compare.condition), ..compare };
        let compares = compares.into_iter().map(lowered).collect();
        let mut response = self.inner.txn(compares, ops).await.map_err(|error| self.error_up(error))?;
        response.revision = self.up(response.revision);
        for result in &mut response.results {
            let (kv, prev) = match result {
                OpResult::Put { kv, prev } => (Some(kv), prev),
                OpResult::Delete { prev } => (None, prev),
            };
            kv.into_iter().chain(prev).for_each(|kv| self.kv_up(kv));
        }
        Ok(response)
    }

    async fn watch(&self, mut request: WatchRequest) -> Result<Watch> {
        request.after = request.after.map(|after| self.down(after)).transpose()?;
        let watch = self.inner.watch(request).await.map_err(|error| self.error_up(error))?;
        let (by, progress) = (self.by, watch.progress_requester());
        let raised = move |item: Result<WatchItem>| match item {
            Ok(item) => Ok(item_up(item, by)),
            Err(error) => Err(error_up(error, by)),
        };
        Ok(Watch::new(watch.map(raised), progress))
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        match self.down(revision) {
            Ok(revision) if revision > 0 => {
                self.inner.compact(revision).await.map_err(|error| self.error_up(error))
            }
            _ => Ok(()),
        }
    }

    async fn current_revision(&self) -> Result<u64> {
        Ok(self.up(self.inner.current_revision().await?))
    }

    async fn grant_lease(&self, ttl_seconds: u64) -> Result<LeaseId> {
        self.inner.grant_lease(ttl_seconds).await
    }

    async fn keep_alive_lease(&self, lease: LeaseId) -> Result<u64> {
        self.inner.keep_alive_lease(lease).await
    }

    async fn lease_ttl(&self, lease: LeaseId) -> Result<u64> {
        self.inner.lease_ttl(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.inner.revoke_lease(lease).await
    }

    async fn expire_leases(&self) -> Result<Option<Duration>> {
        self.inner.expire_leases().await
    }

    async fn status(&self) -> Result<Status> {
        let mut status = self.inner.status().await?;
        status.revision = self.up(status.revision);
        status.compacted_revision = self.up(status.compacted_revision);
        Ok(status)
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    async fn closed(&self) {
        self.inner.closed().await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::embedded::tests::manual_time;
    use crate::{Embedded, Options, suite};

    fn shifted(by: u64) -> Arc<dyn Store> {
        Shifted::wrap(Arc::new(Embedded::memory(Options::default())), by)
    }

    #[tokio::test]
    async fn a_shifted_store_conforms() {
        suite::run(|| async {
            let (time, advance) = manual_time();
            let inner = Arc::new(Embedded::memory(Options { time, ..Options::default() }));
            suite::Fixture { store: Shifted::wrap(inner, 1_000_000_007), advance, keep: Box::new(()) }
        })
        .await;
    }

    #[tokio::test]
    async fn what_lies_before_the_shift_is_compacted_and_matches_nothing() {
        let store = shifted(100);
        let put = |precondition| store.put("a".into(), Bytes::from_static(b"1"), precondition, None);
        assert_eq!(put(Precondition::Any).await.unwrap().kv.mod_revision, 102);
        for old in [0, 1, 2, 99, 100, 101] {
            assert!(put(Precondition::ModRevision(old)).await.unwrap_err().conflict().is_some(), "{old}");
        }
        for old in [2, 99] {
            let watch = store.watch(WatchRequest::prefix("").after(old)).await;
            assert!(matches!(watch, Err(Error::Compacted { requested, .. }) if requested == old));
            let range = store.range(RangeRequest::prefix("").at(old)).await;
            assert!(matches!(range, Err(Error::Compacted { requested, .. }) if requested == old));
        }
        store.compact(50).await.unwrap();
        assert_eq!(store.status().await.unwrap().compacted_revision, 100);
        assert_eq!(shifted(0).current_revision().await.unwrap(), 1);
    }
}
