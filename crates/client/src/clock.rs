//! The clocks: the system's, and tokio's, which tests can pause.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use knarr_apimachinery::clock::{Clock, Sleep};

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        start().elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Time that follows tokio's clock: in a paused runtime it only advances when every task waits.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    origin: Timestamp,
    started: tokio::time::Instant,
}

impl TokioClock {
    /// Returns a clock that shows `origin` now. Must be called inside a tokio runtime.
    pub fn starting_at(origin: Timestamp) -> Self {
        Self { origin, started: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        self.origin.checked_add(self.started.elapsed()).unwrap_or(Timestamp::MAX)
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}
