//! Maps an update of a node or pod to the cluster events that may make waiting pods schedulable.

use k8s_openapi::api::core::v1::{Node, Pod};

use crate::framework::resources::{Resources, placed_requests};
use crate::framework::{Action, ClusterEvent, Resource};

/// Returns the events that an update of a node causes for waiting pods.
pub fn node_update(old: &Node, new: &Node) -> Vec<ClusterEvent> {
    let mut actions = Vec::new();
    let spec = |n: &Node| n.spec.clone().unwrap_or_default();
    let unschedulable = |n: &Node| n.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
    if unschedulable(old) && !unschedulable(new) {
        actions.push(Action::NODE_TAINT);
    }
    let status = |n: &Node| n.status.clone().unwrap_or_default();
    let (was, is) = (status(old), status(new));
    if was.allocatable != is.allocatable {
        actions.push(Action::NODE_ALLOCATABLE);
    }
    if old.metadata.labels != new.metadata.labels {
        actions.push(Action::NODE_LABEL);
    }
    if spec(old).taints != spec(new).taints && actions.first() != Some(&Action::NODE_TAINT) {
        actions.push(Action::NODE_TAINT);
    }
    let conditions = |s: &k8s_openapi::api::core::v1::NodeStatus| -> Vec<(String, String)> {
        s.conditions.iter().flatten().map(|c| (c.type_.clone(), c.status.clone())).collect()
    };
    if conditions(&was) != conditions(&is) {
        actions.push(Action::NODE_CONDITION);
    }
    if old.metadata.annotations != new.metadata.annotations {
        actions.push(Action::NODE_ANNOTATION);
    }
    if was.declared_features != is.declared_features {
        actions.push(Action::NODE_DECLARED_FEATURE);
    }
    actions.into_iter().map(|a| ClusterEvent::new(Resource::Node, a)).collect()
}

/// Returns the events that an update of a pod causes; `resource` is the kind of pod (assigned, waiting, the pod
/// itself).
pub fn pod_update(resource: Resource, old: &Pod, new: &Pod) -> Vec<ClusterEvent> {
    let mut actions = Vec::new();
    if old.metadata.labels != new.metadata.labels {
        actions.push(Action::POD_LABEL);
    }
    let (before, after) = (placed_requests(old), placed_requests(new));
    if any_less(&after, &before) {
        actions.push(Action::POD_SCALE_DOWN);
    }
    if any_less(&before, &after) {
        actions.push(Action::POD_SCALE_UP);
    }
    let gated =
        |p: &Pod| p.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref()).is_some_and(|g| !g.is_empty());
    if gated(old) && !gated(new) {
        actions.push(Action::POD_GATES_ELIMINATED);
    }
    let tolerations = |p: &Pod| p.spec.as_ref().and_then(|s| s.tolerations.as_ref()).map_or(0, Vec::len);
    if tolerations(old) != tolerations(new) {
        actions.push(Action::POD_TOLERATION);
    }
    let claims = |p: &Pod| p.status.as_ref().and_then(|s| s.resource_claim_statuses.clone());
    if claims(old) != claims(new) {
        actions.push(Action::POD_GENERATED_CLAIM);
    }
    actions.into_iter().map(|a| ClusterEvent::new(resource, a)).collect()
}

/// Returns whether `one` has less of any resource than `other`.
fn any_less(one: &Resources, other: &Resources) -> bool {
    one.milli_cpu < other.milli_cpu
        || one.memory < other.memory
        || one.ephemeral_storage < other.ephemeral_storage
        || other.scalar.iter().any(|(name, n)| one.scalar.get(name).copied().unwrap_or(0) < *n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    fn node_actions(old: Node, new: Node) -> Vec<Action> {
        node_update(&old, &new).into_iter().map(|e| e.actions).collect()
    }

    #[test]
    fn node_changes_are_told_apart() {
        let plain = || node("n").build();
        assert_eq!(node_actions(plain(), plain()), []);
        assert_eq!(node_actions(node("n").unschedulable(true).build(), plain()), [Action::NODE_TAINT]);
        assert_eq!(node_actions(plain(), node("n").unschedulable(true).build()), []);
        assert_eq!(
            node_actions(node("n").taint("a", "b", "NoSchedule").build(), plain()),
            [Action::NODE_TAINT]
        );
        assert_eq!(node_actions(plain(), node("n").label("a", "b").build()), [Action::NODE_LABEL]);
        let larger = node("n").capacity("8", "8Gi", 110).build();
        assert_eq!(node_actions(plain(), larger), [Action::NODE_ALLOCATABLE]);
    }

    #[test]
    fn pod_changes_are_told_apart() {
        let actions = |old: crate::plugins::testing::PodBuilder, new: crate::plugins::testing::PodBuilder| {
            let events = pod_update(Resource::AssignedPod, &old.build(), &new.build());
            events.into_iter().map(|e| e.actions).collect::<Vec<_>>()
        };
        assert_eq!(actions(pod("p").cpu("2"), pod("p").cpu("2")), []);
        assert_eq!(actions(pod("p").cpu("2"), pod("p").cpu("1")), [Action::POD_SCALE_DOWN]);
        assert_eq!(actions(pod("p").cpu("1"), pod("p").cpu("2")), [Action::POD_SCALE_UP]);
        assert_eq!(actions(pod("p"), pod("p").label("a", "b")), [Action::POD_LABEL]);
        assert_eq!(actions(pod("p"), pod("p").toleration("k", "Exists", "", "")), [Action::POD_TOLERATION]);
    }
}
