//! One node label over all nodes: its values are small numbers ("domains"), so that counting by value is indexing.

use std::collections::HashMap;
use std::sync::Arc;

use super::NodeIdx;

/// The number of a label value within its column. A number is reused when no node has the value any more.
pub type Domain = u32;

/// Stands for nodes without the label.
pub const ABSENT: Domain = Domain::MAX;

/// The values of one label, by node.
#[derive(Debug, Clone, Default)]
pub struct Column {
    of_node: Vec<Domain>,
    /// By domain: the value and the number of nodes with it.
    values: Vec<(Arc<str>, u32)>,
    by_value: HashMap<Arc<str>, Domain>,
    free: Vec<Domain>,
    nodes: usize,
}

impl Column {
    /// The domain of the node, or [`ABSENT`].
    pub fn of(&self, node: NodeIdx) -> Domain {
        self.of_node.get(node as usize).copied().unwrap_or(ABSENT)
    }

    /// The domain of a label value.
    pub fn domain(&self, value: &str) -> Option<Domain> {
        self.by_value.get(value).copied()
    }

    /// The label value of a domain.
    pub fn value(&self, domain: Domain) -> &str {
        self.values.get(domain as usize).map_or("", |(value, _)| value)
    }

    /// One more than the largest domain.
    pub fn bound(&self) -> usize {
        self.values.len()
    }

    /// The domains in use with their values.
    pub fn domains(&self) -> impl Iterator<Item = (Domain, &str)> {
        let all = self.values.iter().enumerate().filter(|(_, (_, nodes))| *nodes > 0);
        all.map(|(domain, (value, _))| (domain as Domain, &**value))
    }

    /// Returns whether no node has the label.
    pub fn is_unused(&self) -> bool {
        self.nodes == 0
    }

    /// Changes the label value of a node; `None` means that the node does not have the label.
    pub fn set(&mut self, node: NodeIdx, value: Option<&str>) {
        let old = self.of(node);
        let new = value.map_or(ABSENT, |value| self.intern(value));
        if new != ABSENT {
            self.values[new as usize].1 += 1;
            self.nodes += 1;
        }
        if old != ABSENT {
            self.nodes -= 1;
            let (value, nodes) = &mut self.values[old as usize];
            *nodes -= 1;
            if *nodes == 0 {
                self.by_value.remove(value);
                *value = Arc::from("");
                self.free.push(old);
            }
        }
        if self.of_node.len() <= node as usize {
            self.of_node.resize(node as usize + 1, ABSENT);
        }
        self.of_node[node as usize] = new;
    }

    fn intern(&mut self, value: &str) -> Domain {
        if let Some(domain) = self.by_value.get(value) {
            return *domain;
        }
        let shared: Arc<str> = Arc::from(value);
        let domain = match self.free.pop() {
            Some(domain) => {
                self.values[domain as usize] = (Arc::clone(&shared), 0);
                domain
            }
            None => {
                self.values.push((Arc::clone(&shared), 0));
                (self.values.len() - 1) as Domain
            }
        };
        self.by_value.insert(shared, domain);
        domain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbered_and_numbers_used_again() {
        let mut zones = Column::default();
        zones.set(0, Some("a"));
        zones.set(2, Some("b"));
        zones.set(3, Some("a"));
        assert_eq!((zones.of(0), zones.of(1), zones.of(2), zones.of(3)), (0, ABSENT, 1, 0));
        zones.set(2, Some("b"));
        assert_eq!(zones.domain("b"), Some(1), "the same value again changes nothing");
        zones.set(2, Some("c"));
        assert_eq!((zones.domain("b"), zones.value(zones.of(2))), (None, "c"));
        zones.set(5, Some("d"));
        assert_eq!((zones.bound(), zones.domains().count()), (3, 3));
        for node in [0, 2, 3, 5] {
            zones.set(node, None);
        }
        assert!(zones.is_unused() && zones.domains().next().is_none());
    }
}
