//! The live watchers: each gets the events in its range as soon as they are durable, or falls behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::state::Commit;
use crate::types::{Event, KeyRange};
use crate::watch::{WatchEvents, WatchItem};

/// The sending end of a live watcher.
#[derive(Debug)]
struct Slot {
    range: KeyRange,
    sender: mpsc::Sender<WatchItem>,
    /// Set when the slot is dropped: everything up to this revision is in the buffer.
    covered: Arc<AtomicU64>,
}

/// The receiving end of a live watcher. `covered` is valid once the receiver is closed and empty.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) receiver: mpsc::Receiver<WatchItem>,
    pub(super) covered: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
pub(crate) struct Hub {
    slots: BTreeMap<u64, Slot>,
    last_id: u64,
    closed: bool,
}

impl Hub {
    pub(super) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.slots.clear();
    }

    /// Adds a live watcher that has seen everything up to `revision` except `items`.
    pub(super) fn join(
        &mut self,
        id: u64,
        range: KeyRange,
        revision: u64,
        items: Vec<WatchItem>,
        buffer: usize,
    ) -> Live {
        let (sender, receiver) = mpsc::channel(buffer.max(items.len()));
        for item in items {
            // The buffer was created with enough capacity for them.
            let _ = sender.try_send(item);
        }
        let covered = Arc::new(AtomicU64::new(revision));
        self.slots.insert(id, Slot { range, sender, covered: Arc::clone(&covered) });
        Live { receiver, covered }
    }

    pub(super) fn leave(&mut self, id: u64) {
        self.slots.remove(&id);
    }

    /// Sends commits to the watchers of their keys. `before` is the revision before the first commit.
    pub(super) fn publish(&mut self, before: u64, commits: &[Arc<Commit>]) {
        let Some(last) = commits.last() else { return };
        self.slots.retain(|_, slot| {
            let events = select(commits.iter(), &slot.range);
            events.is_empty()
                || slot.send(WatchItem::Events(WatchEvents { revision: last.revision, events }), before)
        });
    }

    /// Sends a progress mark to one watcher; `revision` has been published.
    pub(super) fn progress(&mut self, id: u64, revision: u64) {
        if let Some(slot) = self.slots.get(&id)
            && !slot.send(WatchItem::Progress(revision), revision)
        {
            self.slots.remove(&id);
        }
    }
}

impl Slot {
    /// Returns false if the buffer is full: the watcher then has everything up to `covered` and nothing after it.
    fn send(&self, item: WatchItem, covered: u64) -> bool {
        let sent = self.sender.try_send(item).is_ok();
        if !sent {
            self.covered.store(covered, Ordering::Release);
        }
        sent
    }
}

/// The events of these commits that are in a range.
pub(super) fn select<'a>(commits: impl Iterator<Item = &'a Arc<Commit>>, range: &KeyRange) -> Vec<Event> {
    commits.flat_map(|commit| &commit.events).filter(|event| range.contains(&event.kv.key)).cloned().collect()
}
