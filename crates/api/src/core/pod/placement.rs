//! Whether a node's labels and taints allow a pod: node selector, node affinity, tolerations.

use k8s_openapi::api::core::v1::{
    Node, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};

use crate::kind::Kind;

/// Returns whether a toleration matches a taint: no key matches every key, no effect every effect; the default
/// operator is `Equal`; `Lt` and `Gt` compare the taint's number with the toleration's.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    fn text(value: &Option<String>) -> &str {
        value.as_deref().unwrap_or("")
    }
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    let (own, theirs) = (text(&toleration.value), text(&taint.value));
    let compare = |holds: fn(i64, i64) -> bool| match (theirs.parse(), own.parse()) {
        (Ok(theirs), Ok(own)) => holds(theirs, own),
        _ => false,
    };
    match text(&toleration.operator) {
        "" | "Equal" => own == theirs,
        "Exists" => true,
        "Lt" => compare(|theirs, own| theirs < own),
        "Gt" => compare(|theirs, own| theirs > own),
        _ => false,
    }
}

/// Returns whether one of the tolerations matches the taint.
pub fn tolerated(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|t| tolerates(t, taint))
}

pub fn tolerations(pod: &Pod) -> &[Toleration] {
    pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default()
}

pub fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default()
}

pub fn node_affinity(pod: &Pod) -> Option<&NodeAffinity> {
    pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()
}

/// Returns the alternative terms of required node affinity; `None` if there are none.
pub fn required_terms(pod: &Pod) -> Option<&[NodeSelectorTerm]> {
    let required = node_affinity(pod)?.required_during_scheduling_ignored_during_execution.as_ref()?;
    Some(&required.node_selector_terms)
}

/// Returns whether a label or field meets the requirement; `value` is `None` if it is missing.
pub fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let among = |v: &str| values.iter().any(|wanted| wanted == v);
    let compared = |wanted: fn(i64, i64) -> bool| match (value, values) {
        (Some(v), [bound]) => match (v.parse(), bound.parse()) {
            (Ok(v), Ok(bound)) => wanted(v, bound),
            _ => false,
        },
        _ => false,
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(among),
        "NotIn" => !value.is_some_and(among),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|v, bound| v > bound),
        "Lt" => compared(|v, bound| v < bound),
        _ => false,
    }
}

/// Returns whether a node meets all requirements of a term. A term without requirements matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let (expressions, fields) = (
        term.match_expressions.as_deref().unwrap_or_default(),
        term.match_fields.as_deref().unwrap_or_default(),
    );
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|l| l.get(key)).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then(|| node.name());
    expressions.iter().all(|r| holds(r, label(&r.key))) && fields.iter().all(|r| holds(r, field(&r.key)))
}

/// Returns whether the node meets the pod's nodeSelector and one of its required terms.
pub fn node_matches(pod: &Pod, node: &Node) -> bool {
    let mut selector = pod.spec.as_ref().and_then(|s| s.node_selector.as_ref()).into_iter().flatten();
    let labels = node.metadata.labels.as_ref();
    let selected = selector.all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v));
    selected && required_terms(pod).is_none_or(|terms| terms.iter().any(|t| term_matches(t, node)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn tolerations_match_taints() {
        let taint: Taint =
            serde_json::from_value(json!({"key": "a", "value": "5", "effect": "NoSchedule"})).unwrap();
        for (toleration, expected) in [
            (json!({"key": "a", "value": "5"}), true),
            (json!({"key": "a", "operator": "Equal", "value": "6"}), false),
            (json!({"key": "a", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "b", "operator": "Exists"}), false),
            (json!({"key": "a", "operator": "Gt", "value": "4"}), true),
            (json!({"key": "a", "operator": "Lt", "value": "4"}), false),
            (json!({"key": "a", "operator": "Lt", "value": "x"}), false),
        ] {
            let own: Toleration = serde_json::from_value(toleration.clone()).unwrap();
            assert_eq!(tolerates(&own, &taint), expected, "{toleration}");
        }
    }

    #[test]
    fn nodes_match_selectors_and_one_of_the_terms() {
        let node =
            serde_json::from_value(json!({"metadata": {"name": "n1", "labels": {"zone": "a", "cpus": "8"}}}));
        let node: Node = node.unwrap();
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let named = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        let table: [(Value, Vec<Value>, bool); 9] = [
            (json!({}), vec![], false),
            (json!({}), vec![json!({})], false),
            (json!({}), vec![expression("zone", "In", &["a", "b"])], true),
            (json!({}), vec![expression("zone", "NotIn", &["a"]), expression("zone", "Exists", &[])], true),
            (json!({}), vec![expression("cpus", "Gt", &["4"])], true),
            (json!({}), vec![expression("cpus", "Lt", &["4"])], false),
            (json!({}), vec![named("n1")], true),
            (json!({}), vec![named("n2")], false),
            (json!({"zone": "b"}), vec![named("n1")], false),
        ];
        for (selector, terms, expected) in table {
            let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": terms}}});
            let spec = json!({"containers": [], "nodeSelector": selector, "affinity": affinity});
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!(node_matches(&pod, &node), expected, "{selector} {terms:?}");
        }
    }
}
