//! Controllers that see their own writes late create no extra pods and delete none, however long it takes.
//!
//! With ReplicaSets that is the symptom of kubernetes#129795: pods that were created did not show up in the
//! cache, so more of them were created.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Event, ObjectReference, Pod};
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

/// Together with [`BETWEEN`] longer than upstream's expectations last.
const WAKE_UPS: u32 = 60;
const BETWEEN: Duration = Duration::from_secs(10);

/// A transport on which changes of one resource arrive only while a gate is open.
struct Lagging {
    inner: Arc<FakeApi>,
    late: ResourceType,
    gate: watch::Sender<bool>,
    /// The create with this number is lost, and the list that follows waits until the gate opens.
    lost: Option<usize>,
    created: AtomicUsize,
}

#[async_trait]
impl Transport for Lagging {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>> {
        let creates = request.method() == Method::POST && request.uri().path().contains("/pods");
        if creates && Some(self.created.fetch_add(1, Ordering::SeqCst) + 1) == self.lost {
            return Err(knarr_client::Error::Protocol("the request was lost".into()));
        }
        self.inner.send(request).await
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        let list = self.inner.list(resource, namespace, options).await;
        if *resource == Pod::RESOURCE && self.lost.is_some_and(|n| self.created.load(Ordering::SeqCst) >= n) {
            self.gate.send_replace(true);
            tokio::time::sleep(BETWEEN).await;
        }
        list
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        let events = self.inner.watch(resource, namespace, options).await?;
        if *resource != self.late {
            return Ok(events);
        }
        let open = self.gate.subscribe();
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

fn server() -> (Arc<FakeApi>, Arc<dyn Clock>) {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
    let resources = [
        CronJob::RESOURCE,
        Deployment::RESOURCE,
        Event::RESOURCE,
        Job::RESOURCE,
        Pod::RESOURCE,
        ReplicaSet::RESOURCE,
    ];
    (FakeApi::new(Arc::clone(&clock), &resources), clock)
}

struct Lab {
    api: Arc<FakeApi>,
    clock: Arc<dyn Clock>,
    gate: watch::Sender<bool>,
    stop: CancellationToken,
}

impl Lab {
    fn new(replicas: i32, open: bool) -> Self {
        Self::of_set(replicas, Pod::RESOURCE, open)
    }

    fn of_set(replicas: i32, late: ResourceType, open: bool) -> Self {
        let (api, clock) = server();
        let metadata = json!({"name": "web", "namespace": NAMESPACE, "generation": 1});
        let labels = json!({"app": "web"});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"replicas": replicas, "selector": {"matchLabels": labels}, "template": template});
        let set = json!({"metadata": metadata, "spec": spec});
        api.add::<ReplicaSet>(&serde_json::from_value(set).expect("a ReplicaSet"));
        Self::start(api, clock, &["replicaset-controller"], late, open, None)
    }

    fn start(
        api: Arc<FakeApi>,
        clock: Arc<dyn Clock>,
        names: &'static [&'static str],
        late: ResourceType,
        open: bool,
        lost: Option<usize>,
    ) -> Self {
        let (gate, _) = watch::channel(open);
        let (inner, created) = (Arc::clone(&api), AtomicUsize::new(0));
        let way = Arc::new(Lagging { inner, late, gate: gate.clone(), lost, created });
        let client = Client::new(way, Arc::clone(&clock), "lagging");
        let stop = CancellationToken::new();
        tokio::spawn(controllers(names, client, stop.clone()));
        Self { api, clock, gate, stop }
    }

    fn scale(&self, replicas: i32) {
        self.api.edit::<ReplicaSet>(NAMESPACE, "web", |set| set.spec.replicas = Some(replicas));
    }

    /// Wakes the controller again and again for ten minutes.
    async fn wake_often(&self) {
        for n in 0..WAKE_UPS {
            self.clock.sleep(BETWEEN).await;
            self.api.edit::<ReplicaSet>(NAMESPACE, "web", |set| {
                let annotations = set.metadata.annotations.get_or_insert_default();
                annotations.insert("look".to_owned(), n.to_string());
            });
        }
    }

    fn asked(&self, method: &Method) -> usize {
        self.asked_of(method, "/pods")
    }

    fn asked_of(&self, method: &Method, plural: &str) -> usize {
        let writes = self.api.writes();
        writes.iter().filter(|r| r.method == *method && r.path.contains(plural)).count()
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
        set(&lab.api, &pod.key(), "Running", None, lab.clock.now());
    }
    lab.settle().await;
    lab.gate.send_replace(false);
    lab.scale(3);
    // Which pod is deleted first changes as pods get older.
    lab.wake_often().await;
    assert_eq!((lab.asked(&Method::DELETE), lab.active()), (1, 3));
    lab.gate.send_replace(true);
    lab.settle().await;
    assert_eq!((lab.asked(&Method::DELETE), lab.asked(&Method::POST), lab.active()), (1, 4, 3));
}

