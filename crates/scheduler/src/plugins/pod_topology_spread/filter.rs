//! Hard constraints: no domain may have more than maxSkew pods more than the domain with the fewest.

use crate::framework::{PodInfo, Remedy};
use std::sync::Arc;

use super::constraint::Constraint;
use crate::framework::points::NodeView;
use crate::framework::{Footprint, NodeFilter, Shape, Status};
use crate::snapshot::{ABSENT, BitSet, ColumnIdx, NodeIdx, Snapshot};

const SKEW: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

/// Marks domains without any counted node.
const NOT_COUNTED: i64 = -1;

/// A constraint with its counts.
#[derive(Clone)]
struct Counts {
    column: ColumnIdx,
    eligible: Arc<BitSet>,
    /// The number of pods by domain.
    by_domain: Vec<i64>,
    domains: usize,
    /// The minimum of `by_domain`, and the number of domains with just that many pods.
    min: i64,
    at_min: usize,
    /// 1 if the incoming pod matches the selector itself, otherwise 0.
    itself: i64,
}

/// The filter for the hard constraints of a shape.
#[derive(Clone)]
pub struct Spread {
    namespace: Arc<str>,
    constraints: Arc<[Constraint]>,
    counts: Vec<Counts>,
}

impl Counts {
    fn new(cluster: &Snapshot, shape: &Shape, constraint: &Constraint, columns: &[ColumnIdx]) -> Self {
        let column = cluster.column_idx(&constraint.key);
        let eligible = constraint.eligible(cluster, shape, columns);
        let mut by_domain = vec![NOT_COUNTED; cluster.domain_bound(column)];
        for at in eligible.iter() {
            by_domain[cluster.domain(column, at) as usize] = 0;
        }
        for counted in cluster.counted().filter(|c| constraint.counts(&c.footprint, shape.namespace())) {
            for (at, pods) in counted.by_node.iter().filter(|(at, _)| eligible.contains(**at)) {
                by_domain[cluster.domain(column, *at) as usize] += i64::from(*pods);
            }
        }
        let domains = by_domain.iter().filter(|n| **n != NOT_COUNTED).count();
        let itself = i64::from(constraint.selector.matches(&shape.footprint.labels));
        let mut counts =
            Self { column, eligible: Arc::new(eligible), by_domain, domains, min: 0, at_min: 0, itself };
        counts.find_min();
        counts
    }

    fn find_min(&mut self) {
        let counted = || self.by_domain.iter().filter(|n| **n != NOT_COUNTED);
        self.min = counted().copied().min().unwrap_or(0);
        self.at_min = counted().filter(|n| **n == self.min).count();
    }

    fn add(&mut self, cluster: &Snapshot, node: NodeIdx, delta: i64) {
        if !self.eligible.contains(node) {
            return;
        }
        let Some(count) = self.by_domain.get_mut(cluster.domain(self.column, node) as usize) else { return };
        let (before, after) = (*count, *count + delta);
        *count = after;
        if after < self.min {
            (self.min, self.at_min) = (after, 1);
            return;
        }
        if before == self.min {
            self.at_min -= 1;
        }
        if after == self.min {
            self.at_min += 1;
        }
        if self.at_min == 0 {
            self.find_min();
        }
    }
}

impl Spread {
    pub fn new(cluster: &Snapshot, shape: &Shape, constraints: Vec<Constraint>) -> Self {
        let columns: Vec<ColumnIdx> = constraints.iter().map(|c| cluster.column_idx(&c.key)).collect();
        let counts = constraints.iter().map(|c| Counts::new(cluster, shape, c, &columns)).collect();
        Self { namespace: Arc::clone(&shape.footprint.namespace), constraints: constraints.into(), counts }
    }

    fn verdict(&self, node: &NodeView) -> Option<Status> {
        for (constraint, counts) in self.constraints.iter().zip(&self.counts) {
            let domain = node.cluster.domain(counts.column, node.at);
            if domain == ABSENT {
                return Some(Status::unresolvable(NO_LABEL));
            }
            let min = if counts.domains < constraint.min_domains { 0 } else { counts.min };
            let there = counts.by_domain.get(domain as usize).copied().unwrap_or(0).max(0);
            if there + counts.itself - min > constraint.max_skew {
                return Some(Status::unschedulable(SKEW));
            }
        }
        None
    }
}

impl NodeFilter for Spread {
    fn check(&self, node: &NodeView) -> Status {
        self.verdict(node).unwrap_or(Status::SUCCESS)
    }

    fn passes(&self, node: &NodeView) -> bool {
        self.verdict(node).is_none()
    }

