//! On which nodes a DaemonSet runs, and how its pods are bound to them.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
    Toleration,
};
use knarr_api::core::pod::placement::{node_matches, required_terms, taints, tolerated, tolerations};
use knarr_api::kind::Kind;

use crate::support::pod_control::pod_from;

const NAME_FIELD: &str = "metadata.name";

/// Whether a DaemonSet runs on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// The node should have a pod.
    Run,
    /// An existing pod may stay, but none is created.
    Stay,
    Neither,
}

/// The taints that daemon pods tolerate, and whether only pods with host networking do.
const TOLERATED: &[(&str, &str, bool)] = &[
    ("node.kubernetes.io/not-ready", "NoExecute", false),
    ("node.kubernetes.io/unreachable", "NoExecute", false),
    ("node.kubernetes.io/disk-pressure", "NoSchedule", false),
    ("node.kubernetes.io/memory-pressure", "NoSchedule", false),
    ("node.kubernetes.io/pid-pressure", "NoSchedule", false),
    ("node.kubernetes.io/unschedulable", "NoSchedule", false),
    ("node.kubernetes.io/network-unavailable", "NoSchedule", true),
];

/// Makes the set's pod, not yet for a particular node.
pub fn pod_of(set: &DaemonSet) -> Pod {
    let mut pod = pod_from(set, Some(&set.spec.template));
    let spec = pod.spec.get_or_insert_default();
    let on_host = spec.host_network == Some(true);
    let own = spec.tolerations.get_or_insert_default();
    for (key, effect, host_only) in TOLERATED {
        let toleration = Toleration {
            key: Some((*key).to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some((*effect).to_owned()),
            ..Toleration::default()
        };
        if *host_only && !on_host {
            continue;
        }
        // A toleration of the set's own may be limited in time; the limit is removed.
        let means = |t: &&mut Toleration| {
            Toleration { toleration_seconds: None, ..Toleration::clone(t) } == toleration
        };
        match own.iter_mut().find(means) {
            Some(own) => *own = toleration,
            None => own.push(toleration),
        }
    }
    pod
}

/// Adds a required node affinity for the node's name, which the scheduler follows.
pub fn tie(pod: &mut Pod, node: &str) {
    let requirement = NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: None, match_fields: Some(vec![requirement]) };
    let affinity: &mut Affinity =
        pod.spec.get_or_insert_with(PodSpec::default).affinity.get_or_insert_default();
    let node_affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    node_affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
}

/// Returns the node that the pod is bound to or has the affinity for.
pub fn node_of(pod: &Pod) -> Option<&str> {
    let bound = pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty());
    bound.or_else(|| {
        let mut fields = required_terms(pod)?.iter().flat_map(|t| t.match_fields.iter().flatten());
        let named = fields.find(|r| r.key == NAME_FIELD && r.operator == "In")?;
        match named.values.as_deref()? {
            [one] => Some(one.as_str()),
            _ => None,
        }
    })
}

/// Decides whether the pod may run on the node; `pod` is made by [`pod_of`].
pub fn fit(pod: &Pod, node: &Node) -> Fit {
    let wanted = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("");
    if !wanted.is_empty() && wanted != node.name() || !node_matches(pod, node) {
        return Fit::Neither;
    }
    let open = |effects: &[&str]| {
        let of_effect = taints(node).iter().filter(|t| effects.contains(&t.effect.as_str()));
        of_effect.into_iter().any(|t| !tolerated(tolerations(pod), t))
    };
    match (open(&["NoExecute"]), open(&["NoSchedule"])) {
        (true, _) => Fit::Neither,
        (false, true) => Fit::Stay,
        (false, false) => Fit::Run,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(spec: Value) -> DaemonSet {
        let mut pod = json!({"containers": [{"name": "c", "image": "i"}]});
        pod.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "d", "namespace": "ns"},
            "spec": {"selector": {}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod}}}))
        .unwrap()
    }

    fn node(labels: Value, taints: Value) -> Node {
        serde_json::from_value(
            json!({"metadata": {"name": "n1", "labels": labels}, "spec": {"taints": taints}}),
        )
        .unwrap()
    }

    #[test]
    fn nodes_are_chosen_by_labels_and_taints() {
        let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
        let table = [
            (json!({}), json!({}), json!([]), Fit::Run),
            (json!({"nodeSelector": {"disk": "ssd"}}), json!({}), json!([]), Fit::Neither),
            (json!({"nodeSelector": {"disk": "ssd"}}), json!({"disk": "ssd"}), json!([]), Fit::Run),
            (json!({"nodeName": "n2"}), json!({}), json!([]), Fit::Neither),
            (json!({}), json!({}), taint("mine", "NoSchedule"), Fit::Stay),
            (json!({}), json!({}), taint("mine", "NoExecute"), Fit::Neither),
            (json!({}), json!({}), taint("mine", "PreferNoSchedule"), Fit::Run),
            (json!({}), json!({}), taint("node.kubernetes.io/unschedulable", "NoSchedule"), Fit::Run),
            (json!({}), json!({}), taint("node.kubernetes.io/not-ready", "NoExecute"), Fit::Run),
            (json!({}), json!({}), taint("node.kubernetes.io/network-unavailable", "NoSchedule"), Fit::Stay),
            (
                json!({"hostNetwork": true}),
                json!({}),
                taint("node.kubernetes.io/network-unavailable", "NoSchedule"),
                Fit::Run,
            ),
        ];
        for (spec, labels, taints, expected) in table {
            let pod = pod_of(&set(spec.clone()));
            assert_eq!(fit(&pod, &node(labels, taints.clone())), expected, "{spec} {taints}");
        }
    }

    #[test]
    fn node_of_finds_the_affinity() {
        let mut pod = pod_of(&set(json!({})));
        assert_eq!(node_of(&pod), None);
        tie(&mut pod, "n7");
        assert_eq!(node_of(&pod), Some("n7"));
        pod.spec.as_mut().unwrap().node_name = Some("n8".into());
        assert_eq!(node_of(&pod), Some("n8"));
    }
}
