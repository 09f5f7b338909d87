//! Tests of the pod garbage collector.

use k8s_openapi::api::core::v1::{Event as ApiEvent, NodeSpec, PodSpec, PodStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_apimachinery::status::StatusError;

use super::*;
use crate::support::pod_state::condition;
use crate::testing::{World, at};

fn pod(name: &str, node: &str, phase: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("ns".into());
    let node_name = (!node.is_empty()).then(|| node.into());
    pod.spec = Some(PodSpec { node_name, ..PodSpec::default() });
    pod.status = Some(PodStatus { phase: Some(phase.into()), ..PodStatus::default() });
    pod
}

fn world() -> World {
    let world = World::new(&[Node::RESOURCE, Pod::RESOURCE, ApiEvent::RESOURCE]);
    add_node(&world, "n", &[]);
    world
}

fn add_node(world: &World, name: &str, taints: &[&str]) {
    let mut node = Node::default();
    node.metadata.name = Some(name.into());
    let taints =
        taints.iter().map(|key| Taint { key: (*key).into(), effect: "NoExecute".into(), ..Taint::default() });
    node.spec = Some(NodeSpec { taints: Some(taints.collect()), ..NodeSpec::default() });
    world.api.add(&node);
}

fn left(world: &World) -> Vec<String> {
    world.api.all::<Pod>().iter().map(|p| p.name().to_owned()).collect()
}

#[test]
fn evicted_pods_go_first_then_the_oldest() {
    let with = |name: &str, phase: &str, reason: Option<&str>, created: i64| {
        let mut pod = pod(name, "n", phase);
        pod.metadata.creation_timestamp = Some(Time(at(created)));
        pod.status.get_or_insert_default().reason = reason.map(str::to_owned);
        Arc::new(pod)
    };
    let pods = vec![
        with("young", "Succeeded", None, 9),
        with("evicted", "Failed", Some("Evicted"), 8),
        with("b", "Failed", None, 1),
        with("a", "Succeeded", None, 1),
    ];
    let names = |keep| {
        let gone = surplus(pods.clone(), keep);
        gone.iter().map(|p| p.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(4), [""; 0]);
    assert_eq!(names(1), ["evicted", "a", "b"]);
    assert_eq!(names(3), ["evicted"]);
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_lost_node_go_after_the_quarantine() {
    let world = world();
    add_node(&world, "back", &[]);
    world.api.add(&pod("kept", "n", "Running"));
    world.api.add(&pod("lost", "gone", "Running"));
    world.api.add(&pod("again", "back", "Running"));
    let marked = Arc::new(std::sync::Mutex::new(None));
    let seen = Arc::clone(&marked);
    world.api.guard(move |request, lookup| {
        if request.method == http::Method::DELETE {
            *seen.lock().unwrap() = lookup(request.body["preconditions"]["uid"].as_str()?);
        }
        None::<StatusError>
    });
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    world.api.remove::<Node>("", "back");
    world.pass(30.0).await;
    add_node(&world, "back", &[]);
    world.pass(8.0).await;
    assert_eq!(left(&world), ["again", "kept", "lost"]);
    world.pass(10.0).await;
    assert_eq!(left(&world), ["again", "kept"]);
    let last: Pod = serde_json::from_value(marked.lock().unwrap().clone().unwrap()).unwrap();
    assert_eq!(last.status.as_ref().unwrap().phase.as_deref(), Some("Failed"));
    let target = condition(&last, "DisruptionTarget").unwrap();
    assert_eq!(target.message.as_deref(), Some("PodGC: node no longer exists"));
}

#[tokio::test(start_paused = true)]
async fn pods_that_never_came_to_a_node_are_ended() {
    let world = world();
    let mut stuck = pod("stuck", "", "Pending");
    stuck.metadata.deletion_timestamp = Some(Time(at(0)));
    stuck.metadata.deletion_grace_period_seconds = Some(30);
    world.api.add(&stuck);
    let mut ending = pod("ending", "n", "Running");
    ending.metadata.deletion_timestamp = Some(Time(at(0)));
    ending.metadata.deletion_grace_period_seconds = Some(30);
    world.api.add(&ending);
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    assert_eq!(left(&world), ["ending"]);
    // The node gets the out-of-service taint.
    world.api.edit::<Node>("", "n", |n| {
        let taint = Taint { key: OUT_OF_SERVICE.into(), effect: "NoExecute".into(), ..Taint::default() };
        n.spec.get_or_insert_default().taints = Some(vec![taint]);
    });
    world.pass(1.0).await;
    assert!(left(&world).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_held_by_a_finalizer_is_ended_once() {
    let world = world();
    let mut held = pod("held", "", "Pending");
    held.metadata.deletion_timestamp = Some(Time(at(0)));
    held.metadata.deletion_grace_period_seconds = Some(30);
    held.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    world.api.add(&held);
    world.start(&DESCRIPTOR);
    world.pass(600.0).await;
    let writes = world.api.writes();
    assert!(writes.len() <= 3, "{writes:?}");
    assert_eq!(left(&world), ["held"]);
}
