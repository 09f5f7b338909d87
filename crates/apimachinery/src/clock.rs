//! Time as a parameter: everything that waits or asks for the hour does it through a [`Clock`].

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use jiff::Timestamp;

/// A future that completes when the time has come.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The source of time. The wall clock in production, a simulated one in tests.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time, for what is written into objects.
    fn now(&self) -> Timestamp;

    /// Time since some fixed point, never going back, for measuring intervals.
    fn monotonic(&self) -> Duration;

    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> Sleep;
}
