//! The log of what changed in a snapshot, so that computed state catches up instead of being computed anew.

use std::collections::VecDeque;
use std::sync::Arc;

use super::NodeIdx;
use crate::framework::footprint::Footprint;

/// Changes kept; whoever is further behind starts anew.
const KEPT: usize = 8192;

/// One change.
#[derive(Clone)]
pub enum Change {
    /// The node came, went, or its labels or taints changed: what depends on which nodes there are starts anew.
    Structure(NodeIdx),
    /// Something else of the node changed that plugins look at, such as its allocatable resources.
    Node(NodeIdx),
    /// A pod came onto the node (1) or left it (-1).
    Pod { node: NodeIdx, footprint: Arc<Footprint>, delta: i32 },
    /// Labels of namespaces changed.
    Namespace,
}

/// The last changes, numbered.
#[derive(Clone, Default)]
pub struct Log {
    first: u64,
    entries: VecDeque<Change>,
}

impl Log {
    /// The number of the next change.
    pub fn position(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// What happened from `position` on; `None` when that is not known any more.
    pub fn since(&self, position: u64) -> Option<impl Iterator<Item = &Change>> {
        let skip = position.checked_sub(self.first)?;
        Some(self.entries.range(usize::try_from(skip).ok()?.min(self.entries.len())..))
    }

    pub(super) fn push(&mut self, change: Change) {
        if self.entries.len() == KEPT {
            self.entries.pop_front();
            self.first += 1;
        }
        self.entries.push_back(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_what_is_new_and_when_it_does_not_know() {
        let mut log = Log::default();
        log.push(Change::Node(1));
        let position = log.position();
        log.push(Change::Node(2));
        assert!(matches!(log.since(position).map(Vec::from_iter).as_deref(), Some([Change::Node(2)])));
        assert_eq!(log.since(log.position()).map(Iterator::count), Some(0));
        for node in 0..KEPT as NodeIdx {
            log.push(Change::Node(node));
        }
        assert!(log.since(position).is_none());
        assert_eq!(log.since(log.position() - 1).map(Iterator::count), Some(1));
    }
}
