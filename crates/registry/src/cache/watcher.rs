//! One watch over a cache: the initial events, then what comes, as changes of what is selected.

use std::collections::VecDeque;
use std::sync::Arc;

use knarr_api::object::Object;
use tokio::sync::mpsc;

use super::{CacheEvent, Selection, Wire};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Added,
    Modified,
    Deleted,
}

/// What an event means to a watcher with selectors.
#[derive(Debug, Clone)]
pub struct Change {
    pub kind: Kind,
    pub object: Arc<Object>,
    /// Encodings of the object that other watchers use too.
    pub wire: Option<Arc<Wire>>,
    /// What was selected before.
    pub previous: Option<Arc<Object>>,
}

/// What a watch hands out before the live events, and where those begin.
#[derive(Default)]
pub(super) struct Start {
    /// Objects as they stand at `began_at`.
    pub(super) state: VecDeque<Arc<Object>>,
    /// Events after `began_at`: all up to `live_after`, and none beyond.
    pub(super) replay: VecDeque<Arc<CacheEvent>>,
    pub(super) began_at: u64,
    /// Live events up to this revision are part of the above, or not asked for.
    pub(super) live_after: u64,
}

/// A running watch. Dropping it ends it.
pub struct Watcher {
    namespace: Option<Box<str>>,
    selection: Selection,
    start: Start,
    receiver: mpsc::Receiver<Arc<CacheEvent>>,
    /// Everything up to here has been handed out or was not selected.
    seen: u64,
}

impl Watcher {
    pub(super) fn new(
        namespace: Option<&str>,
        selection: Selection,
        start: Start,
        receiver: mpsc::Receiver<Arc<CacheEvent>>,
    ) -> Self {
        Self {
            namespace: namespace.filter(|ns| !ns.is_empty()).map(Into::into),
            selection,
            seen: start.began_at,
            start,
            receiver,
        }
    }

    pub fn began_at(&self) -> u64 {
        self.start.began_at
    }

    /// The next change that is there already.
    pub fn try_next(&mut self) -> Option<Change> {
        if let Some(object) = self.start.state.pop_front() {
            return Some(Change { kind: Kind::Added, object, wire: None, previous: None });
        }
        while let Some(event) = self.start.replay.pop_front() {
            if let Some(change) = self.change(&event) {
                return Some(change);
            }
        }
        while let Ok(event) = self.receiver.try_recv() {
            if let Some(change) = self.live(&event) {
                return Some(change);
            }
        }
        None
    }

    /// Whether part of the initial state is still to be handed out.
    pub fn has_state(&self) -> bool {
        !self.start.state.is_empty()
    }

    /// Whether the watch was ended: what happened since then is missing.
    pub fn has_ended(&self) -> bool {
        self.receiver.is_closed()
    }

    /// The next change; `None` when the watch was ended, because it was too slow or the cache was reset. Cancel safe.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(change) = self.try_next() {
                return Some(change);
            }
            let event = self.receiver.recv().await?;
            if let Some(change) = self.live(&event) {
                return Some(change);
            }
        }
    }

    fn live(&mut self, event: &CacheEvent) -> Option<Change> {
        // What the start has had must not come again.
        if event.revision() <= self.start.live_after { None } else { self.change(event) }
    }

    fn change(&mut self, event: &CacheEvent) -> Option<Change> {
        self.seen = event.revision();
        if self.namespace.as_deref().is_some_and(|ns| ns != event.object.namespace()) {
            return None;
        }
        let before = event.previous.as_ref().filter(|o| self.selection.matches(o));
        let now = !event.deleted && self.selection.matches(&event.object);
        let kind = match (before, now) {
            (None, true) => Kind::Added,
            (Some(_), true) => Kind::Modified,
            (Some(_), false) if event.deleted => Kind::Deleted,
            (Some(before), false) => {
                let object = left(before, event.revision());
                let previous = Some(Arc::clone(before));
                return Some(Change { kind: Kind::Deleted, object, wire: None, previous });
            }
            (None, false) => return None,
        };
        let (object, wire) = (Arc::clone(&event.object), Some(Arc::clone(&event.wire)));
        Some(Change { kind, object, wire, previous: before.cloned() })
    }

    /// The revision of a bookmark, once nothing waits any more: everything up to it has been handed out. `applied` was
    /// read from the caches before the last of what waits was taken. `None` when the watch was ended: events that came
    /// after its end are missing.
    pub fn bookmark(&self, applied: u64) -> Option<u64> {
        (!self.receiver.is_closed()).then(|| applied.max(self.seen))
    }
}

/// The last state that was selected, under the revision by which the object left the selection.
pub fn left(before: &Arc<Object>, revision: u64) -> Arc<Object> {
    before.at_version(revision).map_or_else(|| Arc::clone(before), Arc::new)
}
