//! A ReplicaSet whose pods are seen late: it makes no pod too many and gives up none, however long that takes.
//!
//! The symptom of kubernetes#129795, where pods that were created did not show, and more of them were.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Event, Pod};
use knarr_api::kind::{Kind, ResourceType};
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::TokioClock;
use knarr_client::transport::{List, ListOptions, Transport, WatchStream};
use knarr_client::{Client, Result};
use knarr_testing::FakeApi;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::node::{is_active, set};
use crate::objects::NAMESPACE;
use crate::world::controllers;

/// Longer than upstream's expectations last.
const LOOKS: u32 = 60;
const BETWEEN: Duration = Duration::from_secs(10);

/// A way on which changes of pods arrive only while a gate is open.
struct Lagging {
    inner: Arc<FakeApi>,
    open: watch::Receiver<bool>,
}

#[async_trait]
impl Transport for Lagging {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        self.inner.send(request).await
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        self.inner.list(resource, namespace, options).await
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        let events = self.inner.watch(resource, namespace, options).await?;
        if *resource != Pod::RESOURCE {
            return Ok(events);
        }
        let open = self.open.clone();
        Ok(Box::pin(events.then(move |event| {
            let mut open = open.clone();
            async move {
                // The gate outlives the test's controllers.
                let _ = open.wait_for(|open| *open).await;
                event
            }
        })))
    }
}

struct Lab {
    api: Arc<FakeApi>,
    clock: Arc<dyn Clock>,
    gate: watch::Sender<bool>,
    stop: CancellationToken,
}

impl Lab {
    fn new(replicas: i32, open: bool) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        let api = FakeApi::new(Arc::clone(&clock), &[Event::RESOURCE, Pod::RESOURCE, ReplicaSet::RESOURCE]);
        let metadata = json!({"name": "web", "namespace": NAMESPACE, "generation": 1});
        let labels = json!({"app": "web"});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"replicas": replicas, "selector": {"matchLabels": labels}, "template": template});
        let set = json!({"metadata": metadata, "spec": spec});
        api.add::<ReplicaSet>(&serde_json::from_value(set).expect("a ReplicaSet"));
        let (gate, open) = watch::channel(open);
        let way = Arc::new(Lagging { inner: Arc::clone(&api), open });
        let client = Client::new(way, Arc::clone(&clock), "lagging");
        let stop = CancellationToken::new();
        tokio::spawn(controllers(&["replicaset-controller"], client, stop.clone()));
        Self { api, clock, gate, stop }
    }

    fn scale(&self, replicas: i32) {
        self.api.edit::<ReplicaSet>(NAMESPACE, "web", |set| set.spec.replicas = Some(replicas));
    }

    /// The set is looked at again and again for ten minutes.
    async fn wake_often(&self) {
        for n in 0..LOOKS {
            self.clock.sleep(BETWEEN).await;
            self.api.edit::<ReplicaSet>(NAMESPACE, "web", |set| {
                let annotations = set.metadata.annotations.get_or_insert_default();
                annotations.insert("look".to_owned(), n.to_string());
            });
        }
    }

    fn asked(&self, method: &Method) -> usize {
        let writes = self.api.writes();
        writes.iter().filter(|r| r.method == *method && r.path.contains("/pods")).count()
    }

    fn active(&self) -> usize {
        self.api.every::<Pod>().iter().filter(|p| is_active(p)).count()
    }

    async fn settle(&self) {
        self.clock.sleep(Duration::from_secs(30)).await;
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_set_whose_informer_lags_creates_no_pod_too_many() {
    let lab = Lab::new(3, false);
    lab.wake_often().await;
    assert_eq!(lab.asked(&Method::POST), 3);
    lab.scale(5);
    lab.wake_often().await;
    assert_eq!(lab.asked(&Method::POST), 3, "it cannot know how many there are");
    lab.gate.send_replace(true);
    lab.settle().await;
    assert_eq!((lab.asked(&Method::POST), lab.active()), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn a_replica_set_whose_informer_lags_deletes_no_pod_too_many() {
    let lab = Lab::new(4, true);
    lab.settle().await;
    for pod in lab.api.every::<Pod>() {
        set(&lab.api, pod.name(), "Running", None, lab.clock.now());
    }
    lab.settle().await;
    lab.gate.send_replace(false);
    lab.scale(3);
    // Who is the most expendable changes as pods get older.
    lab.wake_often().await;
    assert_eq!((lab.asked(&Method::DELETE), lab.active()), (1, 3));
    lab.gate.send_replace(true);
    lab.settle().await;
    assert_eq!((lab.asked(&Method::DELETE), lab.asked(&Method::POST), lab.active()), (1, 4, 3));
}
