//! The pools of devices that a node can use: the newest generation of their slices, and whether it is complete.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, NodeSelector};
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourceSlice};
use knarr_api::core::pod::placement::term_matches;
use knarr_api::kind::Kind;

use super::taken::DeviceId;

/// The driver and the name of a pool.
pub type PoolId<'a> = (&'a str, &'a str);

/// A device that may be allocated.
pub struct Candidate<'a> {
    pub device: &'a Device,
    pub slice: &'a ResourceSlice,
    pub id: DeviceId,
    /// The index of its pool.
    pub pool: usize,
}

/// A pool as seen from a node.
#[derive(Default)]
pub struct Pool<'a> {
    pub id: PoolId<'a>,
    /// Slices are missing, because the driver is updating the pool.
    pub incomplete: bool,
    /// The slices of the pool contradict each other.
    pub invalid: bool,
    /// The slices with devices for the node, by name.
    pub here: Vec<&'a ResourceSlice>,
    /// The other slices of the pool, whose devices may consume its counters.
    pub elsewhere: Vec<&'a ResourceSlice>,
    pub counters: BTreeMap<&'a str, &'a CounterSet>,
}

/// The devices of a slice.
pub fn devices(slice: &ResourceSlice) -> &[Device] {
    slice.spec.devices.as_deref().unwrap_or_default()
}

/// Returns whether the fields select the node; with no field set, no node is selected.
pub fn node_matches(
    node: &Node,
    name: Option<&str>,
    all: Option<bool>,
    selector: Option<&NodeSelector>,
) -> bool {
    match (name.filter(|n| !n.is_empty()), all, selector) {
        (Some(name), ..) => node.name() == name,
        (None, Some(true), _) => true,
        (None, _, Some(selector)) => selects(selector, node),
        _ => false,
    }
}

/// Returns whether the node selector selects the node.
pub fn selects(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node))
}

/// Compatibility groups are not supported: slices that use them are left out, which makes their pool incomplete.
fn has_groups(slice: &ResourceSlice) -> bool {
    let consumes = devices(slice).iter().flat_map(|d| d.consumes_counters.iter().flatten());
    { consumes }.any(|c| c.compatibility_groups.as_ref().is_some_and(|groups| !groups.is_empty()))
}

fn is_for(slice: &ResourceSlice, node: &Node) -> bool {
    let spec = &slice.spec;
    let named = spec.node_name.as_deref().is_some_and(|n| !n.is_empty());
    if named || spec.all_nodes == Some(true) || spec.node_selector.is_some() {
        return node_matches(node, spec.node_name.as_deref(), spec.all_nodes, spec.node_selector.as_ref());
    }
    spec.per_device_node_selection == Some(true)
        && devices(slice)
            .iter()
            .any(|d| node_matches(node, d.node_name.as_deref(), d.all_nodes, d.node_selector.as_ref()))
}

fn pool_id(slice: &ResourceSlice) -> PoolId<'_> {
    (&slice.spec.driver, &slice.spec.pool.name)
}

/// Returns the pools with devices for the node, by driver and name. Pools with binding conditions come last. `near` are
/// the slices that may be for the node, `all` are all slices.
pub fn gather<'a>(near: &[&'a ResourceSlice], node: &Node, all: &[&'a ResourceSlice]) -> Vec<Pool<'a>> {
    let mut newest: BTreeMap<PoolId<'a>, Vec<&'a ResourceSlice>> = BTreeMap::new();
    for slice in near.iter().filter(|s| !has_groups(s) && is_for(s, node)) {
        let known = newest.entry(pool_id(slice)).or_default();
        let generation = known.first().map_or(i64::MIN, |s| s.spec.pool.generation);
        if slice.spec.pool.generation > generation {
            known.clear();
        }
        if slice.spec.pool.generation >= generation {
            known.push(slice);
        }
    }
    let pools = newest.into_iter().filter_map(|(id, slices)| whole_pool(id, slices, all));
    let (late, early): (Vec<_>, Vec<_>) = pools.partition(has_binding_conditions);
    early.into_iter().chain(late).collect()
}

fn has_binding_conditions(pool: &Pool) -> bool {
    pool.here.iter().flat_map(|s| devices(s)).any(|d| d.binding_conditions.is_some())
}

/// Returns `None` when a newer generation, without devices for the node, is replacing the pool.
fn whole_pool<'a>(
    id: PoolId<'a>,
    here: Vec<&'a ResourceSlice>,
    all: &[&'a ResourceSlice],
) -> Option<Pool<'a>> {
    let (generation, count) = (here[0].spec.pool.generation, here[0].spec.pool.resource_slice_count);
    if here.len() as i64 == count {
        return Some(build(id, here, &[]));
    }
    let of_pool = || all.iter().copied().filter(|s| pool_id(s) == id);
    if of_pool().any(|s| s.spec.pool.generation > generation) {
        return None;
    }
    let whole: Vec<_> =
        of_pool().filter(|s| s.spec.pool.generation == generation && !has_groups(s)).collect();
    if whole.len() as i64 != count {
        return Some(Pool { id, incomplete: true, ..Pool::default() });
    }
    Some(build(id, here, &whole))
}

