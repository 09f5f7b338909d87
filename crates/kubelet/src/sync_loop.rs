//! The health check of the kubelet's event handling.
//!
//! Upstream has one loop that handles all events, and checks how long ago its last iteration began. Here each pod
//! has a worker, and a worker that waits for a slow image is no fault. So the check covers what the workers share:
//! a heartbeat takes the locks that every event of a pod takes, on the threads that the workers use.
//!
//! Source: upstream's `SyncLoopHealthCheck`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use tokio_util::sync::CancellationToken;

const BEAT: Duration = Duration::from_secs(30);
/// Upstream's limit: twice the interval of its full resync, and at least this.
const TOO_LONG: Duration = Duration::from_secs(300);

pub struct SyncLoop {
    clock: Arc<dyn Clock>,
    /// When the last heartbeat began; `None` before the first.
    last: Mutex<Option<Duration>>,
}

impl SyncLoop {
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, last: Mutex::default() })
    }

    /// Runs heartbeats until `stop` is cancelled; `pass` takes the locks that an event of a pod takes.
    pub async fn run(self: Arc<Self>, pass: impl Fn() + Send, stop: CancellationToken) {
        loop {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.monotonic());
            pass();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.clock.sleep(BEAT) => {}
            }
        }
    }

    pub fn check(&self) -> Result<(), String> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some(last) if self.clock.monotonic().saturating_sub(last) > TOO_LONG => {
                Err("sync Loop took longer than expected".to_owned())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use knarr_client::clock::TokioClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_stands_still_is_noticed() {
        let clock = TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        let beating = SyncLoop::new(Arc::new(clock));
        clock.sleep(TOO_LONG * 2).await;
        assert_eq!(beating.check(), Ok(()), "it has not begun yet");
        let (stop, passes) = (CancellationToken::new(), Arc::new(Mutex::new(0)));
        let counted = Arc::clone(&passes);
        let pass = move || *counted.lock().unwrap() += 1;
        let task = tokio::spawn(Arc::clone(&beating).run(pass, stop.clone()));
        clock.sleep(TOO_LONG * 2).await;
        assert_eq!(beating.check(), Ok(()));
        assert!(*passes.lock().unwrap() > 10);
        stop.cancel();
        task.await.unwrap();
        clock.sleep(TOO_LONG).await;
        clock.sleep(BEAT).await;
        assert_eq!(beating.check(), Err("sync Loop took longer than expected".to_owned()));
    }
}
