//! A spread constraint, parsed, and which nodes it counts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use knarr_apimachinery::selector::{Operator, Requirement, Selector};

use crate::framework::node_match::NodeMatcher;
use crate::framework::points::NodeView;
use crate::framework::{Footprint, Shape};
use crate::plugins::taint_toleration::keeps_off;
use crate::snapshot::{ABSENT, BitSet, ColumnIdx, Snapshot};

/// What happens when a constraint cannot be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    DoNotSchedule,
    ScheduleAnyway,
}

/// One constraint.
#[derive(Debug, Clone)]
pub struct Constraint {
    pub key: Box<str>,
    pub max_skew: i64,
    pub min_domains: usize,
    pub selector: Selector,
    /// nodeAffinityPolicy: only nodes that the pod's node affinity admits are counted.
    pub honors_affinity: bool,
    /// nodeTaintsPolicy: only nodes whose taints the pod tolerates are counted.
    pub honors_taints: bool,
}

impl Constraint {
    /// The constraints of one kind.
    pub fn parse(
        constraints: &[TopologySpreadConstraint],
        labels: &BTreeMap<String, String>,
        action: Action,
    ) -> Vec<Self> {
        let wanted = match action {
            Action::DoNotSchedule => "DoNotSchedule",
            Action::ScheduleAnyway => "ScheduleAnyway",
        };
        let ours = constraints.iter().filter(|c| c.when_unsatisfiable == wanted);
        ours.map(|c| Self {
            key: c.topology_key.as_str().into(),
            max_skew: i64::from(c.max_skew),
            min_domains: c.min_domains.and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
            selector: selector(c, labels),
            honors_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
            honors_taints: c.node_taints_policy.as_deref() == Some("Honor"),
        })
        .collect()
    }

    /// Whether it counts a pod with this footprint, for a pod of this namespace.
    pub fn counts(&self, pod: &Footprint, namespace: &str) -> bool {
        // A selector that matches everything counts nothing: so it has always been.
        !pod.terminating
            && *pod.namespace == *namespace
            && !self.selector.is_everything()
            && self.selector.matches(&pod.labels)
    }

    /// The nodes that it counts.
    pub fn eligible(&self, cluster: &Snapshot, shape: &Shape, keys: &[ColumnIdx]) -> BitSet {
        let matcher = self.honors_affinity.then(|| NodeMatcher::required(cluster, shape.spec()));
        let tolerations = shape.spec().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
        let counts = |at: &u32| {
            let node = NodeView { cluster, at: *at, row: cluster.row(*at) };
            keys.iter().all(|key| cluster.domain(*key, *at) != ABSENT)
                && matcher.as_ref().is_none_or(|m| m.matches(&node))
                && !(self.honors_taints && keeps_off(node.row.taints(), tolerations))
        };
        cluster.live().iter().filter(counts).collect()
    }
}

/// The constraint's selector, with the pod's own values of matchLabelKeys.
fn selector(constraint: &TopologySpreadConstraint, labels: &BTreeMap<String, String>) -> Selector {
    let given = Selector::from_label_selector(constraint.label_selector.as_ref())
        .unwrap_or_else(|_| Selector::nothing());
    let keys = constraint.match_label_keys.iter().flatten();
    let own: Vec<Requirement> = keys
        .filter_map(|key| Requirement::new(key, Operator::Equals, vec![labels.get(key)?.clone()]).ok())
        .collect();
    if own.is_empty() || given.is_nothing() {
        return given;
    }
    Selector::new(own.into_iter().chain(given.requirements().iter().cloned()).collect())
}
