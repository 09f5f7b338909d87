//! The log of changes to a snapshot, with which derived state is updated instead of recomputed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::NodeIdx;
use crate::framework::footprint::Footprint;

/// The number of changes kept. Readers that are further behind must recompute.
const KEPT: usize = 8192;

/// One change.
#[derive(Clone)]
pub enum Change {
    /// The node was added or removed, or its labels or taints changed: state that depends on the set of nodes is
    /// recomputed.
    Structure(NodeIdx),
    /// Other properties of the node changed that plugins read, such as its allocatable resources.
    Node(NodeIdx),
    /// A pod was added to the node (1) or removed from it (-1).
    Pod { node: NodeIdx, footprint: Arc<Footprint>, delta: i32 },
    /// Labels of namespaces changed.
    Namespace,
}

/// The latest changes, numbered.
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

    /// The changes from `position` on; `None` when they are no longer in the log.
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
