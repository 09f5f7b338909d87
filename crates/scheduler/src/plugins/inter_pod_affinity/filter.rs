//! Required affinity and anti-affinity: counts of the matching pods by topology domain, updated as pods are placed and
//! removed.

use crate::framework::{PodInfo, Remedy};
use std::collections::HashMap;
use std::sync::Arc;

use crate::framework::points::NodeView;
use crate::framework::{Footprint, NodeFilter, Status};
use crate::plugins::domain_counts::DomainCounts;
use crate::snapshot::{Counted, NodeIdx, Snapshot};

const AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING_ANTI_AFFINITY: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

/// The number of footprints whose effect is cached.
const KNOWN: usize = 4096;

/// The effect of a pod with some footprint on the counts.
#[derive(Debug, Default)]
struct Effect {
    /// The pod matches all affinity terms of the incoming pod.
    near: bool,
    /// The anti-affinity terms of the incoming pod that select the pod, as indexes.
    away: Vec<usize>,
    /// The pod's own anti-affinity terms that select the incoming pod, as indexes of `existing`.
    own: Vec<usize>,
}

/// The filter for required affinity and anti-affinity.
#[derive(Clone)]
pub struct Rules {
    incoming: Arc<Footprint>,
    /// For each affinity term: the pods that match all affinity terms.
    near: Vec<DomainCounts>,
    /// Whether the pod matches its own terms: if no pod matches, it may then be the first.
    self_match: bool,
    /// For each anti-affinity term: the pods that it selects.
    away: Vec<DomainCounts>,
    /// For each topology key: the existing pods whose anti-affinity selects the incoming pod.
    existing: Vec<DomainCounts>,
    known: HashMap<u64, Arc<Effect>>,
}

impl Rules {
    pub fn new(cluster: &Snapshot, incoming: &Arc<Footprint>) -> Self {
        let terms = &incoming.terms;
        let counts = |key: &str| DomainCounts::new(cluster, key);
        let mut rules = Self {
            incoming: Arc::clone(incoming),
            near: terms.required.iter().map(|t| counts(&t.topology_key)).collect(),
            self_match: terms.required.iter().all(|t| t.matches(incoming, cluster.namespaces())),
            away: terms.required_anti.iter().map(|t| counts(&t.topology_key)).collect(),
            existing: Vec::new(),
            known: HashMap::new(),
        };
        if terms.required.is_empty() && terms.required_anti.is_empty() {
            cluster.counted_with_terms().for_each(|c| rules.count(cluster, c));
        } else {
            cluster.counted().for_each(|c| rules.count(cluster, c));
        }
        rules
    }

    fn count(&mut self, cluster: &Snapshot, counted: &Counted) {
        for (node, pods) in &counted.by_node {
            self.apply(cluster, *node, &counted.footprint, i64::from(*pods));
        }
    }

    fn apply(&mut self, cluster: &Snapshot, node: NodeIdx, footprint: &Footprint, pods: i64) {
        let effect = self.effect(cluster, footprint);
        if effect.near {
            self.near.iter_mut().for_each(|counts| counts.add(cluster, node, pods));
        }
        effect.away.iter().for_each(|at| self.away[*at].add(cluster, node, pods));
        effect.own.iter().for_each(|at| self.existing[*at].add(cluster, node, pods));
    }

    fn effect(&mut self, cluster: &Snapshot, footprint: &Footprint) -> Arc<Effect> {
        if let Some(effect) = self.known.get(&footprint.id) {
            return Arc::clone(effect);
        }
        let terms = &self.incoming.terms;
        let near = !terms.required.is_empty()
            && terms.required.iter().all(|t| t.matches(footprint, cluster.namespaces()));
        let meant =
            |(_, t): &(usize, &crate::framework::terms::Term)| t.matches(footprint, cluster.namespaces());
        let away = terms.required_anti.iter().enumerate().filter(meant).map(|(at, _)| at).collect();
        let mut own = Vec::new();
        for term in
            footprint.terms.required_anti.iter().filter(|t| t.matches(&self.incoming, cluster.namespaces()))
        {
            let known = self.existing.iter().position(|counts| counts.key == term.topology_key);
            own.push(known.unwrap_or_else(|| {
                self.existing.push(DomainCounts::new(cluster, &term.topology_key));
                self.existing.len() - 1
            }));
        }
        let effect = Arc::new(Effect { near, away, own });
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        self.known.insert(footprint.id, Arc::clone(&effect));
        effect
    }

    fn near_enough(&self, node: &NodeView) -> bool {
        let mut all = true;
        for counts in &self.near {
            match counts.get(node.cluster, node.at) {
                None => return false,
                Some(pods) => all &= pods > 0,
            }
        }
        all || self.self_match && self.near.iter().all(DomainCounts::is_zero)
    }

