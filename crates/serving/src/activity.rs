//! The activity of one connection: its running requests, and since when it has none.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limits::Limits;

/// The longest time that a connection may take to close after it was asked to.
const LINGER: Duration = Duration::from_secs(5);

/// The running requests of a connection, and its times.
#[derive(Debug)]
pub struct Activity {
    state: Mutex<State>,
    /// Notified when the connection is to be closed.
    pub close: Notify,
}

#[derive(Debug, Clone, Copy)]
struct State {
    running: usize,
    any_request: bool,
    /// When the last request ended, or the connection was opened.
    quiet_since: Instant,
    /// When the connection was asked to close.
    closing: Option<Instant>,
}

/// A running request, until it is dropped.
#[derive(Debug)]
pub struct Running(Arc<Activity>);

/// The next step for a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Do nothing until this time, then check again.
    Look(Instant),
    /// Ask the peer to close it.
    Close,
    /// Drop the connection.
    Drop,
}

impl Activity {
    pub fn new() -> Arc<Self> {
        let state = State { running: 0, any_request: false, quiet_since: Instant::now(), closing: None };
        Arc::new(Self { state: Mutex::new(state), close: Notify::new() })
    }

    /// Records the start of a request.
    pub fn begin(self: &Arc<Self>) -> Running {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running += 1;
        state.any_request = true;
        Running(Arc::clone(self))
    }

    /// Returns whether requests are running, and since when none are; if some are, since when there were none
    /// before them.
    pub fn busy(&self) -> (bool, Instant) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.running > 0, state.quiet_since)
    }

    /// Records that the connection is being closed.
    pub fn closing(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closing.get_or_insert(Instant::now());
    }

    /// Decides the next step for the connection.
    pub fn next(&self, limits: &Limits) -> Next {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        next(&state, Instant::now(), limits)
    }
}

fn next(state: &State, now: Instant, limits: &Limits) -> Next {
    let linger = LINGER.min(limits.headers);
    if state.running > 0 {
        return Next::Look(now + if state.closing.is_some() { linger } else { limits.idle });
    }
    let (since, most, then) = match state.closing {
        Some(closing) => (closing.max(state.quiet_since), linger, Next::Drop),
        None if state.any_request => (state.quiet_since, limits.idle, Next::Close),
        None => (state.quiet_since, limits.headers, Next::Close),
    };
    if now >= since + most { then } else { Next::Look(since + most) }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running = state.running.saturating_sub(1);
        state.quiet_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quiet_connections_are_closed_and_busy_ones_are_not() {
        let limits =
            Limits { headers: Duration::from_secs(3), idle: Duration::from_secs(9), ..Limits::default() };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let fresh = State { running: 0, any_request: false, quiet_since: start, closing: None };
        let idle = State { any_request: true, quiet_since: at(2), ..fresh };
        let busy = State { running: 1, ..idle };
        for (state, now, expected) in [
            (fresh, at(1), Next::Look(at(3))),
            (fresh, at(3), Next::Close),
            (idle, at(4), Next::Look(at(11))),
            (idle, at(11), Next::Close),
            (busy, at(100), Next::Look(at(109))),
            (State { closing: Some(at(11)), ..idle }, at(12), Next::Look(at(14))),
            (State { closing: Some(at(11)), ..idle }, at(14), Next::Drop),
            (State { closing: Some(at(11)), ..busy }, at(100), Next::Look(at(103))),
            (State { closing: Some(at(11)), quiet_since: at(20), ..idle }, at(21), Next::Look(at(23))),
        ] {
            assert_eq!(next(&state, now, &limits), expected, "{state:?}");
        }
    }
}
