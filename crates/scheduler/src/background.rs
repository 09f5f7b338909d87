//! What the scheduler and its plugins do in the background: binding cycles and other writes. It belongs to the
//! scheduler's work, which ends when it has ended.

use std::future::Future;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// For how long cycles are waited for once the scheduler is to end; less than a leader's work is waited for.
const LEFT_BEHIND: Duration = Duration::from_secs(5);

/// The cycles under way. Shared by the scheduler and its plugins.
#[derive(Default)]
pub struct Background {
    cycles: TaskTracker,
    /// Cancelled when the scheduler is to end: what is being written is written, and nobody waits for anything else.
    ending: CancellationToken,
    /// Cancelled when what has not ended by then is given up.
    over: CancellationToken,
    /// Cancelled once a cycle has panicked.
    failed: CancellationToken,
}

impl Background {
    /// Runs a cycle. One that panics may leave a pod assumed on a node or out of the queue for good: the scheduler ends
    /// with it.
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

    /// Returns once a cycle has panicked.
    pub async fn failed(&self) {
        self.failed.cancelled().await;
    }

    /// Returns once the scheduler is to end.
    pub async fn ending(&self) {
        self.ending.cancelled().await;
    }

    pub fn is_ending(&self) -> bool {
        self.ending.is_cancelled()
    }

    /// Waits for what is under way, within bounds.
    pub async fn end(&self, clock: &dyn Clock) {
        self.ending.cancel();
        self.cycles.close();
        tokio::select! {
            biased;
            () = self.cycles.wait() => {}
            () = clock.sleep(LEFT_BEHIND) => {
                tracing::warn!(cycles = self.cycles.len(), "the scheduler ends without its last cycles");
            }
        }
    }

    /// Gives up what is under way when this is dropped.
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
        assert!(!background.failed.is_cancelled(), "to be given up is no fault");
    }
}
