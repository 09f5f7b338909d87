//! The taints and labels that a node's state requires.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::support::nodes::{condition, taints};

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// A condition type, a status, and the key of the corresponding taint.
const BY_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// Deprecated labels that mirror current ones: the current key, then the deprecated one.
const MIRRORED_LABELS: [(&str, &str); 2] =
    [("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")];

/// Which of the two NoExecute taints for readiness the node should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoExecute {
    Neither,
    NotReady,
    Unreachable,
    /// The node has never reported: its taints are kept as they are.
    Unchanged,
}

impl NoExecute {
    /// Returns the taint that the node's readiness requires.
    pub fn wanted(node: &Node) -> Self {
        match condition(node, "Ready").map(|c| c.status.as_str()) {
            None => Self::Unchanged,
            Some("True") => Self::Neither,
            Some("False") => Self::NotReady,
            Some(_) => Self::Unreachable,
        }
    }

    /// Returns whether this starts evictions from a node that had no such taint so far.
    pub fn is_new(self, node: &Node) -> bool {
        matches!(self, Self::NotReady | Self::Unreachable) && !taints(node).iter().any(is_of_readiness)
    }

    fn key(self) -> Option<&'static str> {
        match self {
            Self::NotReady => Some(NOT_READY),
            Self::Unreachable => Some(UNREACHABLE),
            Self::Neither | Self::Unchanged => None,
        }
    }
}

fn is_of_readiness(taint: &Taint) -> bool {
    taint.effect == NO_EXECUTE && matches!(taint.key.as_str(), NOT_READY | UNREACHABLE)
}

/// Returns whether this controller manages the taint.
fn is_managed(taint: &Taint, no_execute: NoExecute) -> bool {
    match taint.effect.as_str() {
        NO_SCHEDULE => taint.key == UNSCHEDULABLE || BY_CONDITION.iter().any(|(_, _, key)| taint.key == *key),
        NO_EXECUTE => no_execute != NoExecute::Unchanged && is_of_readiness(taint),
        _ => false,
    }
}

/// Returns all taints that the node should have; `None` if it has them already.
pub fn next_taints(node: &Node, no_execute: NoExecute, now: Timestamp) -> Option<Vec<Taint>> {
    let holds = |type_: &str, status: &str| condition(node, type_).is_some_and(|c| c.status == status);
    let conditions = BY_CONDITION.iter().filter(|(type_, status, _)| holds(type_, status));
    let mut wanted: Vec<(&str, &str)> = conditions.map(|(_, _, key)| (*key, NO_SCHEDULE)).collect();
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        wanted.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    wanted.extend(no_execute.key().map(|key| (key, NO_EXECUTE)));

    let current = taints(node);
    let is_wanted = |t: &Taint| wanted.contains(&(t.key.as_str(), t.effect.as_str()));
    let mut next: Vec<Taint> =
        current.iter().filter(|t| !is_managed(t, no_execute) || is_wanted(t)).cloned().collect();
    for (key, effect) in wanted {
        if !next.iter().any(|t| t.key == key && t.effect == effect) {
            let (key, effect) = (key.to_owned(), effect.to_owned());
            next.push(Taint { key, effect, value: None, time_added: Some(Time(now)) });
        }
    }
    (next != current).then_some(next)
}

/// Returns the labels to add or correct.
pub fn next_labels(node: &Node) -> BTreeMap<&'static str, String> {
    let Some(labels) = &node.metadata.labels else { return BTreeMap::new() };
    let mirrored = MIRRORED_LABELS.iter().filter_map(|(new, old)| {
        let value = labels.get(*new)?;
        (labels.get(*old) != Some(value)).then(|| (*old, value.clone()))
    });
    mirrored.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_lifecycle::testing::{at, node, with_condition};

    fn show(taints: &[Taint]) -> Vec<String> {
        let short = |key: &str| key.trim_start_matches("node.kubernetes.io/").to_owned();
        taints.iter().map(|t| format!("{}:{}", short(&t.key), t.effect)).collect()
    }

    fn tainted(mut node: Node, all: &[(&str, &str)]) -> Node {
        let taints = all.iter().map(|(key, effect)| Taint {
            key: (*key).into(),
            effect: (*effect).into(),
            ..Taint::default()
        });
        node.spec.get_or_insert_default().taints = Some(taints.collect());
        node
    }

    #[test]
    fn taints_follow_conditions() {
        let mut cordoned = with_condition(node("n", Some("True"), 1), "DiskPressure", "True");
        cordoned.spec.get_or_insert_default().unschedulable = Some(true);
        let own = ("team", "NoExecute");
        let table: [(Node, &[&str]); 5] = [
            (node("n", Some("False"), 1), &["not-ready:NoSchedule", "not-ready:NoExecute"]),
            (node("n", Some("Unknown"), 1), &["unreachable:NoSchedule", "unreachable:NoExecute"]),
            (cordoned, &["disk-pressure:NoSchedule", "unschedulable:NoSchedule"]),
            (
                tainted(
                    node("n", Some("Unknown"), 1),
                    &[own, (NOT_READY, NO_EXECUTE), (NOT_READY, NO_SCHEDULE)],
                ),
                &["team:NoExecute", "unreachable:NoSchedule", "unreachable:NoExecute"],
            ),
            (
                tainted(
                    node("n", Some("True"), 1),
                    &[(NOT_READY, NO_SCHEDULE), own, (UNREACHABLE, NO_EXECUTE)],
                ),
                &["team:NoExecute"],
            ),
        ];
        for (node, expected) in table {
            let next = next_taints(&node, NoExecute::wanted(&node), at(9)).unwrap();
            assert_eq!(show(&next), expected);
            let settled = tainted(node.clone(), &[]);
            let mut settled = settled;
            settled.spec.get_or_insert_default().taints = Some(next);
            assert_eq!(next_taints(&settled, NoExecute::wanted(&settled), at(10)), None, "stable");
        }
    }

    #[test]
    fn no_execute_is_left_alone_before_the_first_report() {
        let new = tainted(node("n", None, 0), &[(NOT_READY, NO_EXECUTE), (NOT_READY, NO_SCHEDULE)]);
        assert_eq!(NoExecute::wanted(&new), NoExecute::Unchanged);
        assert_eq!(show(&next_taints(&new, NoExecute::Unchanged, at(1)).unwrap()), ["not-ready:NoExecute"]);
    }

    #[test]
    fn swapping_is_not_a_new_eviction() {
        let fresh = node("n", Some("Unknown"), 1);
        assert!(NoExecute::Unreachable.is_new(&fresh));
        assert!(!NoExecute::Unreachable.is_new(&tainted(fresh.clone(), &[(NOT_READY, NO_EXECUTE)])));
        assert!(!NoExecute::Neither.is_new(&fresh));
    }

    #[test]
    fn old_labels_mirror_new_ones() {
        let mut node = node("n", Some("True"), 1);
        assert!(next_labels(&node).is_empty());
        let labels = [
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "arm64"),
            ("beta.kubernetes.io/arch", "x"),
        ];
        node.metadata.labels = Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let expected = [("beta.kubernetes.io/arch", "arm64"), ("beta.kubernetes.io/os", "linux")];
        assert_eq!(next_labels(&node), expected.map(|(k, v)| (k, v.to_owned())).into());
    }
}
