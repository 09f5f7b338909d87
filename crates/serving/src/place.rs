//! What decides which connection is closed first where there is no room for a new one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;

/// What is known of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Nothing yet: its requests, if there were any, were nobody's that the service knows.
    Unknown,
    /// One of its requests was of somebody whom the service knows.
    Authenticated,
    /// Its client certificate is one that the service accepts.
    Certified,
}

/// One connection.
#[derive(Debug)]
pub struct Place {
    pub(crate) activity: Arc<Activity>,
    standing: Mutex<Standing>,
    /// It has left HTTP for another protocol: a terminal, a forwarded port.
    handed_on: AtomicBool,
    evicted: CancellationToken,
}

/// The smallest is closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth {
    standing: Standing,
    busy: bool,
    /// Since when it has been as it is.
    since: Instant,
}

impl Worth {
    /// Whether a connection of the same address may take its place.
    pub(crate) fn yields(&self) -> bool {
        self.standing == Standing::Unknown || !self.busy
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            activity: Activity::new(),
            standing: Mutex::new(Standing::Unknown),
            handed_on: AtomicBool::new(false),
            evicted: CancellationToken::new(),
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the peer never becomes less.
    pub(crate) fn raise(&self, to: Standing) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        *standing = to.max(*standing);
    }

    pub(crate) fn hand_on(&self) {
        self.handed_on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn worth(&self) -> Worth {
        let (busy, since) = self.activity.busy();
        let busy = busy || self.handed_on.load(Ordering::Relaxed);
        Worth { standing: self.standing(), busy, since }
    }

    pub(crate) fn evict(&self) {
        self.evicted.cancel();
    }

    /// The place is another connection's.
    pub(crate) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }
}
