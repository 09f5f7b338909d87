//! Helpers about nodes: their conditions, and the pods bound to them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, Taint};
use knarr_client::{Informer, Lister};

/// The index of pods by the node they are bound to.
const BY_NODE: &str = "spec.nodeName";

pub fn condition<'n>(node: &'n Node, type_: &str) -> Option<&'n NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == type_)
}

pub fn is_ready(node: &Node) -> bool {
    condition(node, "Ready").is_some_and(|c| c.status == "True")
}

pub fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default()
}

/// Returns the node that the pod is bound to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty())
}

/// Adds the index that [`pods_on`] needs to this informer.
pub fn index_pods(pods: &Informer<Pod>) {
    pods.add_index(BY_NODE, |pod| node_of(pod).map(str::to_owned).into_iter().collect());
}

/// Returns the pods bound to the node; [`index_pods`] must have been called.
pub fn pods_on(pods: &Lister<Pod>, node: &str) -> Vec<Arc<Pod>> {
    pods.by_index(BY_NODE, node)
}
