//! NodeRestriction: a kubelet writes its own node, the status of its own pods, and nothing else.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::service_account::is_mirror;
use super::{Attributes, Operation, Plugin};
use crate::authz::node::node_name;
use crate::server::Inner;

pub struct NodeRestriction;

/// Labels that say where trusted workloads go are not for the node itself to set.
const RESTRICTED_PREFIX: &str = "node-restriction.kubernetes.io/";

#[async_trait]
impl Plugin for NodeRestriction {
    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn validate(&self, attributes: &Attributes<'_>, _: &Inner) -> Result<(), StatusError> {
        let Some(node) = node_name(attributes.user) else { return Ok(()) };
        let refused = match (attributes.resource.group, attributes.resource.plural, attributes.subresource) {
            ("", "pods", "") => pod(node, attributes),
            ("", "pods", "status") => pod_status(node, attributes),
            ("", "pods", "eviction") => own_pod(node, attributes, "evict"),
            ("", "nodes", "" | "status") => own_node(node, attributes),
            ("coordination.k8s.io", "leases", "") => lease(node, attributes),
            _ => None,
        };
        refused.map_or(Ok(()), |why| Err(attributes.forbidden(&why)))
    }
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

fn pod(node: &str, attributes: &Attributes<'_>) -> Option<String> {
    match attributes.operation {
        Operation::Create => {
            let pod = &attributes.object;
            if !is_mirror(pod) {
                return Some(format!(
                    "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"{node}\" can only create mirror pods"
                ));
            }
            if text(pod, "/spec/nodeName") != node {
                return Some(format!(
                    "node \"{node}\" can only create pods with spec.nodeName set to itself"
                ));
            }
            None
        }
        Operation::Delete => own_pod(node, attributes, "delete"),
        _ => Some(format!(
            "unexpected operation of node \"{node}\", node can only create and delete mirror pods"
        )),
    }
}

fn own_pod(node: &str, attributes: &Attributes<'_>, verb: &str) -> Option<String> {
    let on = attributes.old.map_or("", |old| text(old, "/spec/nodeName"));
    (on != node).then(|| format!("node \"{node}\" can only {verb} pods with spec.nodeName set to itself"))
}

fn pod_status(node: &str, attributes: &Attributes<'_>) -> Option<String> {
    let old = attributes.old?;
    if text(old, "/spec/nodeName") != node {
        return Some(format!(
            "node \"{node}\" can only update pod status for pods with spec.nodeName set to itself"
        ));
    }
    let labels = |v: &Value| v.pointer("/metadata/labels").cloned().unwrap_or_default();
    (labels(old) != labels(&attributes.object))
        .then(|| format!("node \"{node}\" cannot update labels through pod status"))
}

fn own_node(node: &str, attributes: &Attributes<'_>) -> Option<String> {
    let named =
        if attributes.name.is_empty() { text(&attributes.object, "/metadata/name") } else { attributes.name };
    if named != node {
        return Some(format!("node \"{node}\" is not allowed to modify node \"{named}\""));
    }
    let restricted = |v: &Value| -> Vec<(String, Value)> {
        let labels = v.pointer("/metadata/labels").and_then(Value::as_object);
        let of_others = labels.into_iter().flatten().filter(|(k, _)| {
            let prefix = k.split('/').next().unwrap_or("");
            k.starts_with(RESTRICTED_PREFIX) || prefix.ends_with(".node-restriction.kubernetes.io")
        });
        of_others.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let changed = match (attributes.operation, attributes.old) {
        (Operation::Create, _) => restricted(&attributes.object),
        (Operation::Update, Some(old)) => {
            let before = restricted(old);
            let after = restricted(&attributes.object);
            let differs = |(k, v): &&(String, Value)| !before.contains(&(k.clone(), v.clone()));
            let mut changed: Vec<_> = after.iter().filter(differs).cloned().collect();
            changed.extend(before.iter().filter(|(k, _)| !after.iter().any(|(a, _)| a == k)).cloned());
            changed
        }
        _ => Vec::new(),
    };
    if !changed.is_empty() {
        let names: Vec<&str> = changed.iter().map(|(k, _)| k.as_str()).collect();
        return Some(format!("is not allowed to modify labels: {}", names.join(", ")));
    }
    if let Some(old) = attributes.old.filter(|_| attributes.operation == Operation::Update)
        && old.pointer("/spec/taints") != attributes.object.pointer("/spec/taints")
    {
        return Some(format!("node \"{node}\" is not allowed to modify taints"));
    }
    None
}

fn lease(node: &str, attributes: &Attributes<'_>) -> Option<String> {
    if attributes.namespace != "kube-node-lease" {
        return Some("can only access leases in the \"kube-node-lease\" system namespace".into());
    }
    let name =
        if attributes.name.is_empty() { text(&attributes.object, "/metadata/name") } else { attributes.name };
    (name != node).then(|| "can only access node lease with the same name as the requesting node".into())
}
