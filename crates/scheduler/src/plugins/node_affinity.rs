//! NodeAffinity: nodeSelector and required node affinity filter, preferred terms score by their weights.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod};
use knarr_api::core::pod::placement::{node_affinity, node_matches, required_terms, term_matches};

use crate::cache::Nodes;
use crate::framework::profile::Descriptor;
use crate::framework::{
    ClusterEvent, CycleState, EventObject, Filter, Interest, MAX_NODE_SCORE, NodeInfo, Plugin, PodInfo,
    PreFilter, Score, Status,
};

pub const NAME: &str = "NodeAffinity";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 2,
    register: |points, weight| {
        let plugin = Arc::new(NodeAffinity);
        points.all.push(plugin.clone());
        points.pre_filter.push(plugin.clone());
        points.filter.push(plugin.clone());
        points.score.push((plugin, weight));
    },
};

const REASON: &str = "node(s) didn't match Pod's node affinity/selector";

struct NodeAffinity;

fn matches_now(pod: &Pod, change: &EventObject) -> bool {
    match change {
        EventObject::Node { new: Some(node), .. } => node_matches(pod, node),
        _ => true,
    }
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [Interest] {
        const {
            &[
                Interest::when(ClusterEvent::NodeAdd, matches_now),
                Interest::when(ClusterEvent::NodeLabelUpdate, matches_now),
                Interest::always(ClusterEvent::UnscheduledPodUpdate),
            ]
        }
    }
}

/// The node names that a term allows through `matchFields`, where it names any.
fn named_nodes(term: &NodeSelectorTerm) -> Option<BTreeSet<String>> {
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let sets = fields.iter().filter(|r| r.key == "metadata.name" && r.operator == "In");
    sets.map(|r| r.values.iter().flatten().cloned().collect::<BTreeSet<_>>())
        .reduce(|a, b| a.intersection(&b).cloned().collect())
}

impl PreFilter for NodeAffinity {
    fn pre_filter(
        &self,
        _: &mut CycleState,
        pod: &PodInfo,
        _: &Nodes,
    ) -> Result<Option<BTreeSet<String>>, Status> {
        let selector = pod.spec().and_then(|s| s.node_selector.as_ref());
        let Some(terms) = required_terms(&pod.pod) else {
            return if selector.is_none_or(|s| s.is_empty()) { Err(Status::SKIP) } else { Ok(None) };
        };
        // Terms are alternatives: names limit the cycle only when every term has some.
        let mut names = BTreeSet::new();
        for term in terms {
            match named_nodes(term) {
                Some(set) => names.extend(set),
                None => return Ok(None),
            }
        }
        if names.is_empty() && !terms.is_empty() {
            return Err(Status::unresolvable("pod affinity terms conflict"));
        }
        Ok(Some(names))
    }
}

impl Filter for NodeAffinity {
    fn filter(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo) -> Status {
        if node_matches(&pod.pod, &node.node) { Status::SUCCESS } else { Status::unresolvable(REASON) }
    }
}

impl Score for NodeAffinity {
    /// The sum of the weights of the preferred terms that the node meets.
    fn score(&self, _: &CycleState, pod: &PodInfo, node: &NodeInfo, _: &Nodes) -> i64 {
        let preferred = node_affinity(&pod.pod)
            .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        let met = preferred.into_iter().flatten().filter(|p| term_matches(&p.preference, &node.node));
        met.map(|p| i64::from(p.weight)).sum()
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize(scores);
    }
}

/// Scales to 0..=100 with the largest number best; all 0 when every number is 0.
pub fn normalize(scores: &mut [i64]) {
    let max = scores.iter().copied().max().unwrap_or(0);
    if max > 0 {
        scores.iter_mut().for_each(|s| *s = *s * MAX_NODE_SCORE / max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod};

    #[test]
    fn operators_compare_labels() {
        // operator, values, whether a node with cpus=8 and one without the label match
        let table: [(&str, &[&str], bool, bool); 9] = [
            ("In", &["4", "8"], true, false),
            ("In", &["4"], false, false),
            ("NotIn", &["8"], false, true),
            ("NotIn", &["4"], true, true),
            ("Exists", &[], true, false),
            ("DoesNotExist", &[], false, true),
            ("Gt", &["4"], true, false),
            ("Gt", &["8"], false, false),
            ("Lt", &["9"], true, false),
        ];
        for (operator, values, with, without) in table {
            let pod = pod("p").required_affinity("cpus", operator, values).build();
            assert_eq!(
                node_matches(&pod, &node("a").label("cpus", "8").build()),
                with,
                "{operator} {values:?}"
            );
            assert_eq!(node_matches(&pod, &node("a").build()), without, "{operator} {values:?} without");
        }
    }

    #[test]
    fn selector_and_terms_both_have_to_match() {
        let pod = pod("p").node_selector("disk", "ssd").required_affinity("zone", "In", &["z1"]).build();
        assert!(node_matches(&pod, &node("a").label("disk", "ssd").label("zone", "z1").build()));
        assert!(!node_matches(&pod, &node("a").label("disk", "ssd").build()));
        assert!(!node_matches(&pod, &node("a").label("zone", "z1").build()));
    }

    #[test]
    fn a_required_affinity_without_terms_matches_nothing() {
        let mut empty = pod("p").required_affinity("k", "Exists", &[]).build();
        let affinity = empty.spec.as_mut().unwrap().affinity.as_mut().unwrap();
        let required = &mut affinity.node_affinity.as_mut().unwrap();
        required
            .required_during_scheduling_ignored_during_execution
            .as_mut()
            .unwrap()
            .node_selector_terms
            .clear();
        assert!(!node_matches(&empty, &node("a").label("k", "v").build()));
    }

    #[test]
    fn preferred_terms_add_up_and_scale() {
        let pod =
            PodInfo::new(pod("p").preferred_affinity(80, "a", "1").preferred_affinity(20, "b", "1").into());
        let (state, nodes) = (CycleState::default(), Nodes::default());
        let score = |n: crate::plugins::testing::NodeBuilder| {
            NodeAffinity.score(&state, &pod, &NodeInfo::new(n.into()), &nodes)
        };
        let mut scores = [
            score(node("x").label("a", "1")),
            score(node("y").label("a", "1").label("b", "1")),
            score(node("z")),
        ];
        assert_eq!(scores, [80, 100, 0]);
        normalize(&mut scores);
        assert_eq!(scores, [80, 100, 0]);
    }
}
