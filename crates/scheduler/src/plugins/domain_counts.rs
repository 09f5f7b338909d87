//! Sums by the value of one node label: the number of pods, or the weight, in each topology domain.

use crate::snapshot::{ABSENT, ColumnIdx, NodeIdx, Snapshot};

/// Sums by domain. Valid until nodes are added, removed or relabelled.
#[derive(Debug, Clone)]
pub struct DomainCounts {
    pub key: Box<str>,
    column: ColumnIdx,
    by_domain: Vec<i64>,
    /// The number of domains whose sum is not 0.
    non_zero: usize,
}

impl DomainCounts {
    /// Creates sums for the domains of this label, all 0.
    pub fn new(cluster: &Snapshot, key: &str) -> Self {
        let column = cluster.column_idx(key);
        let by_domain = vec![0; cluster.domain_bound(column)];
        Self { key: key.into(), column, by_domain, non_zero: 0 }
    }

    /// Adds to the sum of the node's domain, if the node has the label.
    pub fn add(&mut self, cluster: &Snapshot, node: NodeIdx, amount: i64) {
        let domain = cluster.domain(self.column, node);
        let Some(count) = self.by_domain.get_mut(domain as usize) else { return };
        self.non_zero -= usize::from(*count != 0);
        *count += amount;
        self.non_zero += usize::from(*count != 0);
    }

    /// The sum of the node's domain; `None` when the node does not have the label.
    pub fn get(&self, cluster: &Snapshot, node: NodeIdx) -> Option<i64> {
        match cluster.domain(self.column, node) {
            ABSENT => None,
            domain => Some(self.by_domain.get(domain as usize).copied().unwrap_or(0)),
        }
    }

    /// Returns whether all sums are 0.
    pub fn is_zero(&self) -> bool {
        self.non_zero == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::{cluster, node};

    #[test]
    fn nodes_of_a_domain_share_a_number() {
        let nodes = vec![node("a").label("zone", "1"), node("b").label("zone", "1"), node("c")];
        let cluster = cluster(nodes, vec![]);
        let mut counts = DomainCounts::new(&cluster, "zone");
        counts.add(&cluster, 0, 3);
        counts.add(&cluster, 2, 5);
        assert_eq!([0, 1, 2].map(|at| counts.get(&cluster, at)), [Some(3), Some(3), None]);
        counts.add(&cluster, 1, -3);
        assert!(counts.is_zero());
        let mut nowhere = DomainCounts::new(&cluster, "rack");
        nowhere.add(&cluster, 0, 1);
        assert_eq!((nowhere.get(&cluster, 0), nowhere.is_zero()), (None, true));
    }
}
