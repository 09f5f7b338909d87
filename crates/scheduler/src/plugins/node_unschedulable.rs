//! NodeUnschedulable: cordoned nodes take only pods that tolerate the unschedulable taint.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use knarr_api::core::pod::placement::tolerates;

use crate::framework::profile::Descriptor;
use crate::framework::{
    ClusterEvent, CycleState, EventObject, Filter, Interest, NodeInfo, Plugin, PodInfo, Status,
};

pub const NAME: &str = "NodeUnschedulable";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    register: |points, _| {
        let plugin = Arc::new(NodeUnschedulable);
        points.all.push(plugin.clone());
        points.filter.push(plugin);
    },
};

struct NodeUnschedulable;

fn is_schedulable_now(_: &k8s_openapi::api::core::v1::Pod, change: &EventObject) -> bool {
    match change {
        EventObject::Node { new: Some(node), .. } => {
            !node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false)
        }
        _ => true,
    }
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [Interest] {
        const {
            &[
                Interest::when(ClusterEvent::NodeAdd, is_schedulable_now),
                Interest::when(ClusterEvent::NodeTaintUpdate, is_schedulable_now),
                Interest::always(ClusterEvent::UnscheduledPodUpdate),
            ]
        }
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if !node.is_unschedulable() {
            return Status::SUCCESS;
        }
        let taint = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let tolerations = pod.spec().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        if tolerations.iter().any(|t| tolerates(t, &taint)) {
            return Status::SUCCESS;
        }
        Status::unresolvable("node(s) were unschedulable")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    #[test]
    fn cordoned_nodes_turn_pods_down_unless_tolerated() {
        let filter = |pod: k8s_openapi::api::core::v1::Pod, cordoned: bool| {
            let node = NodeInfo::new(node("a").unschedulable(cordoned).into());
            NodeUnschedulable.filter(&CycleState::default(), &PodInfo::new(pod.into()), &node).is_success()
        };
        assert!(filter(pod("p").build(), false));
        assert!(!filter(pod("p").build(), true));
        let key = "node.kubernetes.io/unschedulable";
        assert!(filter(pod("p").toleration(key, "Exists", "", "NoSchedule").build(), true));
    }
}
