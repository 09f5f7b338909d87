//! The Node object that a kubelet creates, and the fields that it corrects on an existing one.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/kubelet_node_status.go`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

use super::machine::architecture;

const ATTACH_DETACH_ANNOTATION: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// The label of a node that runs the control plane; its value is empty.
pub const CONTROL_PLANE_LABEL: &str = "node-role.kubernetes.io/control-plane";

/// The labels of every node.
pub fn default_labels(hostname: &str) -> BTreeMap<String, String> {
    let arch = architecture();
    [
        ("kubernetes.io/hostname", hostname),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Returns the node to create.
pub fn node(
    name: &str,
    hostname: &str,
    labels: &BTreeMap<String, String>,
    taints: &[Taint],
    status: NodeStatus,
) -> Node {
    let mut all = default_labels(hostname);
    all.extend(labels.clone());
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(all),
            annotations: Some([(ATTACH_DETACH_ANNOTATION.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec { taints: (!taints.is_empty()).then(|| taints.to_vec()), ..NodeSpec::default() }),
        status: Some(status),
    }
}

/// Returns the merge patch that sets the default labels and the annotation of `wanted` on an existing node; `None`
/// if it has them. As upstream, configured labels are set at creation only.
pub fn correction(existing: &Node, wanted: &Node, hostname: &str) -> Option<Value> {
    let differing =
        |have: Option<&BTreeMap<String, String>>, want: BTreeMap<String, String>| -> Map<String, Value> {
            let differs = |(key, value): &(String, String)| have.and_then(|h| h.get(key)) != Some(value);
            want.into_iter().filter(differs).map(|(key, value)| (key, Value::String(value))).collect()
        };
    let labels = differing(existing.metadata.labels.as_ref(), default_labels(hostname));
    let wanted = wanted.metadata.annotations.clone().unwrap_or_default();
    let annotations = differing(existing.metadata.annotations.as_ref(), wanted);
    if labels.is_empty() && annotations.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"labels": labels, "annotations": annotations}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_a_new_node() {
        let own = [(CONTROL_PLANE_LABEL.to_owned(), String::new())].into();
        let node = node("n1", "host", &own, &[], NodeStatus::default());
        let labels = node.metadata.labels.as_ref().unwrap();
        assert_eq!(labels["kubernetes.io/hostname"], "host");
        assert_eq!(labels["kubernetes.io/os"], "linux");
        assert_eq!(labels[CONTROL_PLANE_LABEL], "");
        assert_eq!(labels.len(), 6);
        assert_eq!(node.spec.as_ref().unwrap().taints, None);
        assert_eq!(correction(&node, &node, "host"), None);
    }

    #[test]
    fn lost_labels_come_back_and_foreign_ones_stay() {
        let wanted = node("n1", "host", &BTreeMap::new(), &[], NodeStatus::default());
        let mut existing = wanted.clone();
        let labels = existing.metadata.labels.as_mut().unwrap();
        labels.remove("kubernetes.io/arch");
        labels.insert("team".into(), "a".into());
        let patch = correction(&existing, &wanted, "host").unwrap();
        assert_eq!(patch["metadata"]["labels"], json!({"kubernetes.io/arch": architecture()}));
    }
}
