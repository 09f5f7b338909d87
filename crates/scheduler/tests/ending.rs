//! What becomes of binding cycles when the scheduler is to end: writes under way are waited for, and nothing else is.

mod world;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_apimachinery::clock::Clock;
use knarr_client::clock::TokioClock;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use knarr_scheduler::config::Configuration;
use knarr_scheduler::{Options, Scheduler};
use knarr_testing::FakeApi;
use knarr_testing::faults::{Chance, Faulty, Rates};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use world::{kinds, object};

/// A scheduler whose requests take up to two seconds.
struct Lab {
    api: Arc<FakeApi>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
    running: JoinHandle<()>,
    scheduler: Arc<Scheduler>,
}

async fn lab() -> Lab {
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    let api = FakeApi::new(Arc::clone(&clock), &kinds());
    api.add::<Node>(&object(json!({"metadata": {"name": "a"}, "status": {"allocatable":
        {"cpu": "4", "memory": "8Gi", "pods": "110"}}})));
    let rates = Rates { latency: Duration::from_secs(1), ..Rates::NONE };
    let slow = Faulty::new(Arc::clone(api.client().transport()), Arc::clone(&clock), Chance::new(7, rates));
    let client = Client::new(slow, Arc::clone(&clock), "kube-scheduler");
    let stop = CancellationToken::new();
    let informers = Arc::new(Informers::new(client.clone(), stop.clone()));
    let recorder = EventRecorder::new(client, "default-scheduler", "", stop.clone());
    let options = Options { config: Configuration::default(), seed: 1 };
    let scheduler = Scheduler::new(&informers, recorder, options).unwrap();
    assert!(informers.wait_synced().await);
    let running = tokio::spawn(Arc::clone(&scheduler).run(stop.clone()));
    Lab { api, clock, stop, running, scheduler }
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it did not come to that");
}

#[tokio::test(start_paused = true)]
async fn a_binding_under_way_is_written_before_the_end_and_none_after_it() {
    let Lab { api, stop, running, scheduler, .. } = lab().await;
    let pod = |name: &str| {
        object::<Pod>(json!({"metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}))
    };
    let node = |name: &str| api.get::<Pod>("default", name).unwrap().spec.unwrap().node_name;
    api.add(&pod("p"));
    until(|| scheduler.metrics().contains("scheduler_goroutines{operation=\"binding\"} 1")).await;
    assert_eq!(node("p"), None, "still under way");
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap();
    assert_eq!(node("p").as_deref(), Some("a"));
    api.add(&pod("q"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(node("q"), None);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_volume_until_the_end() {
    let Lab { api, clock, stop, running, .. } = lab().await;
    api.add::<StorageClass>(&object(json!({"metadata": {"name": "late"}, "provisioner": "nobody",
        "volumeBindingMode": "WaitForFirstConsumer"})));
    api.add::<PersistentVolumeClaim>(&object(json!({"metadata": {"name": "c", "namespace": "default"},
        "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})));
    tokio::time::sleep(Duration::from_secs(10)).await;
    api.add::<Pod>(&object(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}})));
    let is_chosen = || {
        let claim = api.get::<PersistentVolumeClaim>("default", "c").unwrap();
        claim.metadata.annotations.is_some_and(|a| a.contains_key("volume.kubernetes.io/selected-node"))
    };
    until(is_chosen).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (began, writes) = (clock.monotonic(), api.writes().len());
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap();
    assert!(clock.monotonic() - began < Duration::from_millis(10), "{:?}", clock.monotonic() - began);
    assert_eq!(api.writes().len(), writes, "the pod was not turned down: {:?}", api.writes().last());
}
