//! Runs a scheduler against an API in memory: pods are placed where extenders want them, a failing extender blocks no
//! other pods, and nodes on which no pods start are reported.

mod world;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use knarr_client::Informers;
use knarr_client::clock::SystemClock;
use knarr_client::events::EventRecorder;
use knarr_scheduler::config::Configuration;
use knarr_scheduler::{Options, Scheduler};
use knarr_testing::FakeApi;
use knarr_testing::hook_server::{HookServer, Reply};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use world::{kinds, object};

fn pod(name: &str, resources: Value) -> Pod {
    object(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": resources, "limits": resources}}]}}))
}

struct Lab {
    api: Arc<FakeApi>,
    scheduler: Arc<Scheduler>,
    stop: CancellationToken,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn lab(extenders: Value) -> Lab {
    let config = Configuration::parse(json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration", "extenders": extenders}))
    .unwrap();
    lab_of(config).await
}

async fn lab_of(config: Configuration) -> Lab {
    let api = FakeApi::new(Arc::new(SystemClock), &kinds());
    for name in ["a", "b"] {
        api.add::<Node>(&object(json!({"metadata": {"name": name}, "status": {"allocatable":
            {"cpu": "4", "memory": "8Gi", "pods": "110"}}})));
    }
    let stop = CancellationToken::new();
    let informers = Arc::new(Informers::new(api.client(), stop.clone()));
    let recorder = EventRecorder::new(api.client(), "default-scheduler", "", stop.clone());
    let scheduler = Scheduler::new(&informers, recorder, Options { config, seed: 1 }).unwrap();
    assert!(informers.wait_synced().await);
    tokio::spawn(Arc::clone(&scheduler).run(stop.clone()));
    Lab { api, scheduler, stop }
}

async fn until<T>(what: impl Fn() -> Option<T>) -> T {
    for _ in 0..2000 {
        if let Some(found) = what() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the expected state was not reached");
}

#[tokio::test]
async fn an_extender_filters_ranks_and_binds() {
    let hook = HookServer::start(&["localhost"], |asked| match asked.path.as_str() {
        "/filter" => Reply::Json(json!({"NodeNames": ["a", "b"]})),
        "/prioritize" => Reply::Json(json!([{"Host": "b", "Score": 10}, {"Host": "a", "Score": 0}])),
        _ => Reply::Json(json!({})),
    })
    .await
    .unwrap();
    let lab = lab(json!([{"urlPrefix": hook.url(""), "enableHTTPS": true, "nodeCacheCapable": true,
        "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 100, "bindVerb": "bind"}]))
    .await;
    lab.api.add(&pod("p", json!({"cpu": "100m"})));
    let bound = until(|| hook.received().into_iter().find(|asked| asked.path == "/bind")).await;
    assert_eq!((&bound.body["PodName"], &bound.body["Node"]), (&json!("p"), &json!("b")));
}

#[tokio::test]
async fn a_slow_or_refusing_extender_holds_up_only_its_own_pods() {
    let hook = HookServer::start(&["localhost"], |asked| match asked.path.as_str() {
        "/bind" => Reply::Json(json!({})),
        _ if asked.body["Pod"]["metadata"]["name"] == "refused" => {
            Reply::Json(json!({"NodeNames": [], "FailedNodes": {"a": "no card", "b": "no card"}}))
        }
        _ => Reply::Never,
    })
    .await
    .unwrap();
    let url = hook.url("");
    let lab = lab(json!([
        {"urlPrefix": url, "enableHTTPS": true, "nodeCacheCapable": true, "filterVerb": "filter",
            "httpTimeout": "300ms", "managedResources": [{"name": "example.com/card", "ignoredByScheduler": true}]},
        {"urlPrefix": url, "enableHTTPS": true, "bindVerb": "bind"}]))
    .await;
    lab.api.add(&pod("slow", json!({"example.com/card": "1"})));
    lab.api.add(&pod("plain", json!({"cpu": "1"})));
    until(|| hook.received().into_iter().find(|a| a.path == "/bind" && a.body["PodName"] == "plain")).await;
    let said = |name: &'static str| {
        let pod = lab.api.get::<Pod>("default", name)?;
        pod.status?.conditions?.into_iter().find(|c| c.type_ == "PodScheduled")?.message
    };
    let why = until(|| said("slow")).await;
    assert!(
        why.ends_with(
            "/filter\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        ),
        "{why}"
    );
    lab.api.add(&pod("refused", json!({"example.com/card": "1"})));
    let why = until(|| said("refused")).await;
    assert!(why.starts_with("0/2 nodes are available: 2 no card."), "{why}");
}

fn owned(name: &str, owner: &str) -> Pod {
    let mut pod = pod(name, json!({"cpu": "100m"}));
    pod.metadata.owner_references = Some(vec![
        serde_json::from_value(
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": owner,
            "controller": true}),
        )
        .unwrap(),
    ]);
    pod.spec.as_mut().unwrap().node_name = Some("a".to_owned());
    pod
}

#[tokio::test]
async fn a_node_on_which_nothing_starts_is_told_of_and_counted() {
    let lab = lab(json!([])).await;
    for n in 0..5 {
        lab.api.add(&owned(&format!("p{n}"), ["x", "y", "z"][n % 3]));
    }
    until(|| lab.scheduler.metrics().contains("scheduler_cache_size{type=\"pods\"} 5").then_some(())).await;
    for n in 0..5 {
        lab.api.edit::<Pod>("default", &format!("p{n}"), |pod| {
            let status = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError"});
            pod.status = Some(serde_json::from_value(status).unwrap());
        });
    }
    let condition = || {
        let conditions = lab.api.get::<Node>("", "a")?.status?.conditions?;
        conditions.into_iter().find(|c| c.type_ == "PodsFailToStart" && c.status == "True")
    };
    assert_eq!(until(condition).await.reason.as_deref(), Some("SeveralOwnersFailed"));
    let metrics = lab.scheduler.metrics();
    for expected in ["knarr_scheduler_avoided_nodes 1", "knarr_scheduler_breaker_trips_total 1"] {
        assert!(metrics.contains(expected), "{metrics}");
    }
}

#[tokio::test]
async fn attempts_and_waiting_pods_are_counted() {
    let lab = lab(json!([])).await;
    lab.api.add(&pod("large", json!({"cpu": "64"})));
    let counted =
        "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"unschedulable\"} 1";
    until(|| lab.scheduler.metrics().contains(counted).then_some(())).await;
    let metrics = lab.scheduler.metrics();
    for expected in [
        "scheduler_pending_pods{queue=\"unschedulable\"} 1",
        "scheduler_unschedulable_pods{plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"} 1",
        "scheduler_queue_incoming_pods_total{event=\"UnscheduledPodAdd\",queue=\"active\"} 1",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Filter\",\
            profile=\"default-scheduler\",status=\"Unschedulable\"} 1",
        "scheduler_cache_size{type=\"nodes\"} 2",
    ] {
        assert!(metrics.contains(expected), "{expected}\n{metrics}");
    }
}

#[tokio::test]
async fn while_devices_are_prepared_the_pod_is_nominated() {
    let lab = lab(json!([])).await;
    lab.api.add::<DeviceClass>(&object(json!({"metadata": {"name": "card"}, "spec": {}})));
    lab.api.add::<ResourceSlice>(&object(
        json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "b",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "x",
            "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}]}}),
    ));
    lab.api.add::<ResourceClaim>(&object(json!({"metadata": {"name": "c", "namespace": "default"}, "spec":
        {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "card"}}]}}})));
    let mut waits = pod("p", json!({"cpu": "1"}));
    waits.spec.as_mut().unwrap().resource_claims =
        Some(vec![serde_json::from_value(json!({"name": "c", "resourceClaimName": "c"})).unwrap()]);
    lab.api.add(&waits);
    let nominated = || lab.api.get::<Pod>("default", "p").unwrap().status?.nominated_node_name;
    let allocated = || lab.api.get::<ResourceClaim>("default", "c").unwrap().status?.allocation;
    assert_eq!(until(nominated).await, "b");
    until(allocated).await;
    lab.api.edit::<ResourceClaim>("default", "c", |claim| {
        let devices = json!([{"driver": "d", "pool": "p", "device": "x", "conditions": [{"type": "broken",
            "status": "True", "reason": "No", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]);
        claim.status.as_mut().unwrap().devices = serde_json::from_value(devices).unwrap();
    });
    until(|| nominated().is_none().then_some(())).await;
    let metrics = lab.scheduler.metrics();
    for (point, status) in [
        ("PreScore", "Success"),
        ("Permit", "Success"),
        ("PreBindPreFlight", "Success"),
        ("Unreserve", "Success"),
    ] {
        let point = format!(
            "duration_seconds_count{{extension_point=\"{point}\",profile=\"default-scheduler\",status=\"{status}\"}}"
        );
        assert!(metrics.contains(&point), "{point}\n{metrics}");
    }
    let failed = "dra_bindingconditions_allocations_total{driver=\"d\",profile=\"default-scheduler\",status=\"failure\"} 1";
    assert!(metrics.contains(failed), "{metrics}");
    for (point, plugin) in [("PreFilter", "NodeResourcesFit"), ("PreBind", "DynamicResources")] {
        let plugin = format!(
            "plugin_execution_duration_seconds_count{{extension_point=\"{point}\",plugin=\"{plugin}\""
        );
        assert!(metrics.contains(&plugin), "{plugin}\n{metrics}");
    }
}

#[tokio::test]
async fn extended_resources_may_be_devices() {
    let hook = HookServer::start(&["localhost"], |_| Reply::Json(json!({}))).await.unwrap();
    let lab = lab(json!([{"urlPrefix": hook.url(""), "enableHTTPS": true, "bindVerb": "bind"}])).await;
    lab.api.add(&pod("p", json!({"example.com/card": "1", "cpu": "1"})));
    let said = || {
        let pod = lab.api.get::<Pod>("default", "p")?;
        pod.status?.conditions?.into_iter().find(|c| c.type_ == "PodScheduled")?.message
    };
    assert!(until(said).await.starts_with("0/2 nodes are available: 2 Insufficient example.com/card."));
    let slice = |device: &str| -> ResourceSlice {
        object(json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "b",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": device}]}}))
    };
    lab.api.add::<DeviceClass>(&object(
        json!({"metadata": {"name": "card"}, "spec": {"extendedResourceName": "example.com/card"}}),
    ));
    until(|| said().filter(|why| why.starts_with("0/2 nodes are available: 2 cannot allocate all claims.")))
        .await;
    lab.api.add(&slice("x"));
    let told = || lab.api.get::<Pod>("default", "p").unwrap().status?.extended_resource_claim_status;
    let told = until(told).await;
    let mapping = &told.request_mappings[0];
    assert_eq!(
        (mapping.container_name.as_str(), mapping.resource_name.as_str(), mapping.request_name.as_str()),
        ("c", "example.com/card", "container-0-request-1")
    );
    assert!(told.resource_claim_name.starts_with("p-extended-resources-"), "{}", told.resource_claim_name);
    let claim = lab.api.get::<ResourceClaim>("default", &told.resource_claim_name).unwrap();
    let status = claim.status.unwrap();
    assert_eq!(status.reserved_for.unwrap()[0].name, "p");
    assert_eq!(status.allocation.unwrap().devices.unwrap().results.unwrap()[0].device, "x");
    assert_eq!(claim.metadata.owner_references.unwrap()[0].name, "p");
    // The device is allocated.
    lab.api.add(&pod("q", json!({"deviceclass.resource.kubernetes.io/card": "1"})));
    let said = || {
        let pod = lab.api.get::<Pod>("default", "q")?;
        pod.status?.conditions?.into_iter().find(|c| c.type_ == "PodScheduled")?.message
    };
    until(|| said().filter(|why| why.starts_with("0/2 nodes are available: 2 cannot allocate all claims.")))
        .await;
}

/// Returns a scheduler with gang scheduling.
async fn gang_lab() -> Lab {
    lab_of(Configuration { generic_workload: true, ..Configuration::default() }).await
}

fn gang(name: &str, min_count: i32) -> PodGroup {
    object(json!({"metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": min_count}}}}))
}

fn member(name: &str, group: &str, cpu: &str) -> Pod {
    let mut pod = pod(name, json!({"cpu": cpu}));
    pod.spec.as_mut().unwrap().scheduling_group =
        serde_json::from_value(json!({"podGroupName": group})).unwrap();
    // No kubelet runs that would terminate the pod.
    pod.spec.as_mut().unwrap().termination_grace_period_seconds = Some(0);
    pod
}

/// The message of the pod's PodScheduled condition, if the status is False.
fn refusal(lab: &Lab, name: &str) -> Option<String> {
    let conditions = lab.api.get::<Pod>("default", name)?.status?.conditions?;
    conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?.message
}

/// The status, reason and message of the group's condition.
fn told(lab: &Lab, group: &str) -> Option<(String, String, String)> {
    let conditions = lab.api.get::<PodGroup>("default", group)?.status?.conditions?;
    let condition = conditions.into_iter().find(|c| c.type_ == "PodGroupInitiallyScheduled")?;
    Some((condition.status, condition.reason, condition.message))
}

fn nodes_of(lab: &Lab, names: &[&str]) -> usize {
    let node = |name: &&&str| {
        lab.api.get::<Pod>("default", name).is_some_and(|p| p.spec.unwrap().node_name.is_some())
    };
    names.iter().filter(node).count()
}

#[tokio::test]
async fn a_gang_is_bound_as_a_whole_or_not_at_all() {
    let lab = gang_lab().await;
    lab.api.add(&gang("g", 3));
    // Two nodes of 4 CPUs: two of the three fit.
    for name in ["a", "b", "c"] {
        lab.api.add(&member(name, "g", "3"));
    }
    let group = until(|| told(&lab, "g")).await;
    assert_eq!((group.0.as_str(), group.1.as_str()), ("False", "Unschedulable"));
    let words = "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining";
    assert!(group.2.starts_with(words), "{}", group.2);
    assert_eq!(until(|| refusal(&lab, "c")).await, "0/2 nodes are available: 2 Insufficient cpu.");
    let others = until(|| refusal(&lab, "a")).await;
    assert!(
        others.starts_with("pod group is unschedulable, minCount (3) cannot be satisfied: 2 scheduled"),
        "{others}"
    );
    assert_eq!(nodes_of(&lab, &["a", "b", "c"]), 0);
    lab.api.add::<Node>(&object(json!({"metadata": {"name": "c"}, "status": {"allocatable":
        {"cpu": "4", "memory": "8Gi", "pods": "110"}}})));
    until(|| (nodes_of(&lab, &["a", "b", "c"]) == 3).then_some(())).await;
    until(|| told(&lab, "g").filter(|t| (t.0.as_str(), t.1.as_str()) == ("True", "Scheduled"))).await;
    let metrics = lab.scheduler.metrics();
    assert!(metrics.contains(
        "scheduler_podgroup_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1"
    ));
    for counted in [
        "scheduler_queue_incoming_entities_total{event=\"UnscheduledPodAdd\",queue=\"active\",type=\"podgroup\"} 1",
        "scheduler_plugin_evaluation_total{extension_point=\"Filter\",plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"}",
        "scheduler_plugin_evaluation_total{extension_point=\"Score\",plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"}",
        "scheduler_event_handling_duration_seconds_count{event=\"NodeAdd\"} 3",
        "scheduler_event_handling_duration_seconds_count{event=\"UnscheduledPodAdd\"} 3",
        "scheduler_inflight_events{event=\"PodPopped\"} 0",
        "scheduler_preemption_evaluation_duration_seconds_count{preemptor=\"podgroup\",result=",
    ] {
        assert!(metrics.contains(counted), "{counted} in\n{metrics}");
    }
}

