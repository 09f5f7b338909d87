//! A store whose watch on all keys, which feeds the caches, is intercepted by the test.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_storage::{
    Compare, KeyValue, LeaseId, Op, RangeRequest, RangeResponse, Result, Status, Store, TxnResponse, Watch,
    WatchRequest,
};

type Through = Box<dyn Fn(Watch) -> Watch + Send + Sync>;

pub struct Tapped {
    store: Arc<dyn Store>,
    through: Through,
}

impl Tapped {
    pub fn over(
        store: Arc<dyn Store>,
        through: impl Fn(Watch) -> Watch + Send + Sync + 'static,
    ) -> Arc<dyn Store> {
        Arc::new(Self { store, through: Box::new(through) })
    }
}

#[async_trait]
impl Store for Tapped {
    async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>> {
        self.store.get(key).await
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.store.range(request).await
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnResponse> {
        self.store.txn(compares, ops).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch> {
        let is_feed = &request.range.start[..] == b"/registry/";
        let watch = self.store.watch(request).await?;
        Ok(if is_feed { (self.through)(watch) } else { watch })
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        self.store.compact(revision).await
    }

    async fn current_revision(&self) -> Result<u64> {
        self.store.current_revision().await
    }

    async fn grant_lease(&self, ttl_seconds: u64) -> Result<LeaseId> {
        self.store.grant_lease(ttl_seconds).await
    }

    async fn keep_alive_lease(&self, lease: LeaseId) -> Result<u64> {
        self.store.keep_alive_lease(lease).await
    }

    async fn lease_ttl(&self, lease: LeaseId) -> Result<u64> {
        self.store.lease_ttl(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.store.revoke_lease(lease).await
    }

    async fn expire_leases(&self) -> Result<Option<Duration>> {
        self.store.expire_leases().await
    }

    async fn status(&self) -> Result<Status> {
        self.store.status().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }
}
