//! Tests of node lifecycle against an in-memory API server.

use k8s_openapi::api::core::v1::{Event as ApiEvent, PodCondition, PodSpec, PodStatus};

use super::*;
use crate::node_lifecycle::testing::{lease, node};
use crate::support::nodes::taints;
use crate::testing::{START, World};

fn world(nodes: &[&str]) -> World {
    let world = World::new(&[Node::RESOURCE, Pod::RESOURCE, Lease::RESOURCE, ApiEvent::RESOURCE]);
    for name in nodes {
        world.api.add(&node(name, Some("True"), START));
        world.api.add(&lease(name, START));
    }
    world.start(&DESCRIPTOR);
    world
}

/// Advances time while these nodes renew their leases every 10 s.
async fn renew(world: &World, seconds: i64, nodes: &[&str], from: i64) {
    for i in 0..seconds / 10 {
        world.pass(10.0).await;
        for name in nodes {
            let renewed = lease(name, START + from + i * 10 + 10).spec;
            world.api.edit::<Lease>(LEASES, name, |l| l.spec = renewed);
        }
    }
}

fn status(world: &World, name: &str) -> (String, Vec<String>) {
    let node = world.api.get::<Node>("", name).unwrap();
    let short = |key: &str| key.trim_start_matches("node.kubernetes.io/").to_owned();
    let taints = taints(&node).iter().map(|t| format!("{}:{}", short(&t.key), t.effect));
    (condition(&node, "Ready").unwrap().status.clone(), taints.collect())
}

fn add_ready_pod(world: &World) {
    let ready = PodCondition { type_: "Ready".into(), status: "True".into(), ..PodCondition::default() };
    let mut pod = Pod {
        spec: Some(PodSpec { node_name: Some("silent".into()), ..PodSpec::default() }),
        status: Some(PodStatus { conditions: Some(vec![ready]), ..PodStatus::default() }),
        ..Pod::default()
    };
    pod.metadata.name = Some("p".into());
    pod.metadata.namespace = Some("ns".into());
    world.api.add(&pod);
}

fn unreachable() -> (String, Vec<String>) {
    ("Unknown".into(), vec!["unreachable:NoSchedule".into(), "unreachable:NoExecute".into()])
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_becomes_unknown_and_comes_back() {
    let world = world(&["loud", "silent"]);
    add_ready_pod(&world);
    renew(&world, 40, &["loud"], 0).await;
    assert_eq!(status(&world, "silent"), ("True".into(), vec![]));
    renew(&world, 20, &["loud"], 40).await;
    assert_eq!(status(&world, "silent"), unreachable());
    assert_eq!(status(&world, "loud"), ("True".into(), vec![]));
    let pod = world.api.get::<Pod>("ns", "p").unwrap();
    assert!(!pod_state::is_ready(&pod));
    assert_eq!(
        world.events(),
        [
            "loud RegisteredNode Node loud event: Registered Node loud in Controller",
            "p NodeNotReady Node is not ready",
            "silent NodeNotReady Node silent status is now: NodeNotReady",
            "silent RegisteredNode Node silent event: Registered Node silent in Controller",
        ]
    );
    world.api.edit::<Node>("", "silent", |n| *n = node("silent", Some("False"), START + 61));
    world.pass(1.0).await;
    world.api.edit::<Node>("", "silent", |n| *n = node("silent", Some("True"), START + 62));
    world.pass(1.0).await;
    assert_eq!(status(&world, "silent"), ("True".into(), vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_node_alone_keeps_its_pods() {
    let world = world(&["only"]);
    world.pass(60.0).await;
    assert_eq!(status(&world, "only"), ("Unknown".into(), vec!["unreachable:NoSchedule".into()]));
}

#[tokio::test(start_paused = true)]
async fn taints_spread_slowly() {
    let world = world(&["a", "b", "c", "loud"]);
    renew(&world, 40, &["a", "b", "c", "loud"], 0).await;
    // Two of four nodes are silent: the zone still counts as normal, so one node is tainted every 10 s.
    renew(&world, 60, &["c", "loud"], 40).await;
    let evicting = || ["a", "b"].iter().filter(|n| status(&world, n).1.len() == 2).count();
    let early = evicting();
    renew(&world, 20, &["c", "loud"], 100).await;
    assert_eq!((early, evicting()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn an_idle_cluster_costs_no_writes() {
    let world = world(&["a", "b"]);
    renew(&world, 600, &["a", "b"], 0).await;
    let writes = world.api.writes();
    assert!(writes.iter().all(|w| w.path.ends_with("/events")), "{writes:?}");
    assert_eq!(status(&world, "a"), ("True".into(), vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_at_the_last_moment_counts() {
    let world = world(&["a", "b"]);
    world.pass(49.0).await;
    world.api.edit::<Lease>(LEASES, "a", |l| l.spec = lease("a", START + 49).spec);
    world.pass(3.0).await;
    assert_eq!(status(&world, "a").0, "True");
    assert_eq!(status(&world, "b").0, "Unknown");
}
