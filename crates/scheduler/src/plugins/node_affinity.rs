//! NodeAffinity: nodeSelector and required node affinity filter, preferred terms score by their weights. The profile
//! may add an affinity to that of every pod.

use crate::framework::Remedy;
use crate::framework::plugin_args::{PluginArgs, judge};
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PodSpec};
use knarr_api::core::pod::placement::holds;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::selector::{Operator, Requirement};
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Node, NodeAffinity as Affinity, NodeSelector, NodeSelectorTerm, PreferredSchedulingTerm,
};
use knarr_api::core::pod::placement::{node_matches, term_matches};
use serde::Deserialize;

use crate::framework::node_match::{NodeMatcher, Term};
use crate::framework::points::NodeView;
use crate::framework::{
    Action, Changed, ClusterEvent, Descriptor, Filter, MAX_NODE_SCORE, NodeFilter, NodeScore, Parts, Plugin,
    PodInfo, PreFilter, Resource, Scope, Score, Shape, Status,
};
use crate::snapshot::{NodeIdx, Snapshot};

pub const NAME: &str = "NodeAffinity";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 2,
    args: Some(judge::<Args>),
    build: |build| {
        let args: Args = build.args()?;
        let plugin = Arc::new(NodeAffinity { added: args.added_affinity.unwrap_or_default() });
        Ok(Parts { filter: Some(plugin.clone()), score: Some(plugin.clone()), ..Parts::of(plugin) })
    },
};

const POD_REASON: &str = "node(s) didn't match Pod's node affinity/selector";
const ENFORCED_REASON: &str = "node(s) didn't match scheduler-enforced node affinity";
const CONFLICT: &str = "pod affinity terms conflict";

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Args {
    added_affinity: Option<Affinity>,
}

impl PluginArgs for Args {
    fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = path.child("addedAffinity");
        let Some(added) = &self.added_affinity else { return errors };
        let required = added.required_during_scheduling_ignored_during_execution.iter();
        let at = path.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
        for (i, term) in required.flat_map(|r| &r.node_selector_terms).enumerate() {
            term_problems(term, &at.index(i), &mut errors);
        }
        let preferred = added.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        let at = path.child("preferredDuringSchedulingIgnoredDuringExecution");
        for (i, preferred) in preferred.enumerate() {
            term_problems(&preferred.preference, &at.index(i), &mut errors);
        }
        errors
    }
}

/// Validates a term as upstream's scheduler parses it.
fn term_problems(term: &NodeSelectorTerm, path: &Path, errors: &mut ErrorList) {
    const NAMES: [&str; 6] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
    for (i, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let at = path.child("matchExpressions").index(i);
        let operator = match requirement.operator.as_str() {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::GreaterThan,
            "Lt" => Operator::LessThan,
            other => {
                errors.push(Error::not_supported(&at.child("operator"), other, &NAMES));
                continue;
            }
        };
        let values = requirement.values.as_deref().unwrap_or_default();
        errors.extend(Requirement::problems(&requirement.key, operator, values, &at));
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        let at = path.child("matchFields").index(i);
        let values = requirement.values.clone().unwrap_or_default();
        if !matches!(requirement.operator.as_str(), "In" | "NotIn") {
            let (at, operator) = (at.child("operator"), requirement.operator.as_str());
            errors.push(Error::not_supported(&at, operator, &NAMES[..2]));
        } else if values.len() != 1 {
            errors.push(Error::invalid(&at.child("values"), values, "must have one element"));
        }
    }
}

struct NodeAffinity {
    added: Affinity,
}

#[derive(Clone)]
struct Required {
    added: NodeMatcher,
    of_pod: NodeMatcher,
}

struct Preferred(Vec<(i64, Term)>);

impl NodeAffinity {
    fn added_required(&self) -> Option<&NodeSelector> {
        self.added.required_during_scheduling_ignored_during_execution.as_ref()
    }

    /// Returns whether the node matches, without respect to other nodes.
    fn admits(&self, pod: &PodInfo, node: &Node) -> bool {
        let added = self.added_required();
        added.is_none_or(|a| a.node_selector_terms.iter().any(|t| term_matches(t, node)))
            && node_matches(pod.pod(), node)
    }
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        NAME
    }

    fn interests(&self) -> &'static [ClusterEvent] {
        const { &[ClusterEvent::new(Resource::Node, Action::ADD.or(Action::NODE_LABEL))] }
    }

    fn hint(&self, pod: &PodInfo, _: ClusterEvent, change: &Changed) -> bool {
        let Some(new) = change.new::<Node>() else { return true };
        self.admits(pod, new) && change.old::<Node>().is_none_or(|old| !self.admits(pod, old))
    }
}

fn affinity(shape: &Shape) -> Option<&Affinity> {
    shape.spec()?.affinity.as_ref()?.node_affinity.as_ref()
}

/// The node names that a term allows through `matchFields`, if it lists any.
fn named_nodes(term: &NodeSelectorTerm) -> Option<BTreeSet<String>> {
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let sets = fields.iter().filter(|r| r.key == "metadata.name" && r.operator == "In");
    sets.map(|r| r.values.iter().flatten().cloned().collect::<BTreeSet<_>>())
        .reduce(|a, b| a.intersection(&b).cloned().collect())
}

