//! Watches that resume from the store's history while the cache is behind it: every event comes once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::kind::Kind;
use knarr_client::WatchEvent;
use knarr_client::transport::{ListOptions, WatchStream};
use knarr_storage::suite::etcd_server::Server;
use knarr_storage::{
    Compare, Embedded, KeyValue, LeaseId, Op, Options, RangeRequest, RangeResponse, Result, Status, Store,
    TxnResponse, Watch, WatchItem, WatchRequest,
};
use tokio::sync::watch;

use crate::harness::{CONFIG_MAPS, Harness, MERGE, User, config_map};

/// A store whose watch over everything, the one that feeds the caches, can be held back at a revision.
struct Gated {
    store: Arc<dyn Store>,
    /// The feed gets no item beyond this revision.
    limit: watch::Sender<u64>,
}

impl Gated {
    fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { store, limit: watch::Sender::new(u64::MAX) })
    }

    /// Holds back what is written from now on.
    async fn hold(&self) {
        self.limit.send_replace(self.store.current_revision().await.unwrap());
    }

    fn release(&self) {
        self.limit.send_replace(u64::MAX);
    }
}

#[async_trait]
impl Store for Gated {
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
        if !is_feed {
            return Ok(watch);
        }
        let (progress, limit) = (watch.progress_requester(), self.limit.subscribe());
        let gated = watch.then(move |item| {
            let mut limit = limit.clone();
            async move {
                let revision = item.as_ref().map_or(0, WatchItem::revision);
                let _ = limit.wait_for(|limit| revision <= *limit).await;
                item
            }
        });
        Ok(Watch::new(gated, progress))
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

/// The changes of a watch up to that of the object `last`.
async fn through(stream: &mut WatchStream, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let event = tokio::time::timeout(Duration::from_secs(30), stream.next()).await.unwrap();
        let (sign, object) = match event.expect("the watch goes on").unwrap() {
            WatchEvent::Added(object) => ('+', object),
            WatchEvent::Modified(object) => ('~', object),
            WatchEvent::Deleted(object) => ('-', object),
            WatchEvent::Bookmark(_) => continue,
        };
        seen.push(format!("{sign}{}", object.name()));
        if object.name() == last {
            return seen;
        }
    }
}

async fn watch_from(user: &User, options: ListOptions) -> WatchStream {
    user.0.watch(&ConfigMap::RESOURCE, Some("default"), &options).await.unwrap()
}

async fn change(user: &User, value: &str) {
    let data = serde_json::json!({"data": {"x": value}});
    user.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &data).await.expect(200);
}

/// A watch resumes when the store is further than the cache, and goes on when the cache catches up.
async fn resume_ahead_of_the_cache(store: Arc<dyn Store>) {
    let before = Harness::on(Arc::clone(&store), |_| ()).await;
    let u = before.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let list = u.0.list(&ConfigMap::RESOURCE, Some("default"), &ListOptions::default()).await.unwrap();
    u.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    before.server.stop();

    let gated = Gated::new(store);
    let again = Harness::on(Arc::clone(&gated) as Arc<dyn Store>, |_| ()).await;
    let v = again.admin();
    gated.hold().await;
    v.post(CONFIG_MAPS, &config_map("c")).await.expect(201);
    change(&v, "1").await;
    v.delete(&format!("{CONFIG_MAPS}/c")).await.expect(200);
    let resumed = ListOptions { resource_version: Some(list.resource_version), ..ListOptions::default() };
    let selected = ListOptions { field_selector: Some("metadata.name=a".into()), ..resumed.clone() };
    let mut all = [watch_from(&v, resumed.clone()).await, watch_from(&v, resumed).await];
    let mut one = watch_from(&v, selected).await;
    gated.release();
    change(&v, "2").await;
    v.post(CONFIG_MAPS, &config_map("last")).await.expect(201);
    for watch in &mut all {
        assert_eq!(through(watch, "last").await, ["+b", "+c", "~a", "-c", "~a", "+last"]);
    }
    assert_eq!(through(&mut one, "a").await, ["~a"]);
    assert_eq!(through(&mut one, "a").await, ["~a"]);
    change(&v, "3").await;
    v.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    assert_eq!(through(&mut one, "a").await, ["~a"]);
    assert_eq!(through(&mut one, "a").await, ["-a"]);
    again.server.stop();
}

#[tokio::test]
async fn the_embedded_history_is_not_repeated() {
    resume_ahead_of_the_cache(Arc::new(Embedded::memory(Options::default()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_of_etcd_is_not_repeated() {
    let etcd = Server::start();
    resume_ahead_of_the_cache(Arc::new(etcd.store(etcd.options()).await)).await;
}