#[tokio::test]
async fn pods_beyond_the_least_number_come_when_they_fit() {
    let lab = gang_lab().await;
    for name in ["a", "b", "c"] {
        lab.api.add(&member(name, "g", "3"));
    }
    lab.api.add(&gang("g", 2));
    until(|| (nodes_of(&lab, &["a", "b", "c"]) == 2).then_some(())).await;
    until(|| told(&lab, "g").filter(|t| t.0 == "True")).await;
    let left = until(|| ["a", "b", "c"].into_iter().find(|name| refusal(&lab, name).is_some())).await;
    assert!(refusal(&lab, left).unwrap().starts_with("0/2 nodes are available: 2 Insufficient cpu."));
    assert_eq!(told(&lab, "g").unwrap().0, "True", "scheduled once is scheduled");
}

#[tokio::test]
async fn pods_that_disagree_are_an_error_of_the_group() {
    let lab = gang_lab().await;
    lab.api.add(&gang("g", 2));
    let mut other = member("b", "g", "1");
    other.spec.as_mut().unwrap().priority = Some(7);
    lab.api.add(&member("a", "g", "1"));
    lab.api.add(&other);
    let words = "all pods in a single pod group should have the same priority as the pod group's priority, got 7 and 0";
    let group = until(|| told(&lab, "g")).await;
    assert_eq!(group, ("False".into(), "SchedulerError".into(), words.into()));
    assert_eq!(until(|| refusal(&lab, "a")).await, words);
}