impl Filter for NodeAffinity {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_filter(&self, cluster: &Snapshot, shape: &Shape) -> PreFilter {
        let of_pod = NodeMatcher::required(cluster, shape.spec());
        let added = self.added_required();
        if of_pod.is_everything() && added.is_none() {
            return PreFilter::Skip;
        }
        let added = added.map(|a| NodeMatcher::any_of(cluster, a)).unwrap_or_default();
        let filter: Box<dyn NodeFilter> = Box::new(Required { added, of_pod });
        let required =
            affinity(shape).and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let terms = required.map(|r| r.node_selector_terms.as_slice()).unwrap_or_default();
        // The terms are alternatives: names exclude other nodes only when every term has some.
        let named: Option<Vec<BTreeSet<String>>> = terms.iter().map(named_nodes).collect();
        let only: Option<BTreeSet<String>> =
            named.filter(|n| !n.is_empty()).map(|n| n.into_iter().flatten().collect());
        if only.as_ref().is_some_and(BTreeSet::is_empty) {
            return PreFilter::Reject(Status::unresolvable(CONFLICT));
        }
        PreFilter::Check { filter, only: only.map(|names| names.into_iter().collect()) }
    }
}

/// The labels that the node would need: those of the nodeSelector, and those of the term that misses the fewest.
fn other_labels(spec: &PodSpec, node: &NodeView) -> Vec<Remedy> {
    let has = |key: &str| match node.row.label(key) {
        Some(value) => format!("; it has {key}={value}"),
        None => format!("; it has no label {key}"),
    };
    let selector = spec.node_selector.iter().flatten();
    let wrong = selector.filter(|(key, value)| node.row.label(key) != Some(value.as_str()));
    let mut texts: Vec<String> =
        wrong.map(|(key, value)| format!("the label {key}={value}{}", has(key))).collect();
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map(|r| r.node_selector_terms.as_slice()).unwrap_or_default();
    if !terms.iter().any(|term| term_matches(term, &node.row.node)) {
        let lacking = |term: &NodeSelectorTerm| -> Vec<String> {
            let labels = term.match_expressions.iter().flatten();
            let labels = labels.filter(|r| !holds(r, node.row.label(&r.key))).map(|r| text(r) + &has(&r.key));
            let fields = term.match_fields.iter().flatten();
            labels.chain(fields.filter(|r| !holds(r, Some(node.row.name()))).map(text)).collect()
        };
        texts.extend(terms.iter().map(lacking).min_by_key(Vec::len).unwrap_or_default());
    }
    texts.into_iter().map(Remedy::from).collect()
}

/// Formats a requirement, for example `disk In [ssd, nvme]`.
fn text(requirement: &NodeSelectorRequirement) -> String {
    let values = requirement.values.as_deref().unwrap_or_default();
    let values = if values.is_empty() { String::new() } else { format!(" [{}]", values.join(", ")) };
    format!("{} {}{values}", requirement.key, requirement.operator)
}

impl NodeFilter for Required {
    fn check(&self, node: &NodeView) -> Status {
        if !self.added.matches(node) {
            return Status::unresolvable(ENFORCED_REASON);
        }
        if self.of_pod.matches(node) { Status::SUCCESS } else { Status::unresolvable(POD_REASON) }
    }

    fn remedies(&self, pod: &PodInfo, node: &NodeView) -> Vec<Remedy> {
        let spec = pod.spec().filter(|_| self.added.matches(node));
        spec.map(|spec| other_labels(spec, node)).unwrap_or_default()
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

impl Score for NodeAffinity {
    fn scope(&self) -> Scope {
        Scope::Row
    }

    fn pre_score(&self, cluster: &Snapshot, shape: &Shape) -> Option<Box<dyn NodeScore>> {
        let terms = |a: &Affinity| -> Vec<PreferredSchedulingTerm> {
            a.preferred_during_scheduling_ignored_during_execution.clone().unwrap_or_default()
        };
        let own = affinity(shape).map(terms).unwrap_or_default();
        let all = own.into_iter().chain(terms(&self.added)).filter(|t| t.weight != 0);
        let all: Vec<_> = all.map(|t| (i64::from(t.weight), Term::compile(cluster, &t.preference))).collect();
        (!all.is_empty()).then(|| Box::new(Preferred(all)) as _)
    }
}

impl NodeScore for Preferred {
    /// The sum of the weights of the preferred terms that the node matches.
    fn score(&self, node: &NodeView) -> i64 {
        self.0.iter().filter(|(_, term)| term.matches(node)).map(|(weight, _)| weight).sum()
    }

    fn normalize(&self, _: &Snapshot, _: &[NodeIdx], scores: &mut [i64]) {
        normalize(scores);
    }
}

/// Scales scores to 0..=100, the largest best; all 0 when every score is 0.
pub fn normalize(scores: &mut [i64]) {
    let max = scores.iter().copied().max().unwrap_or(0);
    if max > 0 {
        scores.iter_mut().for_each(|s| *s = *s * MAX_NODE_SCORE / max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{node, pod, scores, verdict, verdict_with};
    use serde_json::json;

    #[test]
    fn preferred_terms_add_up_and_scale() {
        let pod = pod("p").preferred_affinity(80, "a", "1").preferred_affinity(20, "b", "1");
        let nodes = vec![node("x").label("a", "1"), node("y").label("a", "1").label("b", "1"), node("z")];
        assert_eq!(scores(DESCRIPTOR, pod, nodes, vec![]), [80, 100, 0]);
    }

    #[test]
    fn the_profiles_own_affinity_holds_for_every_pod() {
        let args = json!({"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]}}});
        let status = |n| verdict_with(DESCRIPTOR, &args, pod("p"), n, vec![]);
        assert!(status(node("n").label("pool", "a")).is_success());
        assert_eq!(status(node("n")).message(), ENFORCED_REASON);
    }

    #[test]
    fn a_mismatch_is_the_pods() {
        let status = verdict(DESCRIPTOR, pod("p").node_selector("disk", "ssd"), node("n"), vec![]);
        assert_eq!(status, Status::unresolvable(POD_REASON));
    }
}
