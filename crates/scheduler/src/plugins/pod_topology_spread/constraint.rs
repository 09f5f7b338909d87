//! A parsed spread constraint, with the nodes that it counts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use knarr_apimachinery::selector::{Operator, Requirement, Selector};

use crate::framework::node_match::NodeMatcher;
use crate::framework::points::NodeView;
use crate::framework::{Footprint, Shape};
use crate::plugins::taint_toleration::keeps_off;
use crate::snapshot::{ABSENT, BitSet, ColumnIdx, Snapshot};

/// What to do when a constraint cannot be satisfied.
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
    /// nodeAffinityPolicy: count only nodes that match the pod's node affinity.
    pub honors_affinity: bool,
    /// nodeTaintsPolicy: count only nodes whose taints the pod tolerates.
    pub honors_taints: bool,
}

impl Constraint {
    /// Parses the constraints with this action.
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

    /// Returns whether the constraint of a pod in this namespace counts a pod with this footprint.
    pub fn counts(&self, pod: &Footprint, namespace: &str) -> bool {
        // An empty selector counts no pods. Source: upstream.
        !pod.terminating
            && *pod.namespace == *namespace
            && !self.selector.is_everything()
            && self.selector.matches(&pod.labels)
    }

    /// The nodes that the constraint counts.
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

/// Returns the constraint's selector, extended by the pod's own values of matchLabelKeys.
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
