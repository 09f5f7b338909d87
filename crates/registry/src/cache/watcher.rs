//! One watch on a cache: the initial events, then live events, as changes of the selected objects.

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

/// The effect of an event for a watcher with selectors.
#[derive(Debug, Clone)]
pub struct Change {
    pub kind: Kind,
    pub object: Arc<Object>,
    /// The encodings of the object, shared with other watchers.
    pub wire: Option<Arc<Wire>>,
    /// The previous state, if it was selected.
    pub previous: Option<Arc<Object>>,
}

/// What a watch returns before the live events, and the revision after which those begin.
#[derive(Default)]
pub(super) struct Start {
    /// The objects as of `began_at`.
    pub(super) state: VecDeque<Arc<Object>>,
    /// The events after `began_at`, up to `live_after`.
    pub(super) replay: VecDeque<Arc<CacheEvent>>,
    pub(super) began_at: u64,
    /// Live events up to this revision are skipped: the start contains them, or they were not asked for.
    pub(super) live_after: u64,
}

/// A running watch. Dropping it ends it.
pub struct Watcher {
    namespace: Option<Box<str>>,
    selection: Selection,
    start: Start,
    receiver: mpsc::Receiver<Arc<CacheEvent>>,
    /// The revision up to which all selected changes have been returned.
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

    /// Returns the next change if it is available without waiting.
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

    /// Returns whether part of the initial state has not been returned yet.
    pub fn has_state(&self) -> bool {
        !self.start.state.is_empty()
    }

    /// Returns whether the watch was ended: later events are missing.
    pub fn has_ended(&self) -> bool {
        self.receiver.is_closed()
    }

    /// Waits for the next change; `None` if the watch was ended because it was too slow or the cache was reset.
    /// Cancel safe.
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
        // Events that the start already contained must not be repeated.
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

    /// Returns the revision for a bookmark once no event is queued: all changes up to it have been returned.
    /// `applied` must have been read from the caches before the last queued event was taken. Returns `None` if the
    /// watch was ended, because events after its end are missing.
    pub fn bookmark(&self, applied: u64) -> Option<u64> {
        (!self.receiver.is_closed()).then(|| applied.max(self.seen))
    }
}

/// Returns the last selected state, with the revision at which the object left the selection.
pub fn left(before: &Arc<Object>, revision: u64) -> Arc<Object> {
    before.at_version(revision).map_or_else(|| Arc::clone(before), Arc::new)
}
