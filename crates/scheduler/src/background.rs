//! Background tasks of the scheduler and its plugins: binding cycles and other writes. They are part of the scheduler's
//! work: the scheduler has ended only when they have ended.

use std::future::Future;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// How long the scheduler waits for running cycles when it ends. Shorter than the time that is waited for a leader's
/// work.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// The running cycles, shared by the scheduler and its plugins.
#[derive(Default)]
pub struct Background {
    cycles: TaskTracker,
    /// Cancelled when the scheduler ends: a write in progress is completed, every other wait stops.
    ending: CancellationToken,
    /// Cancelled when the cycles that have not ended by then are abandoned.
    over: CancellationToken,
    /// Cancelled once a cycle has panicked.
    failed: CancellationToken,
}

impl Background {
    /// Runs a cycle. A cycle that panics may leave a pod assumed on a node, or out of the queue for good, so the
    /// scheduler ends with it.
    pub fn run(&self, cycle: impl Future<Output = ()> + Send + 'static) {
        let (failed, over) = (self.failed.clone().drop_guard(), self.over.clone());
        self.cycles.spawn(async move {
            tokio::select! {
                biased;
                () = over.cancelled() => {}
                () = cycle => {}
            }
            failed.disarm();
        });
    }

    /// Waits until a cycle has panicked.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// Waits until the scheduler is ending.
    pub async fn ending(&self) {
        self.ending.cancelled().await;
    }

    /// Returns whether the scheduler is ending.
    pub fn is_ending(&self) -> bool {
        self.ending.is_cancelled()
    }

    /// Signals the end to the running cycles and waits for them, at most `LEFT_BEHIND`.
    pub async fn end(&self, clock: &dyn Clock) {
        self.ending.cancel();
        self.cycles.close();
        tokio::select! {
            biased;
            () = self.cycles.wait() => {}
            () = clock.sleep(LEFT_BEHIND) => {
                tracing::warn!(cycles = self.cycles.len(), "the scheduler ends before all of its cycles have ended");
            }
        }
    }

    /// Returns a guard that abandons the running cycles when it is dropped.
    pub fn give_up_on_drop(&self) -> DropGuard {
        self.over.clone().drop_guard()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use knarr_client::clock::TokioClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn cycles_are_waited_for_and_those_that_do_not_end_are_given_up() {
        let clock = TokioClock::starting_at(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let (background, ended) = (Background::default(), Arc::new(AtomicBool::new(false)));
        let guard = background.give_up_on_drop();
        let seen = Arc::clone(&ended);
        background.run(async move {
            tokio::time::sleep(LEFT_BEHIND - Duration::from_secs(1)).await;
            seen.store(true, Ordering::SeqCst);
        });
        let given_up = CancellationToken::new();
        let held = given_up.clone().drop_guard();
        background.run(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        let began = clock.monotonic();
        background.end(&clock).await;
        assert_eq!(clock.monotonic() - began, LEFT_BEHIND);
        assert!(ended.load(Ordering::SeqCst));
        assert!(!given_up.is_cancelled());
        drop(guard);
        given_up.cancelled().await;
        assert!(!background.failed.is_cancelled(), "an abandoned cycle does not count as failed");
    }
}
