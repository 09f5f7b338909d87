//! What readers, watchers and the committer of one engine hold together.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::hub::Hub;
use super::quota::Limits;
use super::state::State;
use crate::options::Options;
use crate::types::{LeaseId, NoSpace};
use crate::{Error, Result};

/// What keeps writes from being taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// Why all of them are refused.
    pub(crate) failure: Option<Arc<str>>,
    /// Why those that make the store larger are.
    pub(crate) no_space: Option<NoSpace>,
}

/// Locks are taken in the order of the fields, and none is held across an await.
#[derive(Debug)]
pub(crate) struct Core {
    /// Held while a batch is applied and published, so that who holds it knows that the state's
    /// revision has been published.
    hub: Mutex<Hub>,
    /// Written by the committer alone.
    state: RwLock<State>,
    /// When each lease runs out.
    deadlines: Mutex<BTreeMap<LeaseId, Duration>>,
    health: Mutex<Health>,
    closed: AtomicBool,
    /// How the store ended, if it did.
    outcome: OnceLock<Result<()>>,
    /// Notified when it is.
    ended: Notify,
    pub(crate) options: Options,
    pub(crate) limits: Limits,
    pub(crate) file: Option<PathBuf>,
}

impl Core {
    pub(crate) fn new(mut state: State, options: Options, file: Option<PathBuf>) -> Self {
        let now = options.time.now();
        let deadline = |ttl_seconds| now.saturating_add(Duration::from_secs(ttl_seconds));
        let deadlines = state.leases().iter().map(|(id, lease)| (*id, deadline(lease.ttl_seconds))).collect();
        let limits = Limits::new(&options);
        state.account(limits.share_of());
        Self {
            hub: Mutex::default(),
            state: RwLock::new(state),
            deadlines: Mutex::new(deadlines),
            health: Mutex::default(),
            closed: AtomicBool::new(false),
            outcome: OnceLock::new(),
            ended: Notify::new(),
            options,
            limits,
            file,
        }
    }

    pub(crate) fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.state.read().map_err(|_| panicked())
    }

    /// For the committer only.
    pub(crate) fn write(&self) -> Result<RwLockWriteGuard<'_, State>> {
        self.state.write().map_err(|_| panicked())
    }

    pub(crate) fn hub(&self) -> Result<MutexGuard<'_, Hub>> {
        self.hub.lock().map_err(|_| panicked())
    }

    pub(crate) fn deadlines(&self) -> Result<MutexGuard<'_, BTreeMap<LeaseId, Duration>>> {
        self.deadlines.lock().map_err(|_| panicked())
    }

    pub(crate) fn request_progress(&self, watcher: u64) {
        // A store that is closed or broken ends its watches by itself.
        if let Ok(mut hub) = self.hub()
            && let Ok(state) = self.read()
        {
            hub.progress(watcher, state.revision());
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.locked_health().clone()
    }

    /// For the committer only.
    pub(crate) fn set_failure(&self, reason: Option<&str>) {
        self.locked_health().failure = reason.map(Into::into);
    }

    /// For the committer only. Answers what was so before.
    pub(crate) fn set_no_space(&self, no_space: Option<NoSpace>) -> Option<NoSpace> {
        std::mem::replace(&mut self.locked_health().no_space, no_space)
    }

    fn locked_health(&self) -> MutexGuard<'_, Health> {
        // Each change is a single assignment: what a panic has left is whole.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// How the store ended; `None` while it is open.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        self.outcome.get().cloned()
    }

    /// Ends the store. How it did so first counts.
    pub(crate) fn close(&self, outcome: Result<()>) {
        let _ = self.outcome.set(outcome);
        self.closed.store(true, Ordering::Release);
        if let Ok(mut hub) = self.hub() {
            hub.close();
        }
        self.ended.notify_waiters();
    }

    /// Returns once it is closed.
    pub(crate) async fn closed(&self) {
        let mut ended = std::pin::pin!(self.ended.notified());
        // Whoever closes from here on notifies this one.
        ended.as_mut().enable();
        if self.check_open().is_ok() {
            ended.await;
        }
    }
}

/// The state cannot be trusted after a panic in the middle of a change.
fn panicked() -> Error {
    Error::Unavailable { reason: "a writer panicked".into() }
}