#[tokio::test(start_paused = true)]
async fn a_replica_set_that_is_gone_gets_no_pods_however_late_that_shows() {
    let lab = Lab::of_set(2, ReplicaSet::RESOURCE, true);
    lab.settle().await;
    lab.gate.send_replace(false);
    lab.api.remove::<ReplicaSet>(NAMESPACE, "web");
    // Removes the pods, as the garbage collector does.
    lab.api.every::<Pod>().iter().for_each(|pod| lab.api.remove::<Pod>(NAMESPACE, pod.name()));
    lab.settle().await;
    assert_eq!((lab.asked(&Method::POST), lab.active()), (2, 0));
    lab.gate.send_replace(true);
    lab.settle().await;
    assert_eq!((lab.asked(&Method::POST), lab.active()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_is_gone_gets_no_sets_however_late_that_shows() {
    let (api, clock) = server();
    let labels = json!({"app": "web"});
    let template =
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"replicas": 2, "selector": {"matchLabels": labels}, "template": template});
    let deployment =
        json!({"metadata": {"name": "web", "namespace": NAMESPACE, "generation": 1}, "spec": spec});
    api.add::<Deployment>(&serde_json::from_value(deployment).expect("a Deployment"));
    let lab = Lab::start(api, clock, &["deployment-controller"], Deployment::RESOURCE, true, None);
    lab.settle().await;
    lab.gate.send_replace(false);
    lab.api.remove::<Deployment>(NAMESPACE, "web");
    // Removes the sets, as the garbage collector does.
    lab.api.every::<ReplicaSet>().iter().for_each(|set| lab.api.remove::<ReplicaSet>(NAMESPACE, set.name()));
    lab.settle().await;
    lab.gate.send_replace(true);
    lab.settle().await;
    assert_eq!(lab.asked_of(&Method::POST, "/replicasets"), 1);
    assert!(lab.api.every::<ReplicaSet>().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_runs_is_not_given_up_because_it_does_not_show() {
    let (api, clock) = server();
    let template = json!({"spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}]}}}});
    let spec = json!({"schedule": "*/5 * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": template});
    let cron = json!({"metadata": {"name": "cron", "namespace": NAMESPACE, "generation": 1}, "spec": spec});
    api.add::<CronJob>(&serde_json::from_value(cron).expect("a CronJob"));
    let lab = Lab::start(api, clock, &["cronjob-controller"], Job::RESOURCE, false, None);
    lab.settle().await;
    // A Job that an earlier life of the controller has started.
    let owner = lab.api.every::<CronJob>().first().map(|cron| cron.uid().to_owned()).expect("a CronJob");
    let owners = json!([{"apiVersion": "batch/v1", "kind": "CronJob", "name": "cron", "uid": owner, "controller": true}]);
    let job = json!({"metadata": {"name": "cron-1", "namespace": NAMESPACE, "ownerReferences": owners}});
    lab.api.add::<Job>(&serde_json::from_value(job).expect("a Job"));
    let uid = lab.api.every::<Job>().first().and_then(|job| job.metadata.uid.clone());
    lab.api.edit::<CronJob>(NAMESPACE, "cron", |cron| {
        let active = ObjectReference { name: Some("cron-1".to_owned()), uid, ..ObjectReference::default() };
        cron.status.get_or_insert_default().active = Some(vec![active]);
    });
    lab.clock.sleep(Duration::from_secs(1000)).await;
    assert_eq!(lab.asked_of(&Method::POST, "/jobs"), 0, "it still runs");
}

#[tokio::test(start_paused = true)]
async fn a_job_is_not_read_before_the_wait_for_its_own_writes() {
    let (api, clock) = server();
    let labels = json!({"app": "indexed"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"completions": 2, "parallelism": 1, "backoffLimit": 6, "completionMode": "Indexed",
        "podReplacementPolicy": "TerminatingOrFailed", "selector": {"matchLabels": labels}, "template": template});
    let job = json!({"metadata": {"name": "indexed", "namespace": NAMESPACE, "generation": 1}, "spec": spec});
    api.add::<Job>(&serde_json::from_value(job).expect("a Job"));
    let lab = Lab::start(api, clock, &["job-controller"], Job::RESOURCE, true, Some(2));
    lab.settle().await;
    // The first index is done, but the informer of jobs does not see it; the create of the second pod is
    // lost.
    lab.gate.send_replace(false);
    let first = lab.api.every::<Pod>().first().map(|p| p.key()).expect("a pod");
    set(&lab.api, &first, "Succeeded", Some(0), lab.clock.now());
    lab.settle().await;
    lab.settle().await;
    let of = |index: &str| lab.api.every::<Pod>().iter().filter(|p| p.name().starts_with(index)).count();
    assert_eq!((of("indexed-0-"), of("indexed-1-")), (1, 1));
}
