//! Time as a parameter: all code that waits or reads the time uses a [`Clock`].

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use jiff::Timestamp;

/// A future that completes after a duration.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source of time: the system clock in production, a simulated one in tests.
pub trait Clock: Send + Sync + 'static {
    /// Returns wall-clock time, for timestamps in objects.
    fn now(&self) -> Timestamp;

    /// Returns the time since some fixed point, which never decreases, for measuring intervals.
    fn monotonic(&self) -> Duration;

    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> Sleep;
}
