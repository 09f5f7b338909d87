//! The state shared by the readers, the watchers and the committer of an engine.

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

/// The reasons for refusing writes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// Why all writes are refused.
    pub(crate) failure: Option<Arc<str>>,
    /// Why writes that make the store larger are refused.
    pub(crate) no_space: Option<NoSpace>,
}

/// Locks are acquired in the order of the fields, and none is held across an await.
#[derive(Debug)]
pub(crate) struct Core {
    /// Held while a batch is applied and published, so that a holder of this lock knows that the state's revision has
    /// been published.
    hub: Mutex<Hub>,
    /// Only written by the committer.
    state: RwLock<State>,
    /// When each lease expires.
    deadlines: Mutex<BTreeMap<LeaseId, Duration>>,
    health: Mutex<Health>,
    closed: AtomicBool,
    /// How the store ended, if it has.
    outcome: OnceLock<Result<()>>,
    /// Notified when `outcome` is set.
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

    /// Locks the state for writing. Only for the committer.
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
        // A store that is closed or broken ends its watches anyway.
        if let Ok(mut hub) = self.hub()
            && let Ok(state) = self.read()
        {
            hub.progress(watcher, state.revision());
        }
    }

    pub(crate) fn health(&self) -> Health {
        self.locked_health().clone()
    }

    /// Sets the failure. Only for the committer.
    pub(crate) fn set_failure(&self, reason: Option<&str>) {
        self.locked_health().failure = reason.map(Into::into);
    }

    /// Sets the lack of space and returns the value before. Only for the committer.
    pub(crate) fn set_no_space(&self, no_space: Option<NoSpace>) -> Option<NoSpace> {
        std::mem::replace(&mut self.locked_health().no_space, no_space)
    }

    fn locked_health(&self) -> MutexGuard<'_, Health> {
        // Each change is a single assignment, so a panic leaves a consistent value.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// How the store ended; `None` while it is open.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        self.outcome.get().cloned()
    }

    /// Ends the store. The first outcome counts.
    pub(crate) fn close(&self, outcome: Result<()>) {
        let _ = self.outcome.set(outcome);
        self.closed.store(true, Ordering::Release);
        if let Ok(mut hub) = self.hub() {
            hub.close();
        }
        self.ended.notify_waiters();
    }

    /// Waits until the store is closed.
    pub(crate) async fn closed(&self) {
        let mut ended = std::pin::pin!(self.ended.notified());
        // From here on, closing the store notifies this task.
        ended.as_mut().enable();
        if self.check_open().is_ok() {
            ended.await;
        }
    }
}

/// The error after a panic in the middle of a change: the state cannot be trusted any more.
fn panicked() -> Error {
    Error::Unavailable { reason: "a writer panicked".into() }
}
