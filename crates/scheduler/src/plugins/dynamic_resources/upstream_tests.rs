//! Compares upstream's allocations of random devices to random claims (`tests/upstream/allocations.jsonl`, made by
//! `allocations.go` in the same folder) with ours.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice};
use serde::Deserialize;
use serde_json::Value;

use super::allocator::{Cluster, Patience, Tools};
use super::selector::Programs;
use super::taken::Taken;

const FACTS: &str = include_str!("../../../tests/upstream/allocations.jsonl");

#[derive(Deserialize)]
struct Fact {
    node: Node,
    classes: Vec<DeviceClass>,
    slices: Vec<ResourceSlice>,
    taken: ResourceClaim,
    claims: Vec<ResourceClaim>,
    allocations: Option<Vec<AllocationResult>>,
    #[serde(default)]
    error: String,
}

/// Returns the allocations without share IDs, which are random.
fn shown(allocations: &Option<Vec<AllocationResult>>) -> Value {
    let mut value = serde_json::to_value(allocations).unwrap();
    for allocation in value.as_array_mut().into_iter().flatten() {
        for result in allocation["devices"]["results"].as_array_mut().into_iter().flatten() {
            result.as_object_mut().unwrap().remove("shareID");
        }
    }
    value
}

#[test]
fn allocations_are_upstreams() {
    let (mut wrong, mut allocated) = (Vec::new(), 0);
    for (number, line) in FACTS.lines().enumerate() {
        let fact: Fact = serde_json::from_str(line).unwrap();
        let mut taken = Taken::default();
        taken.add(&fact.taken);
        let slices = fact.slices.into_iter().map(Arc::new).collect();
        let cluster = Cluster::new(slices, fact.classes.into_iter().map(Arc::new).collect(), taken);
        let programs = Programs::default();
        let never = || false;
        let patience = Patience::until(&never);
        let share_id = || "share".to_owned();
        let tools = Tools { programs: &programs, patience: &patience, share_id: &share_id };
        let claims: Vec<_> = fact.claims.iter().collect();
        let ours = cluster.allocate(&fact.node, &claims, tools);
        let same = match &ours {
            Ok(found) => fact.error.is_empty() && shown(found) == shown(&fact.allocations),
            // Upstream reports the same problem with another message.
            Err(_) => !fact.error.is_empty(),
        };
        allocated += usize::from(fact.allocations.is_some());
        if !same {
            let (ours, theirs) = (ours.map(|found| shown(&found).to_string()), shown(&fact.allocations));
            wrong.push(format!(
                "case {}\n  upstream {theirs} {}\n  ours     {ours:?}",
                number + 1,
                fact.error
            ));
        }
    }
    assert!(wrong.is_empty(), "{} cases differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(allocated > 100, "{allocated} cases with an allocation");
}
