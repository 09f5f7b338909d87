//! The state that the controller keeps between passes. It is lost at a restart: timeouts start over, and events are
//! emitted again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most remembered messages; beyond that all are forgotten.
const MAX_MESSAGES: usize = 10_000;

#[derive(Default)]
struct State {
    /// Since when no pod wants an attachment, on the monotonic clock.
    unwanted: BTreeMap<String, Duration>,
    /// Since when an attachment is pending.
    pending: BTreeMap<String, Duration>,
    messages: BTreeMap<String, String>,
    last_write: u64,
    /// Nodes to requeue once the informer shows the last write.
    waiting: BTreeSet<String>,
}

/// The state kept between passes, behind a lock.
#[derive(Default)]
pub struct Memory(Mutex<State>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a pod wants the attachment.
    pub fn wanted(&self, attachment: &str) {
        self.lock().unwanted.remove(attachment);
    }

    /// Returns how long no pod has wanted the attachment, counted from the first call.
    pub fn unwanted_for(&self, attachment: &str, now: Duration) -> Duration {
        let since = *self.lock().unwanted.entry(attachment.to_owned()).or_insert(now);
        now.saturating_sub(since)
    }

    /// Returns how long the attachment has been pending, counted from the first call.
    pub fn pending_for(&self, attachment: &str, now: Duration) -> Duration {
        let since = *self.lock().pending.entry(attachment.to_owned()).or_insert(now);
        now.saturating_sub(since)
    }

    /// Restarts the time for which the attachment is pending.
    pub fn wait_anew(&self, attachment: &str, now: Duration) {
        self.lock().pending.insert(attachment.to_owned(), now);
    }

    /// Records a message; returns whether it differs from the last one about the same object.
    pub fn is_news(&self, about: &str, text: &str) -> bool {
        let mut state = self.lock();
        if state.messages.len() >= MAX_MESSAGES {
            state.messages.clear();
        }
        state.messages.insert(about.to_owned(), text.to_owned()).as_deref() != Some(text)
    }

    /// Records the resourceVersion of an own write.
    pub fn wrote(&self, version: Option<&str>) {
        let version = version.and_then(|v| v.parse().ok()).unwrap_or(0);
        let mut state = self.lock();
        state.last_write = state.last_write.max(version);
    }

    /// Returns the highest resourceVersion of own writes.
    pub fn last_write(&self) -> u64 {
        self.lock().last_write
    }

    /// Adds a node to those that wait for the informer.
    pub fn wait(&self, node: &str) {
        self.lock().waiting.insert(node.to_owned());
    }

    /// Takes all nodes that wait for the informer.
    pub fn take_waiting(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.lock().waiting)
    }

    /// Drops everything about a deleted attachment.
    pub fn forget(&self, attachment: &str) {
        let mut state = self.lock();
        state.unwanted.remove(attachment);
        state.pending.remove(attachment);
        state.messages.retain(|about, _| about.split(' ').next() != Some(attachment));
    }
}