fn build<'a>(id: PoolId<'a>, mut slices: Vec<&'a ResourceSlice>, whole: &[&'a ResourceSlice]) -> Pool<'a> {
    slices.sort_by_key(|s| s.name());
    let mut pool = Pool { id, ..Pool::default() };
    let names: BTreeSet<&str> = slices.iter().map(|s| s.name()).collect();
    let further = whole.iter().filter(|s| !names.contains(s.name()));
    let mut sets = Vec::new();
    for (slice, is_here) in slices.iter().map(|s| (s, true)).chain(further.map(|s| (s, false))) {
        match slice.spec.shared_counters.as_deref() {
            Some(counters) if !counters.is_empty() => sets.extend(counters),
            _ if is_here => pool.here.push(slice),
            _ => pool.elsewhere.push(slice),
        }
    }
    let mut seen = BTreeSet::new();
    let unique = pool.here.iter().flat_map(|s| devices(s)).all(|d| seen.insert(d.name.as_str()));
    let unique_sets = sets.iter().all(|set| pool.counters.insert(&set.name, set).is_none());
    let known = |device: &Device| {
        device.consumes_counters.iter().flatten().all(|c| {
            let set = pool.counters.get(c.counter_set.as_str());
            set.is_some_and(|set| c.counters.keys().all(|name| set.counters.contains_key(name)))
        })
    };
    let consumed = pool.here.iter().chain(&pool.elsewhere).flat_map(|s| devices(s)).all(known);
    if !(unique && unique_sets && consumed) {
        return Pool { id, invalid: true, ..Pool::default() };
    }
    pool
}

/// The devices for the node, in the order in which they are tried. Incomplete and invalid pools have none.
pub fn candidates<'a>(pools: &[Pool<'a>]) -> Vec<Candidate<'a>> {
    let mut all = Vec::new();
    for (at, pool) in pools.iter().enumerate() {
        for slice in &pool.here {
            for device in devices(slice) {
                let (driver, name) = pool.id;
                let (driver, pool) = (driver.to_owned(), name.to_owned());
                let id = DeviceId { driver, pool, device: device.name.clone() };
                all.push(Candidate { device, slice, id, pool: at });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::node;
    use serde_json::{Value, json};

    fn slice(name: &str, generation: i64, count: i64, node: Value, devices: &[&str]) -> ResourceSlice {
        let devices: Vec<_> = devices.iter().map(|d| json!({"name": d})).collect();
        let mut slice = json!({"metadata": {"name": name}, "spec": {"driver": "d", "devices": devices,
            "pool": {"name": "p", "generation": generation, "resourceSliceCount": count}}});
        for (key, value) in node.as_object().unwrap() {
            slice["spec"][key] = value.clone();
        }
        serde_json::from_value(slice).unwrap()
    }

    /// Returns `incomplete`, `invalid`, or the names of the devices.
    fn seen(slices: &[ResourceSlice]) -> Vec<String> {
        let all: Vec<_> = slices.iter().collect();
        let node = node("n1").label("zone", "a").build();
        let pools = gather(&all, &node, &all);
        let names = |pool: &Pool| match (pool.incomplete, pool.invalid) {
            (true, _) => "incomplete".to_owned(),
            (_, true) => "invalid".to_owned(),
            _ => pool.here.iter().flat_map(|s| devices(s)).map(|d| d.name.clone()).collect(),
        };
        pools.iter().map(names).collect()
    }

    #[test]
    fn pools_are_seen_from_a_node() {
        let here = || json!({"nodeName": "n1"});
        let there = || json!({"nodeName": "n2"});
        let zone = |zone: &str| {
            json!({"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "zone", "operator": "In", "values": [zone]}]}]}})
        };
        for (slices, expected) in [
            (vec![slice("b", 1, 2, here(), &["y"]), slice("a", 1, 2, here(), &["x"])], vec!["xy"]),
            (vec![slice("a", 1, 2, here(), &["x"])], vec!["incomplete"]),
            (vec![slice("a", 1, 1, here(), &["x"]), slice("b", 2, 1, here(), &["y"])], vec!["y"]),
            (vec![slice("a", 1, 2, here(), &["x"]), slice("b", 1, 2, there(), &["y"])], vec!["x"]),
            (vec![slice("a", 1, 2, here(), &["x"]), slice("b", 2, 1, there(), &["y"])], vec![]),
            (vec![slice("a", 1, 1, here(), &["x", "x"])], vec!["invalid"]),
            (vec![slice("a", 1, 1, zone("a"), &["x"])], vec!["x"]),
            (vec![slice("a", 1, 1, zone("b"), &["x"])], vec![]),
            (vec![slice("a", 1, 1, json!({"allNodes": true}), &["x"])], vec!["x"]),
            (vec![slice("a", 1, 1, json!({}), &["x"])], vec![]),
        ] {
            assert_eq!(seen(&slices), expected);
        }
    }
}
