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

/// A running watch. Dropping it ends it.
pub struct Watcher {
    namespace: Option<Box<str>>,
    selection: Selection,
    state: VecDeque<Arc<Object>>,
    initial: VecDeque<Arc<CacheEvent>>,
    receiver: mpsc::Receiver<Arc<CacheEvent>>,
    /// Where the watch began: the revision of the state it was given.
    began_at: u64,
    /// Everything up to here has been handed out or was not selected.
    seen: u64,
}

impl Watcher {
    pub(super) fn new(
        namespace: Option<&str>,
        selection: Selection,
        state: Vec<Arc<Object>>,
        initial: VecDeque<Arc<CacheEvent>>,
        receiver: mpsc::Receiver<Arc<CacheEvent>>,
        began_at: u64,
    ) -> Self {
        Self {
            namespace: namespace.filter(|ns| !ns.is_empty()).map(Into::into),
            selection,
            state: state.into(),
            initial,
            receiver,
            began_at,
            seen: began_at,
        }
    }

    /// The same watch with an earlier start, whose events it has been given.
    pub(super) fn beginning_at(mut self, revision: u64) -> Self {
        self.began_at = revision;
        self.seen = revision;
        self
    }

    pub fn began_at(&self) -> u64 {
        self.began_at
    }

    /// The next change that is there already.
    pub fn try_next(&mut self) -> Option<Change> {
        if let Some(object) = self.state.pop_front() {
            return Some(Change { kind: Kind::Added, object, wire: None, previous: None });
        }
        while let Some(event) = self.initial.pop_front() {
            if let Some(change) = self.change(&event) {
                return Some(change);
            }
        }
        while let Ok(event) = self.receiver.try_recv() {
            if let Some(change) = self.change(&event) {
                return Some(change);
            }
        }
        None
    }

    /// Whether part of the initial state is still to be handed out.
    pub fn has_state(&self) -> bool {
        !self.state.is_empty()
    }

    /// The next change; `None` when the watch was ended, because it was too slow or the cache was reset. Cancel safe.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            if let Some(change) = self.try_next() {
                return Some(change);
            }
            let event = self.receiver.recv().await?;
            if let Some(change) = self.change(&event) {
                return Some(change);
            }
        }
    }

    fn change(&mut self, event: &CacheEvent) -> Option<Change> {
        // What is in the initial state already must not come again.
        if event.revision() <= self.began_at {
            return None;
        }
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

    /// The last revision that this watch has seen an event of.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

/// The last state that was selected, under the revision by which the object left the selection.
pub fn left(before: &Arc<Object>, revision: u64) -> Arc<Object> {
    before.at_version(revision).map_or_else(|| Arc::clone(before), Arc::new)
}
