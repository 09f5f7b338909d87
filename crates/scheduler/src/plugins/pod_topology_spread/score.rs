//! Soft constraints: a node scores higher the fewer matching pods its domains contain.

use std::sync::Arc;

use super::HOSTNAME;
use super::constraint::Constraint;
use crate::framework::points::NodeView;
use crate::framework::{Footprint, MAX_NODE_SCORE, NodeScore, Shape};
use crate::snapshot::{ABSENT, BitSet, ColumnIdx, NodeIdx, Snapshot};

/// A constraint with its counts.
struct Counts {
    constraint: Constraint,
    column: ColumnIdx,
    /// Whether to count by node, as for the hostname label. All other labels count by domain.
    by_host: bool,
    eligible: BitSet,
    pods: Vec<i64>,
    /// The weight of one pod, which grows with the number of domains.
    weight: f64,
}

/// The score for the soft constraints of a shape.
pub struct Evenness {
    namespace: Arc<str>,
    counts: Vec<Counts>,
    /// Whether nodes without all topology labels are left out of the score.
    all_keys: bool,
    columns: Vec<ColumnIdx>,
}

impl Counts {
    fn new(cluster: &Snapshot, shape: &Shape, constraint: Constraint, required: &[ColumnIdx]) -> Self {
        let column = cluster.column_idx(&constraint.key);
        let by_host = *constraint.key == *HOSTNAME;
        let eligible =
            if by_host { BitSet::default() } else { constraint.eligible(cluster, shape, required) };
        let places = if by_host { cluster.bound() } else { cluster.domain_bound(column) };
        let mut counts = Self { constraint, column, by_host, eligible, pods: vec![0; places], weight: 0.0 };
        for counted in cluster.counted() {
            if counts.constraint.counts(&counted.footprint, shape.namespace()) {
                counted.by_node.iter().for_each(|(at, pods)| counts.add(cluster, *at, i64::from(*pods)));
            }
        }
        counts
    }

    fn add(&mut self, cluster: &Snapshot, node: NodeIdx, pods: i64) {
        let place = match self.by_host {
            true => node,
            false if !self.eligible.contains(node) => return,
            false => cluster.domain(self.column, node),
        };
        if let Some(count) = self.pods.get_mut(place as usize) {
            *count += pods;
        }
    }
}

impl Evenness {
    pub fn new(cluster: &Snapshot, shape: &Shape, constraints: Vec<Constraint>, all_keys: bool) -> Self {
        let columns: Vec<ColumnIdx> = constraints.iter().map(|c| cluster.column_idx(&c.key)).collect();
        let required = if all_keys { columns.as_slice() } else { &[] };
        let counts = constraints.into_iter().map(|c| Counts::new(cluster, shape, c, required)).collect();
        Self { namespace: Arc::clone(&shape.footprint.namespace), counts, all_keys, columns }
    }

    fn ignored(&self, cluster: &Snapshot, node: NodeIdx) -> bool {
        self.all_keys && self.columns.iter().any(|column| cluster.domain(*column, node) == ABSENT)
    }
}

impl NodeScore for Evenness {
    /// Computes the weight of each constraint from the number of domains among the feasible nodes.
    fn begin(&mut self, cluster: &Snapshot, feasible: &[NodeIdx]) {
        let scored: Vec<NodeIdx> =
            feasible.iter().copied().filter(|at| !self.ignored(cluster, *at)).collect();
        for counts in &mut self.counts {
            let size = if counts.by_host {
                scored.len()
            } else {
                let mut seen = BitSet::default();
                // Here, nodes without the label form a domain of their own.
                let absent = cluster.domain_bound(counts.column) as NodeIdx;
                for at in &scored {
                    seen.set(cluster.domain(counts.column, *at).min(absent), true);
                }
                seen.count()
            };
            counts.weight = ((size + 2) as f64).ln();
        }
    }

    fn score(&self, node: &NodeView) -> i64 {
        if self.ignored(node.cluster, node.at) {
            return 0;
        }
        let mut score = 0.0;
        for counts in &self.counts {
            let domain = node.cluster.domain(counts.column, node.at);
            if domain == ABSENT {
                continue;
            }
            let place = if counts.by_host { node.at } else { domain };
            let pods = counts.pods.get(place as usize).copied().unwrap_or(0);
            score += pods as f64 * counts.weight + (counts.constraint.max_skew - 1) as f64;
        }
        score.round() as i64
    }

    fn normalize(&self, cluster: &Snapshot, nodes: &[NodeIdx], scores: &mut [i64]) {
        let scored = |(at, _): &(&NodeIdx, &mut i64)| !self.ignored(cluster, **at);
        let (mut min, mut max) = (i64::MAX, 0);
        for (_, score) in nodes.iter().zip(&mut *scores).filter(scored) {
            (min, max) = (min.min(*score), max.max(*score));
        }
        for (at, score) in nodes.iter().zip(scores) {
            *score = if self.ignored(cluster, *at) {
                0
            } else if max == 0 {
                MAX_NODE_SCORE
            } else {
                MAX_NODE_SCORE * (max + min - *score) / max
            };
        }
    }

    fn pod_changed(&mut self, cluster: &Snapshot, node: NodeIdx, footprint: &Footprint, delta: i32) {
        for counts in &mut self.counts {
            if counts.constraint.counts(footprint, &self.namespace) {
                counts.add(cluster, node, i64::from(delta));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DESCRIPTOR;
    use super::*;
    use crate::plugins::testing::{NodeBuilder, node, pod, scores, soft_spread};

    fn nodes() -> Vec<NodeBuilder> {
        let zoned = [("a", "z1"), ("b", "z1"), ("c", "z2")];
        zoned.map(|(n, zone)| node(n).label("zone", zone).label(HOSTNAME, n)).into()
    }

    #[test]
    fn emptier_domains_score_higher() {
        let web = || pod("w").label("app", "web");
        let by = |key: &str| web().spread(vec![soft_spread(key, 1, &[("app", "web")])]);
        assert_eq!(scores(DESCRIPTOR, by("zone"), nodes(), vec![(0, web())]), [0, 0, 100]);
        assert_eq!(scores(DESCRIPTOR, by(HOSTNAME), nodes(), vec![(0, web())]), [0, 100, 100]);
        assert_eq!(scores(DESCRIPTOR, by("zone"), nodes(), vec![]), [100, 100, 100]);
    }

    #[test]
    fn nodes_without_the_label_are_not_scored() {
        let web = || pod("w").label("app", "web");
        let by = web().spread(vec![soft_spread("zone", 1, &[("app", "web")])]);
        let nodes = nodes().into_iter().chain([node("d")]).collect();
        assert_eq!(scores(DESCRIPTOR, by, nodes, vec![(0, web())]), [0, 0, 100, 0]);
    }
}