#[tokio::test]
async fn an_important_gang_makes_room_and_a_whole_group_leaves() {
    let lab = gang_lab().await;
    let group = |name: &str, priority: i32, mode: &str| -> PodGroup {
        object(json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {
            "disruptionMode": {mode: {}}, "priority": priority,
            "schedulingPolicy": {"gang": {"minCount": 2}}}}))
    };
    let member = |name: &str, group: &str, cpu: &str, priority: i32| {
        let mut pod = member(name, group, cpu);
        pod.spec.as_mut().unwrap().priority = Some(priority);
        pod
    };
    lab.api.add(&group("low", 1, "all"));
    for name in ["l1", "l2"] {
        lab.api.add(&member(name, "low", "2", 1));
    }
    until(|| (nodes_of(&lab, &["l1", "l2"]) == 2).then_some(())).await;
    lab.api.add(&group("high", 100, "single"));
    // One of them would fit without preemption, both only when both of these are evicted.
    for name in ["h1", "h2"] {
        lab.api.add(&member(name, "high", "3", 100));
    }
    let waiting = until(|| told(&lab, "high").filter(|t| t.2.contains("preempting"))).await;
    assert!(
        waiting.2.ends_with(", pod group preemption: found a placement for podgroup, preempting 2 victims"),
        "{}",
        waiting.2
    );
    let nominated = |name: &str| lab.api.get::<Pod>("default", name)?.status?.nominated_node_name;
    assert_ne!(until(|| nominated("h1")).await, until(|| nominated("h2")).await);
    until(|| (nodes_of(&lab, &["h1", "h2"]) == 2).then_some(())).await;
    let said = lab.api.all::<Event>();
    let left: Vec<_> = said.iter().filter(|e| e.reason.as_deref() == Some("Preempted")).collect();
    assert!(left.iter().all(|e| e.message.as_deref() == Some("Preempted by podgroup high on node cluster")));
    assert!(lab.scheduler.metrics().contains("scheduler_workload_preemption_victims_sum 2"));
    assert!(lab.scheduler.metrics().contains("result=\"waiting_on_preemption\"} 1"));
}

