//! What readers, watchers and the committer of one engine hold together.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use super::hub::Hub;
use super::state::State;
use crate::options::Options;
use crate::types::LeaseId;
use crate::{Error, Result};

/// Locks are taken in the order of the fields, and none is held across an await.
#[derive(Debug)]
pub(super) struct Core {
    /// Held while a batch is applied and published, so that who holds it knows that the state's
    /// revision has been published.
    hub: Mutex<Hub>,
    /// Written by the committer alone.
    state: RwLock<State>,
    /// When each lease runs out.
    deadlines: Mutex<BTreeMap<LeaseId, Duration>>,
    failure: OnceLock<Arc<str>>,
    closed: AtomicBool,
    pub(super) options: Options,
    pub(super) file: Option<PathBuf>,
}

impl Core {
    pub(super) fn new(state: State, options: Options, file: Option<PathBuf>) -> Self {
        let now = options.time.now();
        let deadline = |ttl_seconds| now.saturating_add(Duration::from_secs(ttl_seconds));
        let deadlines = state.leases().iter().map(|(id, lease)| (*id, deadline(lease.ttl_seconds))).collect();
        Self {
            hub: Mutex::default(),
            state: RwLock::new(state),
            deadlines: Mutex::new(deadlines),
            failure: OnceLock::new(),
            closed: AtomicBool::new(false),
            options,
            file,
        }
    }

    pub(super) fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.state.read().map_err(|_| panicked())
    }

    /// For the committer only.
    pub(super) fn write(&self) -> Result<RwLockWriteGuard<'_, State>> {
        self.state.write().map_err(|_| panicked())
    }

    pub(super) fn hub(&self) -> Result<MutexGuard<'_, Hub>> {
        self.hub.lock().map_err(|_| panicked())
    }

    pub(super) fn deadlines(&self) -> Result<MutexGuard<'_, BTreeMap<LeaseId, Duration>>> {
        self.deadlines.lock().map_err(|_| panicked())
    }

    pub(super) fn request_progress(&self, watcher: u64) {
        // A store that is closed or broken ends its watches by itself.
        if let Ok(mut hub) = self.hub()
            && let Ok(state) = self.read()
        {
            hub.progress(watcher, state.revision());
        }
    }

    /// Refuses all writes from now on.
    pub(super) fn fail(&self, reason: &str) {
        let _ = self.failure.set(reason.into());
    }

    pub(super) fn failure(&self) -> Option<&Arc<str>> {
        self.failure.get()
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        match self.failure() {
            Some(reason) => Err(Error::Unavailable { reason: Arc::clone(reason) }),
            None => Ok(()),
        }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Ok(mut hub) = self.hub() {
            hub.close();
        }
    }
}

/// The state cannot be trusted after a panic in the middle of a change.
fn panicked() -> Error {
    Error::Unavailable { reason: "a writer panicked".into() }
}
