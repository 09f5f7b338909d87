//! NodeDeclaredFeatures: a node must declare the features that a pod needs.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodedeclaredfeatures`, KEP-5328.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_api::core::pod::node_features::{for_pod, lacking};

use crate::framework::points::NodeView;
use crate::framework::{
    Action, Changed, ClusterEvent, Descriptor, Filter, NodeFilter, Parts, Plugin, PodInfo, PreFilter,
    Resource, Scope, Shape, Status,
};
use crate::snapshot::Snapshot;

pub const NAME: &str = "NodeDeclaredFeatures";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |_| {
        let plugin = Arc::new(NodeDeclaredFeatures);
        Ok(Parts { filter: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

struct NodeDeclaredFeatures;

/// The features that pods of a shape need.
#[derive(Clone)]
struct Needs(Vec<&'static str>);

fn needs(pod: &Pod) -> Vec<&'static str> {
    pod.spec.as_ref().map(for_pod).unwrap_or_default()
}

impl Plugin for NodeDeclaredFeatures {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const {
            &[
                ClusterEvent::new(Resource::Node, Action::ADD.or(Action::NODE_DECLARED_FEATURE)),
                ClusterEvent::new(Resource::TargetPod, Action::UPDATE),
            ]
        }
    }

    fn hint(&self, _: &PodInfo, happened: ClusterEvent, change: &Changed) -> bool {
        if happened.resource == Resource::Node {
            let declared = |n: &Node| n.status.as_ref().and_then(|s| s.declared_features.clone());
            return match (change.old::<Node>(), change.new::<Node>()) {
                (Some(old), Some(new)) => declared(old) != declared(new),
                _ => true,
            };
        }
        match (change.old::<Pod>(), change.new::<Pod>()) {
            (Some(old), Some(new)) => needs(old) != needs(new),
            _ => true,
        }
    }
}

impl Filter for NodeDeclaredFeatures {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_filter(&self, _: &Snapshot, shape: &Shape) -> PreFilter {
        let needs = needs(&shape.pod);
        if needs.is_empty() { PreFilter::Skip } else { PreFilter::check(Needs(needs)) }
    }
}

impl NodeFilter for Needs {
    fn check(&self, node: &NodeView) -> Status {
        if lacking(&self.0, &node.row.node).is_empty() {
            return Status::SUCCESS;
        }
        Status::unresolvable("node(s) didn't match Pod's required features")
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, object, pod, verdict};
    use serde_json::json;

    #[test]
    fn nodes_have_to_declare_what_a_pod_needs() {
        let needing = || -> Pod {
            object(json!({"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [
                {"name": "c", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]}}))
        };
        let declaring = |features: &[&str]| {
            let mut node = node("n").build();
            node.status.get_or_insert_default().declared_features =
                Some(features.iter().map(|&f| f.to_owned()).collect());
            node
        };
        let says = |pod: Pod, features: &[&str]| {
            verdict(DESCRIPTOR, pod.into(), declaring(features).into(), vec![]).message()
        };
        let no = "node(s) didn't match Pod's required features";
        assert_eq!(says(pod("p").build(), &[]), "");
        assert_eq!(says(needing(), &[]), no);
        assert_eq!(says(needing(), &["Other"]), no);
        assert_eq!(says(needing(), &["Other", "RestartAllContainersOnContainerExits"]), "");
        let changed = |old: &[&str], new: &[&str]| {
            let change = Changed::of(Some(Arc::new(declaring(old))), Some(Arc::new(declaring(new))));
            let happened = ClusterEvent::new(Resource::Node, Action::NODE_DECLARED_FEATURE);
            NodeDeclaredFeatures.hint(&PodInfo::new(&needing()), happened, &change)
        };
        assert!(changed(&[], &["Other"]) && !changed(&["Other"], &["Other"]));
    }
}
