//! Node selectors compiled against the snapshot's label columns: a requirement becomes one bit per label value.
//!
//! A compiled selector is valid until nodes are added, removed or relabelled.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use knarr_api::core::pod::placement::holds;

use super::points::NodeView;
use crate::snapshot::{ABSENT, ColumnIdx, Snapshot};

/// One requirement on a label.
#[derive(Debug, Clone)]
struct OnLabel {
    column: ColumnIdx,
    /// Whether the label value matches, by the domain of the label's column.
    allowed: Vec<bool>,
    absent: bool,
}

/// Requirements that all must match. A term without requirements matches nothing.
#[derive(Debug, Clone)]
pub struct Term {
    labels: Vec<OnLabel>,
    fields: Vec<NodeSelectorRequirement>,
}

/// A nodeSelector and a list of alternative terms. A node must match the selector and one of the terms.
#[derive(Debug, Clone, Default)]
pub struct NodeMatcher {
    selector: Option<Term>,
    terms: Option<Vec<Term>>,
}

impl OnLabel {
    fn compile(cluster: &Snapshot, requirement: &NodeSelectorRequirement) -> Self {
        let mut allowed = Vec::new();
        if let Some(column) = cluster.column(&requirement.key) {
            allowed.resize(column.bound(), false);
            for (domain, value) in column.domains() {
                allowed[domain as usize] = holds(requirement, Some(value));
            }
        }
        Self { column: cluster.column_idx(&requirement.key), allowed, absent: holds(requirement, None) }
    }

    fn matches(&self, node: &NodeView) -> bool {
        match node.cluster.domain(self.column, node.at) {
            ABSENT => self.absent,
            domain => self.allowed.get(domain as usize).copied().unwrap_or(false),
        }
    }
}

impl Term {
    /// Compiles a term of a node selector.
    pub fn compile(cluster: &Snapshot, term: &NodeSelectorTerm) -> Self {
        let labels = term.match_expressions.iter().flatten().map(|r| OnLabel::compile(cluster, r)).collect();
        Self { labels, fields: term.match_fields.clone().unwrap_or_default() }
    }

    fn exactly(cluster: &Snapshot, labels: &BTreeMap<String, String>) -> Self {
        let equals = |(key, value): (&String, &String)| {
            let values = Some(vec![value.clone()]);
            let requirement = NodeSelectorRequirement { key: key.clone(), operator: "In".to_owned(), values };
            OnLabel::compile(cluster, &requirement)
        };
        Self { labels: labels.iter().map(equals).collect(), fields: Vec::new() }
    }

    /// Returns whether the node matches all requirements of the term.
    pub fn matches(&self, node: &NodeView) -> bool {
        let field = |key: &str| (key == "metadata.name").then(|| node.row.name());
        !(self.labels.is_empty() && self.fields.is_empty())
            && self.labels.iter().all(|r| r.matches(node))
            && self.fields.iter().all(|r| holds(r, field(&r.key)))
    }
}

impl NodeMatcher {
    /// Compiles the pod's nodeSelector and its required node affinity.
    pub fn required(cluster: &Snapshot, spec: Option<&PodSpec>) -> Self {
        let selector = spec.and_then(|s| s.node_selector.as_ref()).filter(|s| !s.is_empty());
        let affinity = spec.and_then(|s| s.affinity.as_ref()).and_then(|a| a.node_affinity.as_ref());
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        Self {
            selector: selector.map(|labels| Term::exactly(cluster, labels)),
            terms: required.map(|r| compile_terms(cluster, r)),
        }
    }

    /// Compiles the terms of a node selector; one of them must match.
    pub fn any_of(cluster: &Snapshot, selector: &NodeSelector) -> Self {
        Self { selector: None, terms: Some(compile_terms(cluster, selector)) }
    }

    /// Returns whether every node matches.
    pub fn is_everything(&self) -> bool {
        self.selector.is_none() && self.terms.is_none()
    }

    /// Returns whether the node matches the selector and one of the terms.
    pub fn matches(&self, node: &NodeView) -> bool {
        self.selector.as_ref().is_none_or(|s| s.matches(node))
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(|t| t.matches(node)))
    }
}

fn compile_terms(cluster: &Snapshot, selector: &NodeSelector) -> Vec<Term> {
    selector.node_selector_terms.iter().map(|t| Term::compile(cluster, t)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{PodBuilder, cluster, node, pod};

    fn matches(pod: PodBuilder) -> Vec<bool> {
        let nodes = vec![node("eight").label("cpus", "8").label("disk", "ssd"), node("bare")];
        let cluster = cluster(nodes, vec![]);
        let pod = pod.build();
        let matcher = NodeMatcher::required(&cluster, pod.spec.as_ref());
        let view = |at| NodeView { cluster: &cluster, at, row: cluster.row(at) };
        cluster.live().iter().map(|at| matcher.matches(&view(at))).collect()
    }

    #[test]
    fn operators_compare_labels() {
        // operator, values, whether it matches a node with cpus=8, whether it matches a node without the label
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
            let matches = matches(pod("p").required_affinity("cpus", operator, values));
            assert_eq!(matches, [with, without], "{operator} {values:?}");
        }
    }

    #[test]
    fn selector_and_one_of_the_terms_both_have_to_match() {
        let both = pod("p").node_selector("disk", "ssd").required_affinity("cpus", "In", &["8"]);
        assert_eq!(matches(both), [true, false]);
        let other = pod("p").node_selector("disk", "hdd").required_affinity("cpus", "In", &["8"]);
        assert_eq!(matches(other), [false, false]);
        let either =
            pod("p").required_affinity("x", "Exists", &[]).required_affinity("cpus", "DoesNotExist", &[]);
        assert_eq!(matches(either), [false, true]);
    }

    #[test]
    fn terms_without_requirements_match_nothing() {
        let cluster = cluster(vec![node("a")], vec![]);
        let view = NodeView { cluster: &cluster, at: 0, row: cluster.row(0) };
        let empty = NodeSelector { node_selector_terms: vec![NodeSelectorTerm::default()] };
        assert!(!NodeMatcher::any_of(&cluster, &empty).matches(&view));
        assert!(!NodeMatcher::any_of(&cluster, &NodeSelector::default()).matches(&view));
        assert!(NodeMatcher::default().matches(&view));
    }
}
