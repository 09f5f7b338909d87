//! Tests of taint eviction.

use k8s_openapi::api::core::v1::{Event as ApiEvent, NodeSpec, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::testing::{World, at};

fn taint(key: &str, value: &str, added: Option<i64>) -> Taint {
    Taint {
        key: key.into(),
        effect: NO_EXECUTE.into(),
        value: (!value.is_empty()).then(|| value.into()),
        time_added: added.map(|s| Time(at(s))),
    }
}

fn toleration(key: &str, operator: &str, value: &str, seconds: Option<i64>) -> Toleration {
    Toleration {
        key: (!key.is_empty()).then(|| key.into()),
        operator: (!operator.is_empty()).then(|| operator.into()),
        value: (!value.is_empty()).then(|| value.into()),
        effect: None,
        toleration_seconds: seconds,
    }
}

#[test]
fn toleration_operators() {
    let table = [
        ("a", "", "x", "x", true),
        ("a", "Equal", "x", "y", false),
        ("b", "Exists", "", "x", false),
        ("a", "Exists", "", "x", true),
        ("", "Exists", "", "x", true),
        ("a", "Gt", "5", "6", true),
        ("a", "Gt", "5", "5", false),
        ("a", "Lt", "5", "4", true),
        ("a", "Lt", "five", "4", false),
        ("a", "Near", "x", "x", false),
    ];
    for (key, operator, value, taint_value, expected) in table {
        let found = tolerates(&toleration(key, operator, value, None), &taint("a", taint_value, None));
        assert_eq!(found, expected, "{key} {operator} {value} {taint_value}");
    }
    let other_effect =
        Toleration { effect: Some("NoSchedule".into()), ..toleration("a", "Exists", "", None) };
    assert!(!tolerates(&other_effect, &taint("a", "", None)));
}

#[test]
fn the_shortest_patience_counts_from_the_taint_or_the_binding() {
    let active = |key: &str, since: i64| Active { taint: taint(key, "", None), since: at(since) };
    let tolerate = |key: &str, seconds| toleration(key, "Exists", "", seconds);
    let (a, b) = (active("a", 100), active("b", 150));
    let both = [a.clone(), b];
    let table: [(&[Active], &[Toleration], i64, Verdict); 8] = [
        (&[], &[], 0, Verdict::Stay),
        (&both, &[tolerate("a", Some(60))], 0, Verdict::Evict(at(200))),
        (&both, &[tolerate("", None)], 0, Verdict::Stay),
        (&both, &[tolerate("a", Some(300)), tolerate("b", Some(60))], 0, Verdict::Evict(at(210))),
        (&both, &[tolerate("a", Some(30)), tolerate("b", None)], 0, Verdict::Evict(at(130))),
        (&both, &[tolerate("", Some(0))], 0, Verdict::Evict(at(200))),
        (std::slice::from_ref(&a), &[tolerate("a", Some(60))], 180, Verdict::Evict(at(240))),
        (std::slice::from_ref(&a), &[tolerate("a", Some(i64::MAX))], 0, Verdict::Stay),
    ];
    for (i, (taints, tolerations, bound, expected)) in table.into_iter().enumerate() {
        assert_eq!(verdict(taints, tolerations, at(bound), at(200)), expected, "row {i}");
    }
}

fn world() -> World {
    let world = World::new(&[Node::RESOURCE, Pod::RESOURCE, ApiEvent::RESOURCE]);
    let mut node = Node { spec: Some(NodeSpec::default()), ..Node::default() };
    node.metadata.name = Some("n".into());
    world.api.add(&node);
    world
}

fn add_pod(world: &World, name: &str, seconds: Option<Option<i64>>) {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.into());
    pod.metadata.namespace = Some("ns".into());
    let tolerations = seconds.map(|s| vec![toleration("a", "Exists", "", s)]);
    pod.spec = Some(PodSpec { node_name: Some("n".into()), tolerations, ..PodSpec::default() });
    world.api.add(&pod);
}

fn set_taints(world: &World, taints: Vec<Taint>) {
    world.api.edit::<Node>("", "n", |n| n.spec.get_or_insert_default().taints = Some(taints));
}

/// Returns the names of the pods that are not being deleted.
fn left(world: &World) -> Vec<String> {
    let pods = world.api.all::<Pod>().into_iter().filter(|p| p.metadata.deletion_timestamp.is_none());
    pods.map(|p| p.name().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_go_when_their_patience_ends() {
    let world = world();
    add_pod(&world, "none", None);
    add_pod(&world, "some", Some(Some(30)));
    add_pod(&world, "ever", Some(None));
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    assert_eq!(left(&world).len(), 3);
    set_taints(&world, vec![taint("a", "", Some(1))]);
    world.pass(1.0).await;
    assert_eq!(left(&world), ["ever", "some"]);
    let gone = world.api.get::<Pod>("ns", "none").unwrap();
    let target = condition(&gone, "DisruptionTarget").unwrap();
    assert_eq!(target.reason.as_deref(), Some("DeletionByTaintManager"));
    world.pass(28.0).await;
    assert_eq!(left(&world), ["ever", "some"]);
    world.pass(2.0).await;
    assert_eq!(left(&world), ["ever"]);
    assert_eq!(
        world.events(),
        [
            "none TaintManagerEviction Marking for deletion Pod ns/none",
            "some TaintManagerEviction Marking for deletion Pod ns/some"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_goes_cancels() {
    let world = world();
    add_pod(&world, "some", Some(Some(30)));
    world.start(&DESCRIPTOR);
    set_taints(&world, vec![taint("a", "", None)]);
    world.pass(20.0).await;
    set_taints(&world, vec![]);
    world.pass(60.0).await;
    assert_eq!(left(&world), ["some"]);
    assert_eq!(world.events(), ["some TaintManagerEviction Cancelling deletion of Pod ns/some"]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_gives_no_more_time() {
    let world = world();
    add_pod(&world, "some", Some(Some(30)));
    set_taints(&world, vec![taint("a", "", Some(0))]);
    world.pass(25.0).await;
    world.start(&DESCRIPTOR);
    world.pass(4.0).await;
    assert_eq!(left(&world), ["some"]);
    world.pass(2.0).await;
    assert!(left(&world).is_empty());
}
