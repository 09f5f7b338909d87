//! From a change of a node or pod to the events that may let waiting pods fit.

use k8s_openapi::api::core::v1::{Node, Pod};

use crate::cache::is_terminal;
use crate::framework::ClusterEvent;
use crate::framework::resources::pod_requests;

/// What an update of a node means for waiting pods.
pub fn node_update(old: &Node, new: &Node) -> Vec<ClusterEvent> {
    let spec = |n: &Node| n.spec.clone().unwrap_or_default();
    let status = |n: &Node| n.status.clone().unwrap_or_default();
    let conditions = |n: &Node| -> Vec<(String, String)> {
        status(n).conditions.into_iter().flatten().map(|c| (c.type_, c.status)).collect()
    };
    let mut events = Vec::new();
    let (old_spec, new_spec) = (spec(old), spec(new));
    if old_spec.taints != new_spec.taints || old_spec.unschedulable != new_spec.unschedulable {
        events.push(ClusterEvent::NodeTaintUpdate);
    }
    if status(old).allocatable != status(new).allocatable {
        events.push(ClusterEvent::NodeAllocatableUpdate);
    }
    if old.metadata.labels != new.metadata.labels {
        events.push(ClusterEvent::NodeLabelUpdate);
    }
    if old.metadata.annotations != new.metadata.annotations {
        events.push(ClusterEvent::NodeAnnotationUpdate);
    }
    if conditions(old) != conditions(new) {
        events.push(ClusterEvent::NodeConditionUpdate);
    }
    events
}

/// What an update of a pod on a node means: one that ended or asks for less makes room.
pub fn assigned_pod_update(old: &Pod, new: &Pod) -> Option<ClusterEvent> {
    if !is_terminal(old) && is_terminal(new) {
        return Some(ClusterEvent::AssignedPodDelete);
    }
    let (before, after) = (pod_requests(old), pod_requests(new));
    let changed = before != after || old.metadata.labels != new.metadata.labels;
    changed.then_some(ClusterEvent::AssignedPodUpdate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    #[test]
    fn node_changes_are_told_apart() {
        let plain = node("n").build();
        assert_eq!(node_update(&plain, &plain), []);
        assert_eq!(
            node_update(&plain, &node("n").unschedulable(true).build()),
            [ClusterEvent::NodeTaintUpdate]
        );
        assert_eq!(node_update(&plain, &node("n").label("a", "b").build()), [ClusterEvent::NodeLabelUpdate]);
        assert_eq!(
            node_update(&plain, &node("n").capacity("8", "8Gi", 110).build()),
            [ClusterEvent::NodeAllocatableUpdate]
        );
    }

    #[test]
    fn a_pod_that_ends_makes_room() {
        let running = pod("p").on("n").build();
        let mut done = running.clone();
        done.status.get_or_insert_default().phase = Some("Succeeded".into());
        assert_eq!(assigned_pod_update(&running, &done), Some(ClusterEvent::AssignedPodDelete));
        assert_eq!(assigned_pod_update(&running, &running), None);
    }
}
