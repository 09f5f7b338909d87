//! Decides which connection is closed first when the server is full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;

/// How much the service knows about a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Nothing yet: either it has sent no requests, or the service knows the sender of none of them.
    Unknown,
    /// The service knows the sender of one of its requests.
    Authenticated,
    /// The service accepts its client certificate.
    Certified,
}

/// One connection.
#[derive(Debug)]
pub struct Place {
    pub(crate) activity: Arc<Activity>,
    standing: Mutex<Standing>,
    /// Whether the connection has switched to another protocol: a terminal, a forwarded port.
    handed_on: AtomicBool,
    evicted: CancellationToken,
}

/// How much a connection is worth keeping; the one with the smallest value is closed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth {
    standing: Standing,
    busy: bool,
    /// Since when it has been busy, or not busy.
    since: Instant,
}

impl Worth {
    /// Returns whether another connection of the same address may replace this one.
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

    /// Raises the standing of the peer, which never decreases.
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

    /// Returns the token that is cancelled when another connection gets the place.
    pub(crate) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }
}