#[tokio::test]
async fn for_a_single_pod_a_whole_group_leaves_too() {
    let lab = gang_lab().await;
    lab.api
        .add::<PodGroup>(&object(json!({"metadata": {"name": "low", "namespace": "default", "uid": "low"},
        "spec": {"disruptionMode": {"all": {}}, "schedulingPolicy": {"gang": {"minCount": 2}}}})));
    for name in ["l1", "l2"] {
        lab.api.add(&member(name, "low", "3"));
    }
    until(|| (nodes_of(&lab, &["l1", "l2"]) == 2).then_some(())).await;
    let mut urgent = pod("urgent", json!({"cpu": "3"}));

    urgent.spec.as_mut().unwrap().priority = Some(7);
    lab.api.add(&urgent);
    until(|| (nodes_of(&lab, &["urgent"]) == 1).then_some(())).await;
    until(|| {
        lab.api.get::<Pod>("default", "l1").or(lab.api.get::<Pod>("default", "l2")).is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_refusal_names_the_generation_that_it_is_about() {
    let lab = lab(json!([])).await;
    let mut huge = pod("huge", json!({"cpu": "100"}));
    huge.metadata.generation = Some(4);
    lab.api.add(&huge);
    let condition = until(|| {
        let conditions = lab.api.get::<Pod>("default", "huge")?.status?.conditions?;
        conditions.into_iter().find(|c| c.type_ == "PodScheduled")
    })
    .await;
    assert_eq!((condition.status.as_str(), condition.observed_generation), ("False", Some(4)));
}

/// Returns a scheduler with gang scheduling that calls an extender for pods with a card.
async fn extended_gang_lab(hook: &HookServer) -> Lab {
    let extender = json!({"urlPrefix": hook.url(""), "enableHTTPS": true, "nodeCacheCapable": true,
        "filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 100,
        "managedResources": [{"name": "example.com/card", "ignoredByScheduler": true}]});
    let config = Configuration::parse(json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration", "extenders": [extender]}))
    .unwrap();
    lab_of(Configuration { generic_workload: true, ..config }).await
}

fn with_card(name: &str, group: &str) -> Pod {
    let mut pod = member(name, group, "1");
    let resources = pod.spec.as_mut().unwrap().containers[0].resources.as_mut().unwrap();
    for list in [&mut resources.requests, &mut resources.limits] {
        list.get_or_insert_default()
            .insert("example.com/card".into(), serde_json::from_value(json!("1")).unwrap());
    }
    pod
}

#[tokio::test]
async fn extenders_are_asked_about_each_pod_of_a_gang() {
    let hook = HookServer::start(&["localhost"], |asked| match asked.path.as_str() {
        "/filter" if asked.body["Pod"]["metadata"]["name"] == "refused" => {
            Reply::Json(json!({"NodeNames": [], "FailedNodes": {"a": "no card", "b": "no card"}}))
        }
        "/filter" if asked.body["Pod"]["metadata"]["name"] == "broken" => Reply::Raw(500, Vec::new()),
        "/filter" => Reply::Json(json!({"NodeNames": asked.body["NodeNames"]})),
        _ => Reply::Json(json!([{"Host": "b", "Score": 10}, {"Host": "a", "Score": 0}])),
    })
    .await
    .unwrap();
    let lab = extended_gang_lab(&hook).await;
    lab.api.add(&gang("good", 3));
    lab.api.add(&with_card("g0", "good"));
    lab.api.add(&with_card("g1", "good"));
    lab.api.add(&member("plain", "good", "1"));
    until(|| (nodes_of(&lab, &["g0", "g1", "plain"]) == 3).then_some(())).await;
    for name in ["g0", "g1"] {
        let node = lab.api.get::<Pod>("default", name).unwrap().spec.unwrap().node_name;
        assert_eq!(node.as_deref(), Some("b"), "the extender's choice");
    }

    lab.api.add(&gang("bad", 2));
    lab.api.add(&with_card("fits", "bad"));
    lab.api.add(&with_card("refused", "bad"));
    let group = until(|| told(&lab, "bad")).await;
    assert_eq!((group.0.as_str(), group.1.as_str()), ("False", "Unschedulable"));
    assert_eq!(group.2, "minCount (2) cannot be satisfied: 1 scheduled, 0 remaining");
    let why = until(|| refusal(&lab, "refused")).await;
    assert!(why.starts_with("0/2 nodes are available: 2 no card."), "{why}");
    let why = until(|| refusal(&lab, "fits")).await;
    assert_eq!(why, "pod group is unschedulable, minCount (2) cannot be satisfied: 1 scheduled, 0 remaining");
    assert_eq!(nodes_of(&lab, &["fits", "refused"]), 0);

    lab.api.add(&gang("ugly", 1));
    lab.api.add(&with_card("broken", "ugly"));
    let group = until(|| told(&lab, "ugly")).await;
    assert_eq!((group.0.as_str(), group.1.as_str()), ("False", "SchedulerError"));
    assert!(group.2.contains("failed filter with extender at URL https://"), "{}", group.2);

    // The queue continues.
    lab.api.add(&pod("lone", json!({"cpu": "100m"})));
    until(|| (nodes_of(&lab, &["lone"]) == 1).then_some(())).await;
}
