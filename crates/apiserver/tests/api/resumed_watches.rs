//! Watches that resume from the store's history while the cache is behind: every event is sent exactly once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use knarr_api::kind::Kind;
use knarr_client::WatchEvent;
use knarr_client::transport::{ListOptions, WatchStream};
use knarr_storage::suite::etcd_server::Server;
use knarr_storage::{Embedded, Options, Store, Watch, WatchItem};
use tokio::sync::watch;

use crate::harness::{CONFIG_MAPS, Harness, MERGE, User, config_map};
use crate::tapped::Tapped;

/// Holds back the feed of the caches.
struct Gate {
    store: Arc<dyn Store>,
    /// The feed receives no item beyond this revision.
    limit: Arc<watch::Sender<u64>>,
}

impl Gate {
    /// Returns the gate, and the gated store.
    fn new(store: Arc<dyn Store>) -> (Self, Arc<dyn Store>) {
        let limit = Arc::new(watch::Sender::new(u64::MAX));
        let held = Arc::clone(&limit);
        let gated = Tapped::over(Arc::clone(&store), move |watch| {
            let (progress, limit) = (watch.progress_requester(), held.subscribe());
            let gated = watch.then(move |item| {
                let mut limit = limit.clone();
                async move {
                    let revision = item.as_ref().map_or(0, WatchItem::revision);
                    let _ = limit.wait_for(|limit| revision <= *limit).await;
                    item
                }
            });
            Watch::new(gated, progress)
        });
        (Self { store, limit }, gated)
    }

    /// Holds back all writes from now on.
    async fn hold(&self) {
        self.limit.send_replace(self.store.current_revision().await.unwrap());
    }

    fn release(&self) {
        self.limit.send_replace(u64::MAX);
    }
}

/// Returns the changes of a watch up to that of the object `last`.
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

/// A watch resumes while the store is ahead of the cache, and continues when the cache catches up.
async fn resume_ahead_of_the_cache(store: Arc<dyn Store>) {
    let before = Harness::on(Arc::clone(&store), |_| ()).await;
    let u = before.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let list = u.0.list(&ConfigMap::RESOURCE, Some("default"), &ListOptions::default()).await.unwrap();
    u.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    before.server.stop();

    let (gate, gated) = Gate::new(store);
    let again = Harness::on(gated, |_| ()).await;
    let v = again.admin();
    gate.hold().await;
    v.post(CONFIG_MAPS, &config_map("c")).await.expect(201);
    change(&v, "1").await;
    v.delete(&format!("{CONFIG_MAPS}/c")).await.expect(200);
    let resumed = ListOptions { resource_version: Some(list.resource_version), ..ListOptions::default() };
    let selected = ListOptions { field_selector: Some("metadata.name=a".into()), ..resumed.clone() };
    let mut all = [watch_from(&v, resumed.clone()).await, watch_from(&v, resumed).await];
    let mut one = watch_from(&v, selected).await;
    gate.release();
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
