//! Tests what happens to binding cycles when the scheduler ends: it waits for writes in progress, and for nothing else.

mod world;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::kind::Kind;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::status::StatusError;
use knarr_client::clock::TokioClock;
use knarr_client::events::EventRecorder;
use knarr_client::leader_election::LeaderElection;
use knarr_client::leadership::Leadership;
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
    // Pods that are bound after the stop still get their events.
    let recorder = EventRecorder::new(client, "default-scheduler", "", CancellationToken::new());
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
    panic!("the expected state was not reached");
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
    let events: Vec<_> = api.all::<Event>().into_iter().filter_map(|event| event.reason).collect();
    assert_eq!(events, ["Scheduled"], "written before the end, too");
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

/// Responses take so long that bindings are in progress when the lease is lost.
#[tokio::test(start_paused = true)]
async fn a_scheduler_that_lost_its_lease_sends_nothing_more() {
    const SLOW: Duration = Duration::from_secs(2);
    let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    let api = FakeApi::new(Arc::clone(&clock), &[kinds(), vec![Lease::RESOURCE]].concat());
    api.add::<Node>(&object(json!({"metadata": {"name": "a"}, "status": {"allocatable":
        {"cpu": "4", "memory": "8Gi", "pods": "110"}}})));
    api.add::<StorageClass>(&object(json!({"metadata": {"name": "late"}, "provisioner": "somebody",
        "volumeBindingMode": "WaitForFirstConsumer"})));
    let rates = Rates { latency: SLOW, ..Rates::NONE };
    let slow = Faulty::new(Arc::clone(api.client().transport()), Arc::clone(&clock), Chance::new(7, rates));
    let client = Client::new(slow, Arc::clone(&clock), "kube-scheduler");
    let stop = CancellationToken::new();
    let (lost, metrics) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(String::new())));
    let (end, ended, shown, renewing) = (stop.clone(), Arc::clone(&lost), Arc::clone(&metrics), api.client());
    let running = tokio::spawn(async move {
        let election = LeaderElection::new("kube-system", "kube-scheduler", "me");
        let work = |leading: Leadership| {
            let (client, ended, shown) = (client.clone().under(&leading), ended.clone(), shown.clone());
            async move {
                let stop = leading.until;
                let informers = Arc::new(Informers::new(client.clone(), stop.clone()));
                let recorder = EventRecorder::new(client.clone(), "default-scheduler", "", stop.clone());
                let options = Options { config: Configuration::default(), seed: 1 };
                let scheduler = Scheduler::new(&informers, recorder, options).unwrap();
                assert!(informers.wait_synced().await);
                let work = tokio::spawn(Arc::clone(&scheduler).run(stop.clone()));
                stop.cancelled().await;
                *ended.lock().unwrap() = Some(client.clock().now());
                work.await.unwrap();
                *shown.lock().unwrap() = scheduler.metrics();
            }
        };
        election.while_leading(renewing, end, work).await;
    });
    until(|| api.get::<Lease>("kube-system", "kube-scheduler").is_some()).await;
    api.guard(|request, _| {
        request.path.contains("/leases").then(|| StatusError::unavailable("the lease cannot be written"))
    });
    for n in 0..300 {
        if lost.lock().unwrap().is_some() {
            break;
        }
        let (pod, claim) = (format!("p{n}"), format!("c{n}"));
        api.add::<PersistentVolumeClaim>(&object(
            json!({"metadata": {"name": claim, "namespace": "default"},
            "spec": {"storageClassName": "late", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}),
        ));
        api.add::<Pod>(&object(json!({"metadata": {"name": pod, "namespace": "default"}, "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})));
        api.add::<Pod>(&object(json!({"metadata": {"name": format!("q{n}"), "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}})));
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    until(|| lost.lock().unwrap().is_some()).await;
    let lost = lost.lock().unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let writes = api.writes();
    let of_scheduler =
        writes.iter().filter(|r| r.by.starts_with("kube-scheduler/") && !r.path.contains("/events"));
    let (on_their_way, late): (Vec<_>, Vec<_>) =
        of_scheduler.filter(|r| r.at > lost).partition(|r| r.at <= lost + SLOW);
    assert!(!on_their_way.is_empty(), "some were under way");
    assert!(late.is_empty(), "{} writes were sent after the end of the lease: {late:?}", late.len());
    let metrics = metrics.lock().unwrap().clone();
    let failed = metrics
        .lines()
        .find(|l| l.starts_with("scheduler_schedule_attempts_total") && l.contains("result=\"error\""));
    assert_eq!(failed, None, "no pod was rejected");
    stop.cancel();
    tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap();
}
