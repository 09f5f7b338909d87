//! NodeUnschedulable: cordoned nodes only accept pods that tolerate the unschedulable taint.

use crate::framework::Remedy;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use knarr_api::core::pod::placement::tolerated;

use crate::framework::points::NodeView;
use crate::framework::{
    Action, Changed, ClusterEvent, Descriptor, Filter, NodeFilter, Parts, Plugin, PodInfo, PreFilter,
    Resource, Scope, Shape, Status,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "NodeUnschedulable";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |_| {
        let plugin = Arc::new(NodeUnschedulable);
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

struct NodeUnschedulable;

#[derive(Clone)]
struct Cordons;

fn cordon() -> Taint {
    Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(Resource::Node, Action::ADD.or(Action::NODE_TAINT)),
                ClusterEvent::new(Resource::TargetPod, Action::POD_TOLERATION),
            ]
        }
    }

    fn hint(&self, pod: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        let cordoned = |n: &Node| n.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
        match (change.old::<Node>(), change.new::<Node>()) {
            _ if happened.resource != Resource::Node => tolerates_cordon(&pod.shape),
            (old, Some(new)) => old.is_none_or(cordoned) && !cordoned(new),
            _ => true,
        }
    }
}

fn tolerates_cordon(shape: &Shape) -> bool {
    let tolerations = shape.spec().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    tolerated(tolerations, &cordon())
}

impl Filter for NodeUnschedulable {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        if tolerates_cordon(shape) { PreFilter::Skip } else { PreFilter::check(Cordons) }
    }
}

impl NodeFilter for Cordons {
    fn check(&self, node: &NodeView) -> Status {
        if node.row.is_unschedulable() {
            return Status::unresolvable("node(s) were unschedulable");
        }
        Status::SUCCESS
    }

    fn remedies(&self, _: &PodInfo, node: &NodeView) -> Vec<Remedy> {
        vec![format!("kubectl uncordon {}", node.row.name()).into()]
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use crate::plugins::testing::{node, pod, verdict};

    #[test]
    fn cordoned_nodes_turn_pods_down_unless_tolerated() {
        let fits = |pod, cordoned: bool| {
            verdict(super::DESCRIPTOR, pod, node("a").unschedulable(cordoned), vec![]).is_success()
        };
        assert!(fits(pod("p"), false));
        assert!(!fits(pod("p"), true));
        let key = "node.kubernetes.io/unschedulable";
        assert!(fits(pod("p").toleration(key, "Exists", "", "NoSchedule"), true));
    }
}