    fn remedies(&self, _: &PodInfo, node: &NodeView) -> Vec<Remedy> {
        let mut texts = Vec::new();
        for (constraint, counts) in self.constraints.iter().zip(&self.counts) {
            let (key, most) = (&constraint.key, constraint.max_skew);
            let Some(value) = node.row.label(key) else {
                texts.push(format!("a label {key} on the node"));
                continue;
            };
            let few = counts.domains < constraint.min_domains;
            let min = if few { 0 } else { counts.min };
            let domain = node.cluster.domain(counts.column, node.at);
            let there = counts.by_domain.get(domain as usize).copied().unwrap_or(0).max(0);
            let over = there + counts.itself - min - most;
            if over > 0 {
                let least = if few {
                    "there are fewer of them than minDomains".to_owned()
                } else {
                    format!("the least has {min}")
                };
                let text =
                    format!("{over} fewer in {key}={value}: it has {there}, {least}, maxSkew is {most}");
                texts.push(text);
            }
        }
        texts.into_iter().map(Remedy::from).collect()
    }

    fn pod_changed(&mut self, cluster: &Snapshot, node: NodeIdx, footprint: &Footprint, delta: i32) {
        for (constraint, counts) in self.constraints.iter().zip(&mut self.counts) {
            if constraint.counts(footprint, &self.namespace) {
                counts.add(cluster, node, i64::from(delta));
            }
        }
    }

    fn boxed(&self) -> Box<dyn NodeFilter> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::DESCRIPTOR;
    use super::*;
    use crate::plugins::testing::{NodeBuilder, PodBuilder, node, pod, spread, verdicts};
    use k8s_openapi::api::core::v1::TopologySpreadConstraint;

    /// a and b in z1, c in z2, d without a zone.
    fn nodes() -> Vec<NodeBuilder> {
        let zoned = [("a", "z1"), ("b", "z1"), ("c", "z2")];
        let zoned = zoned.map(|(n, zone)| node(n).label("zone", zone).label("host", n));
        zoned.into_iter().chain([node("d").label("host", "d")]).collect()
    }

    fn fits(constraints: Vec<TopologySpreadConstraint>, there: &[usize]) -> Vec<&'static str> {
        fits_as(pod("p").label("app", "web").spread(constraints), there)
    }

    fn fits_as(incoming: PodBuilder, there: &[usize]) -> Vec<&'static str> {
        let there = there.iter().map(|at| (*at, pod("web").label("app", "web"))).collect();
        let short = |status: Status| match status.reasons.first().map(|r| r.as_ref()) {
            None => "yes",
            Some(SKEW) => "skew",
            Some(NO_LABEL) => "label",
            Some(_) => "other",
        };
        verdicts(DESCRIPTOR, incoming, nodes(), there).into_iter().map(short).collect()
    }

    #[test]
    fn no_domain_gets_ahead() {
        let zone = |max_skew| vec![spread("zone", max_skew, &[("app", "web")])];
        assert_eq!(fits(zone(1), &[]), ["yes", "yes", "yes", "label"]);
        assert_eq!(fits(zone(1), &[0]), ["skew", "skew", "yes", "label"]);
        assert_eq!(fits(zone(2), &[0]), ["yes", "yes", "yes", "label"]);
        assert_eq!(fits(zone(1), &[0, 2]), ["yes", "yes", "yes", "label"]);
        let both = vec![spread("zone", 1, &[("app", "web")]), spread("host", 1, &[("app", "web")])];
        assert_eq!(fits(both, &[0, 2]), ["skew", "yes", "skew", "label"]);
    }

    #[test]
    fn too_few_domains_count_as_an_empty_one() {
        let few = TopologySpreadConstraint { min_domains: Some(3), ..spread("zone", 1, &[("app", "web")]) };
        assert_eq!(fits(vec![few], &[0, 2]), ["skew", "skew", "skew", "label"]);
    }

    #[test]
    fn nodes_that_the_pod_may_not_use_are_left_out_unless_told_otherwise() {
        let only_c = |policy: Option<&str>| {
            let zone = spread("zone", 1, &[("app", "web")]);
            let zone = TopologySpreadConstraint { node_affinity_policy: policy.map(str::to_owned), ..zone };
            pod("p").label("app", "web").node_selector("host", "c").spread(vec![zone])
        };
        assert_eq!(fits_as(only_c(None), &[2, 2])[2], "yes", "z1 is not counted");
        assert_eq!(fits_as(only_c(Some("Ignore")), &[2, 2])[2], "skew");
    }

    #[test]
    fn the_minimum_follows_pods_that_come_and_go() {
        let cluster = crate::plugins::testing::cluster(nodes(), vec![]);
        let web = pod("p").label("app", "web").build();
        let shape = Shape::of(
            &pod("p").label("app", "web").spread(vec![spread("zone", 1, &[("app", "web")])]).build(),
        );
        let constraints = Constraint::parse(
            shape.spec().unwrap().topology_spread_constraints.as_ref().unwrap(),
            &shape.footprint.labels,
            super::super::Unsatisfiable::DoNotSchedule,
        );
        let mut kept = Spread::new(&cluster, &shape, constraints);
        let footprint = Footprint::of(&web);
        let steps =
            [(0, 1, 0), (2, 1, 1), (1, 1, 1), (2, 1, 2), (2, -1, 1), (0, -1, 1), (1, -1, 0), (2, -1, 0)];
        for (node, delta, min) in steps {
            kept.pod_changed(&cluster, node, &footprint, delta);
            assert_eq!(kept.counts[0].min, min, "after {delta} on {node}");
        }
    }
}
