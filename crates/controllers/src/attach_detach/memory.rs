//! What the controller remembers between passes. After a restart it begins anew: times start again, users are told
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// More told things than this are not remembered.
const MAX_TOLD: usize = 10_000;

#[derive(Default)]
struct State {
    /// Since when nobody wants an attachment, on the monotonic clock.
    unwanted: BTreeMap<String, Duration>,
    /// Since when an attachment is waited for.
    pending: BTreeMap<String, Duration>,
    told: BTreeMap<String, String>,
    last_write: u64,
    /// Nodes that are looked at once the informer shows the last write.
    waiting: BTreeSet<String>,
}

#[derive(Default)]
pub struct Memory(Mutex<State>);

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wanted(&self, attachment: &str) {
        self.lock().unwanted.remove(attachment);
    }

    pub fn unwanted_for(&self, attachment: &str, now: Duration) -> Duration {
        let since = *self.lock().unwanted.entry(attachment.to_owned()).or_insert(now);
        now.saturating_sub(since)
    }

    pub fn pending_for(&self, attachment: &str, now: Duration) -> Duration {
        let since = *self.lock().pending.entry(attachment.to_owned()).or_insert(now);
        now.saturating_sub(since)
    }

    pub fn wait_anew(&self, attachment: &str, now: Duration) {
        self.lock().pending.insert(attachment.to_owned(), now);
    }

    /// Whether this was not the last thing told of it.
    pub fn is_news(&self, about: &str, text: &str) -> bool {
        let mut state = self.lock();
        if state.told.len() >= MAX_TOLD {
            state.told.clear();
        }
        state.told.insert(about.to_owned(), text.to_owned()).as_deref() != Some(text)
    }

    pub fn wrote(&self, version: Option<&str>) {
        let version = version.and_then(|v| v.parse().ok()).unwrap_or(0);
        let mut state = self.lock();
        state.last_write = state.last_write.max(version);
    }

    pub fn last_write(&self) -> u64 {
        self.lock().last_write
    }

    pub fn wait(&self, node: &str) {
        self.lock().waiting.insert(node.to_owned());
    }

    pub fn take_waiting(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.lock().waiting)
    }

    /// The attachment is gone.
    pub fn forget(&self, attachment: &str) {
        let mut state = self.lock();
        state.unwanted.remove(attachment);
        state.pending.remove(attachment);
        state.told.retain(|about, _| about.split(' ').next() != Some(attachment));
    }
}
