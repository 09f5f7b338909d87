//! A wrapper that measures requests to the store, under the metric names of upstream's etcd client.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use knarr_apimachinery::clock::Clock;
use knarr_storage::{
    Compare, KeyValue, LeaseId, Op, Precondition, RangeRequest, RangeResponse, Result, Status, Store,
    TxnResponse, Watch, WatchItem, WatchRequest,
};

use knarr_wire::metrics::{Metric, Metrics};

pub struct MeteredStore {
    inner: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
}

/// Returns the group and resource of a key below `/registry/`.
fn place(key: &[u8]) -> (&str, &str) {
    let text = std::str::from_utf8(key).unwrap_or("");
    let mut parts = text.strip_prefix("/registry/").unwrap_or("").split('/');
    let group = parts.next().unwrap_or("");
    (if group == "core" { "" } else { group }, parts.next().unwrap_or(""))
}

impl MeteredStore {
    pub fn new(inner: Arc<dyn Store>, metrics: Arc<Metrics>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, metrics, clock }
    }

    fn note(&self, operation: &str, key: &[u8], started: Duration, failed: bool) {
        let (group, resource) = place(key);
        let labels = [group, operation, resource];
        let took = self.clock.monotonic().saturating_sub(started).as_secs_f64();
        self.metrics.record(Metric::StorageDuration, &labels, took);
        self.metrics.increment(Metric::StorageRequests, &labels);
        if failed {
            self.metrics.increment(Metric::StorageErrors, &labels);
        }
    }
}

#[async_trait]
impl Store for MeteredStore {
    async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>> {
        let started = self.clock.monotonic();
        let found = self.inner.get(key).await;
        self.note("get", key, started, found.is_err());
        found
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let (started, start) = (self.clock.monotonic(), request.range.start.clone());
        let found = self.inner.range(request).await;
        self.note("list", &start, started, found.is_err());
        found
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnResponse> {
        let started = self.clock.monotonic();
        let fresh = compares.first().is_some_and(|c| c.condition == Precondition::NotExists);
        let (operation, key) = match ops.first() {
            Some(Op::Put { key, .. }) => (if fresh { "create" } else { "update" }, key.clone()),
            Some(Op::Delete { key }) => ("delete", key.clone()),
            None => ("get", Default::default()),
        };
        let done = self.inner.txn(compares, ops).await;
        // A conflict with another writer is not a failure of the store.
        let failed = done.as_ref().is_err_and(|e| e.conflict().is_none());
        self.note(operation, &key, started, failed);
        done
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch> {
        let watch = self.inner.watch(request).await?;
        let (progress, metrics) = (watch.progress_requester(), Arc::clone(&self.metrics));
        let counted = watch.inspect(move |item| {
            if let Ok(WatchItem::Events(events)) = item {
                for event in &events.events {
                    let (group, resource) = place(&event.kv.key);
                    metrics.increment(Metric::StorageEvents, &[group, resource]);
                }
            }
        });
        Ok(Watch::new(counted, progress))
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        self.inner.compact(revision).await
    }

    async fn current_revision(&self) -> Result<u64> {
        self.inner.current_revision().await
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
        self.inner.status().await
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
    use super::*;

    #[test]
    fn keys_name_their_resource() {
        for (key, group, resource) in [
            ("/registry/core/pods/a/b", "", "pods"),
            ("/registry/apps/deployments/a/b", "apps", "deployments"),
            ("/registry/", "", ""),
            ("/else", "", ""),
        ] {
            assert_eq!(place(key.as_bytes()), (group, resource), "{key}");
        }
    }
}
