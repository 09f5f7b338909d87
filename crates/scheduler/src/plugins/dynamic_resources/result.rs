//! Converts a solution into the allocations that claims record.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
};

use super::allocator::AllocateError;
use super::request::{Ask, asked_of, requests};
use super::search::{Chosen, Search};

const FROM_CLASS: &str = "FromClass";
const FROM_CLAIM: &str = "FromClaim";

/// Returns one allocation for each claim.
pub fn results(
    search: &Search,
    node: &Node,
    share_id: &(dyn Fn() -> String + Sync),
) -> Result<Vec<AllocationResult>, AllocateError> {
    let one = |claim: usize| {
        let results = search.chosen[claim].iter().map(|chosen| device(search, claim, chosen, share_id));
        let devices = DeviceAllocationResult {
            results: Some(results.collect::<Vec<_>>()).filter(|r| !r.is_empty()),
            config: Some(configuration(search, claim)).filter(|c| !c.is_empty()),
        };
        let node_selector = node_selector(search, claim, node)?;
        Ok(AllocationResult { devices: Some(devices), node_selector, allocation_timestamp: None })
    };
    (0..search.claims.len()).map(one).collect()
}

fn device(
    search: &Search,
    claim: usize,
    chosen: &Chosen,
    share_id: &(dyn Fn() -> String + Sync),
) -> DeviceRequestAllocationResult {
    let (request, alternative) = chosen.key;
    let ask = &search.wanted[claim][request][alternative].ask;
    let candidate = &search.devices[chosen.device];
    let some = |list: &Option<Vec<String>>| list.clone().filter(|l| !l.is_empty());
    let amounts = chosen.share.as_ref().filter(|amounts| !amounts.is_empty());
    DeviceRequestAllocationResult {
        request: ask.full_name(),
        driver: candidate.id.driver.clone(),
        pool: candidate.id.pool.clone(),
        device: candidate.id.device.clone(),
        admin_access: ask.is_admin().then_some(true),
        tolerations: ask.tolerations.cloned().filter(|t| !t.is_empty()),
        share_id: chosen.share.as_ref().map(|_| share_id()),
        consumed_capacity: amounts.map(|a| a.iter().map(|(name, q)| (name.clone(), q.to_api())).collect()),
        binding_conditions: some(&candidate.device.binding_conditions),
        binding_failure_conditions: some(&candidate.device.binding_failure_conditions),
        skip_node_operations: None,
    }
}

/// The request, or its chosen alternative.
fn taken_ask<'s>(search: &'s Search, claim: usize, request: usize) -> Option<&'s Ask<'s>> {
    let alternative = search.alternatives[claim][request];
    search.wanted[claim][request].get(alternative).map(|w| &w.ask)
}

/// The configuration of the classes, each once, and that of the claim for the requests that were allocated.
fn configuration(search: &Search, claim: usize) -> Vec<DeviceAllocationConfiguration> {
    let mut all: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut of_class: BTreeMap<&str, std::ops::Range<usize>> = BTreeMap::new();
    for (request, alternatives) in search.wanted[claim].iter().enumerate() {
        let Some(wanted) = alternatives.get(search.alternatives[claim][request]) else { continue };
        let name = wanted.ask.full_name();
        if let Some(known) = of_class.get(wanted.ask.class_name) {
            let known = all[known.clone()].iter_mut();
            known.for_each(|c| c.requests.get_or_insert_default().push(name.clone()));
            continue;
        }
        let begin = all.len();
        for config in wanted.class.spec.iter().flat_map(|s| s.config.iter().flatten()) {
            all.push(DeviceAllocationConfiguration {
                source: FROM_CLASS.to_owned(),
                requests: Some(vec![name.clone()]),
                opaque: config.opaque.clone(),
            });
        }
        of_class.insert(wanted.ask.class_name, begin..all.len());
    }
    let asks: Vec<_> =
        (0..requests(search.claims[claim]).len()).filter_map(|r| taken_ask(search, claim, r)).collect();
    let is_named = |names: &[String], ask: &Ask| {
        names.iter().any(|n| *n == ask.full_name() || Some(n.as_str()) == ask.parent)
    };
    for config in asked_of(search.claims[claim]).into_iter().flat_map(|d| d.config.iter().flatten()) {
        let names = config.requests.as_deref().unwrap_or_default();
        if names.is_empty() || asks.iter().any(|ask| is_named(names, ask)) {
            all.push(DeviceAllocationConfiguration {
                source: FROM_CLAIM.to_owned(),
                requests: config.requests.clone(),
                opaque: config.opaque.clone(),
            });
        }
    }
    for config in &mut all {
        // A configuration without names applies to all requests.
        if config.requests.as_ref().is_some_and(|names| asks.iter().all(|ask| is_named(names, ask))) {
            config.requests = None;
        }
    }
    all
}

/// The nodes where the claim's devices can be used; `None` means all nodes.
fn node_selector(search: &Search, claim: usize, node: &Node) -> Result<Option<NodeSelector>, AllocateError> {
    let mut term = NodeSelectorTerm::default();
    for chosen in &search.chosen[claim] {
        let candidate = &search.devices[chosen.device];
        let (spec, device) = (&candidate.slice.spec, candidate.device);
        let (name, selector) = match spec.per_device_node_selection {
            Some(true) => (&device.node_name, &device.node_selector),
            _ => (&spec.node_name, &spec.node_selector),
        };
        if name.is_some() || device.binds_to_node == Some(true) {
            let only = NodeSelectorRequirement {
                key: "metadata.name".to_owned(),
                operator: "In".to_owned(),
                values: Some(vec![node.metadata.name.clone().unwrap_or_default()]),
            };
            let term = NodeSelectorTerm { match_fields: Some(vec![only]), match_expressions: None };
            return Ok(Some(NodeSelector { node_selector_terms: vec![term] }));
        }
        match selector.as_ref().map(|s| s.node_selector_terms.as_slice()).unwrap_or_default() {
            [] => {}
            [one] => {
                add_new(&one.match_fields, &mut term.match_fields);
                add_new(&one.match_expressions, &mut term.match_expressions);
            }
            several => {
                let name = search.claims[claim].metadata.name.as_deref().unwrap_or_default();
                return Err(AllocateError::Wrong(format!(
                    "create NodeSelector for claim {name}: unsupported ResourceSlice.NodeSelector with {} terms",
                    several.len()
                )));
            }
        }
    }
    let is_empty = term.match_fields.is_none() && term.match_expressions.is_none();
    Ok((!is_empty).then(|| NodeSelector { node_selector_terms: vec![term] }))
}

fn add_new(from: &Option<Vec<NodeSelectorRequirement>>, to: &mut Option<Vec<NodeSelectorRequirement>>) {
    let sorted = |r: &NodeSelectorRequirement| {
        let mut values = r.values.clone().unwrap_or_default();
        values.sort();
        values.dedup();
        values
    };
    for new in from.iter().flatten() {
        let known = to.get_or_insert_default();
        let same = |old: &NodeSelectorRequirement| {
            old.key == new.key && old.operator == new.operator && sorted(old) == sorted(new)
        };
        if !known.iter().any(same) {
            known.push(new.clone());
        }
    }
}