    fn verdict(&self, node: &NodeView) -> Option<Status> {
        let taken = |counts: &DomainCounts| {
            !counts.is_zero() && counts.get(node.cluster, node.at).is_some_and(|n| n > 0)
        };
        if !self.near.is_empty() && !self.near_enough(node) {
            return Some(Status::unresolvable(AFFINITY));
        }
        if self.away.iter().any(taken) {
            return Some(Status::unschedulable(ANTI_AFFINITY));
        }
        self.existing.iter().any(taken).then(|| Status::unschedulable(EXISTING_ANTI_AFFINITY))
    }
}

impl NodeFilter for Rules {
    fn check(&self, node: &NodeView) -> Status {
        self.verdict(node).unwrap_or(Status::SUCCESS)
    }

    fn passes(&self, node: &NodeView) -> bool {
        if self.near.is_empty() && self.away.is_empty() && self.existing.is_empty() {
            return true;
        }
        let taken = |counts: &DomainCounts| {
            !counts.is_zero() && counts.get(node.cluster, node.at).is_some_and(|n| n > 0)
        };
        (self.near.is_empty() || self.near_enough(node)) && !self.away.iter().chain(&self.existing).any(taken)
    }

    fn remedies(&self, _: &PodInfo, node: &NodeView) -> Vec<Remedy> {
        let (terms, mut texts) = (&self.incoming.terms, Vec::new());
        let place = |key: &str| match node.row.label(key) {
            Some(value) => format!("in {key}={value}"),
            None => format!("on nodes with a label {key}, which it has not"),
        };
        let count = |counts: &DomainCounts| counts.get(node.cluster, node.at).unwrap_or(0);
        if !self.near.is_empty() && !self.near_enough(node) {
            let lacking = terms.required.iter().zip(&self.near).filter(|(_, counts)| count(counts) == 0);
            texts.extend(
                lacking.map(|(t, _)| format!("a pod with {} {}", t.selector, place(&t.topology_key))),
            );
        }
        let away = terms.required_anti.iter().zip(&self.away).filter(|(_, counts)| count(counts) > 0);
        texts.extend(away.map(|(t, _)| format!("no pod with {} {}", t.selector, place(&t.topology_key))));
        let existing = self.existing.iter().filter(|counts| count(counts) > 0);
        texts
            .extend(existing.map(|counts| format!("no pod {} that keeps this one away", place(&counts.key))));
        texts.into_iter().map(Remedy::from).collect()
    }

    fn pod_changed(&mut self, cluster: &Snapshot, node: NodeIdx, footprint: &Footprint, delta: i32) {
        let own = &self.incoming.terms;
        if footprint.terms.required_anti.is_empty() && own.required.is_empty() && own.required_anti.is_empty()
        {
            return;
        }
        self.apply(cluster, node, footprint, i64::from(delta));
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::DESCRIPTOR;
    use super::*;
    use crate::plugins::testing::{PodBuilder, node, pod, verdicts};

    /// Three nodes in two zones, and one without a zone.
    fn nodes() -> Vec<crate::plugins::testing::NodeBuilder> {
        vec![
            node("a").label("zone", "z1").label("host", "a"),
            node("b").label("zone", "z1").label("host", "b"),
            node("c").label("zone", "z2").label("host", "c"),
            node("d").label("host", "d"),
        ]
    }

    fn fits(incoming: PodBuilder, there: Vec<(usize, PodBuilder)>) -> Vec<&'static str> {
        let short = |status: Status| match status.reasons.first().map(|r| r.as_ref()) {
            None => "yes",
            Some(AFFINITY) => "affinity",
            Some(ANTI_AFFINITY) => "anti",
            Some(EXISTING_ANTI_AFFINITY) => "existing",
            Some(_) => "other",
        };
        verdicts(DESCRIPTOR, incoming, nodes(), there).into_iter().map(short).collect()
    }

    fn web() -> PodBuilder {
        pod("web").label("app", "web")
    }

    #[test]
    fn affinity_wants_a_matching_pod_in_the_domain() {
        let near = || pod("p").affinity(&[("app", "web")], "zone");
        assert_eq!(fits(near(), vec![(0, web())]), ["yes", "yes", "affinity", "affinity"]);
        assert_eq!(fits(near(), vec![]), ["affinity"; 4]);
        let first = near().label("app", "web");
        assert_eq!(fits(first, vec![]), ["yes", "yes", "yes", "affinity"], "the first of its own kind");
        let both = near().affinity(&[("tier", "x")], "host");
        assert_eq!(
            fits(both, vec![(0, web()), (0, pod("x").label("tier", "x"))]),
            ["affinity"; 4],
            "one pod must match all"
        );
    }

    #[test]
    fn anti_affinity_holds_in_both_directions() {
        let away = || pod("p").anti_affinity(&[("app", "web")], "zone");
        assert_eq!(fits(away(), vec![(0, web())]), ["anti", "anti", "yes", "yes"]);
        let hostile = pod("h").anti_affinity(&[("app", "web")], "host");
        assert_eq!(fits(web(), vec![(1, hostile)]), ["yes", "existing", "yes", "yes"]);
        let elsewhere = pod("h").namespace("other").anti_affinity(&[("app", "web")], "host");
        assert_eq!(fits(web(), vec![(1, elsewhere)]), ["yes"; 4], "a term means pods of its own namespace");
    }
}
