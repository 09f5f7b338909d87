//! Tests of topology hints: the zones' shares, and which endpoints are used in which zone.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::plan::{Plan, ZONE};
use super::topology::{Counts, NoHints, Shares, hint};

fn node(zone: &str, cpu: &str, ready: bool) -> Node {
    let mut node = Node::default();
    node.metadata.labels = Some([(ZONE.to_owned(), zone.to_owned())].into()).filter(|_| !zone.is_empty());
    let status = if ready { "True" } else { "False" };
    let condition =
        NodeCondition { type_: "Ready".to_owned(), status: status.to_owned(), ..NodeCondition::default() };
    node.status = Some(NodeStatus {
        allocatable: Some([("cpu".to_owned(), Quantity(cpu.to_owned()))].into()),
        conditions: Some(vec![condition]),
        ..NodeStatus::default()
    });
    node
}

fn shares(nodes: &[(&str, &str)]) -> Option<Shares> {
    Shares::of(nodes.iter().map(|(zone, cpu)| node(zone, cpu, true)).collect::<Vec<_>>().iter())
}

/// Makes a slice with this many ready endpoints in each zone.
fn slice(zones: &[(&str, usize)]) -> EndpointSlice {
    let endpoint = |zone: &str| Endpoint {
        conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
        zone: Some(zone.to_owned()).filter(|zone| !zone.is_empty()),
        ..Endpoint::default()
    };
    let endpoints = zones.iter().flat_map(|(zone, n)| std::iter::repeat_n(endpoint(zone), *n)).collect();
    EndpointSlice { endpoints: Some(endpoints), ..EndpointSlice::default() }
}

/// Counts endpoints by their zone and the zone they are used in: `b>a` are those of b used in a.
fn uses(slices: &[EndpointSlice]) -> BTreeMap<String, usize> {
    let mut uses = BTreeMap::new();
    for endpoint in slices.iter().flat_map(|s| s.endpoints.iter().flatten()) {
        let to = endpoint.hints.as_ref().map_or("-", |hints| &hints.for_zones.as_ref().unwrap()[0].name);
        *uses.entry(format!("{}>{to}", endpoint.zone.as_deref().unwrap_or("-"))).or_default() += 1;
    }
    uses
}

fn of(counts: &[(&str, usize)]) -> Counts {
    counts.iter().map(|(what, n)| ((*what).to_owned(), *n)).collect()
}

#[test]
fn shares_need_the_zone_and_processors_of_every_node() {
    let shares = |nodes: &[Node]| Shares::of(nodes.iter());
    let of_two = shares(&[node("a", "3", true), node("b", "1000m", true)]).unwrap();
    let mut control_plane = node("", "8", true);
    control_plane.metadata.labels =
        Some([("node-role.kubernetes.io/control-plane".into(), String::new())].into());
    let others = [node("a", "3", true), node("b", "1", true), node("c", "4", false), control_plane];
    assert_eq!(shares(&others), Some(of_two), "control planes and nodes that are not ready do not count");
    assert_eq!(shares(&[node("a", "3", true)]), None, "one zone");
    assert_eq!(shares(&[node("a", "3", true), node("", "1", true)]), None);
    assert_eq!(shares(&[node("a", "3", true), node("b", "0", true)]), None);
}

#[test]
fn zones_get_what_their_nodes_need() {
    let hinted = |nodes: &[(&str, &str)], endpoints: &[(&str, usize)]| {
        let mut plan = Plan { create: vec![slice(endpoints)], ..Plan::default() };
        let counts = hint(&mut plan, shares(nodes).as_ref())?;
        Ok((counts, uses(&plan.create)))
    };
    let even = [("a", "1"), ("b", "1")];
    assert_eq!(
        hinted(&even, &[("a", 2), ("b", 2)]),
        Ok((of(&[("a", 2), ("b", 2)]), of(&[("a>a", 2), ("b>b", 2)])))
    );
    assert_eq!(
        hinted(&even, &[("a", 1), ("b", 5)]),
        Ok((of(&[("a", 3), ("b", 3)]), of(&[("a>a", 1), ("b>a", 2), ("b>b", 3)])))
    );
    let three = [("a", "2"), ("b", "1"), ("c", "1")];
    assert_eq!(
        hinted(&three, &[("a", 8)]),
        Ok((of(&[("a", 4), ("b", 2), ("c", 2)]), of(&[("a>a", 4), ("a>b", 2), ("a>c", 2)])))
    );
    assert_eq!(hinted(&even, &[("a", 1)]), Err(NoHints::Endpoints { endpoints: 1, zones: 2 }));
    assert_eq!(hinted(&three, &[("a", 2), ("", 2)]), Err(NoHints::Zone));
    assert_eq!(hinted(&[("a", "1")], &[("a", 2)]), Err(NoHints::Nodes));
    let uneven = [("a", "10"), ("b", "1"), ("c", "1")];
    assert_eq!(hinted(&uneven, &[("a", 3)]), Err(NoHints::Overload { endpoints: 3, zones: 3 }));
}

#[test]
fn good_hints_stay_and_bad_ones_are_recomputed() {
    let even = shares(&[("a", "1"), ("b", "1")]);
    let mut first = Plan { create: vec![slice(&[("a", 3), ("b", 3)])], ..Plan::default() };
    hint(&mut first, even.as_ref()).unwrap();
    let settled = first.create.pop().unwrap();

    let mut again = Plan { unchanged: vec![settled.clone()], ..Plan::default() };
    assert_eq!(hint(&mut again, even.as_ref()), Ok(of(&[("a", 3), ("b", 3)])));
    assert_eq!((again.update.len(), again.unchanged.len()), (0, 1));

    // A zone whose nodes have no endpoints.
    let mut moved = Plan { unchanged: vec![settled.clone()], ..Plan::default() };
    let other = shares(&[("b", "1"), ("c", "1")]);
    let counts = hint(&mut moved, other.as_ref()).unwrap();
    assert_eq!((moved.update.len(), moved.unchanged.len()), (1, 0));
    assert!(counts["c"] > 0 && !other.unwrap().overload(&counts), "{counts:?}");

    // If hints are impossible, all are removed; a slice without hints is unchanged.
    let mut gone = Plan { unchanged: vec![settled, slice(&[("a", 1)])], ..Plan::default() };
    assert_eq!(hint(&mut gone, None), Err(NoHints::Nodes));
    assert_eq!((gone.update.len(), gone.unchanged.len()), (1, 1));
    assert_eq!(uses(&gone.update), of(&[("a>-", 3), ("b>-", 3)]));
}

#[test]
fn too_few_endpoints_for_a_zone_are_an_overload() {
    let even = shares(&[("a", "1"), ("b", "1")]).unwrap();
    assert!(!even.overload(&of(&[("a", 5), ("b", 4)])));
    assert!(even.overload(&of(&[("a", 6), ("b", 3)])));
    assert!(even.overload(&of(&[("a", 6)])));
    assert!(!even.overload(&Counts::new()));
}
