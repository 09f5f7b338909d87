//! Checks whether the log can be written: if its reader stops reading, all writers block.
//!
//! Source: `LogHealthz` in `k8s.io/apiserver/pkg/server/healthz`.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use knarr_apimachinery::clock::Clock;

/// The minimum interval between two attempts; attempts are only made when a client requests the check.
const TRY_EVERY: Duration = Duration::from_secs(60);
const BLOCKED_AFTER: Duration = Duration::from_secs(120);

/// Tries to write on a thread of its own, because the attempt may block.
pub struct LogCheck {
    flush: Arc<dyn Fn() + Send + Sync>,
    last: Arc<Mutex<Option<Attempt>>>,
}

#[derive(Clone, Copy)]
struct Attempt {
    began: Duration,
    ended: bool,
}

impl Default for LogCheck {
    /// Checks standard error: a blocked writer holds its lock.
    fn default() -> Self {
        Self::new(|| drop(std::io::stderr().flush()))
    }
}

impl LogCheck {
    fn new(flush: impl Fn() + Send + Sync + 'static) -> Self {
        Self { flush: Arc::new(flush), last: Arc::default() }
    }

    pub fn check(&self, clock: &dyn Clock) -> Result<(), String> {
        let now = clock.monotonic();
        let mut last = lock(&self.last);
        match *last {
            Some(attempt) if !attempt.ended => {
                let blocked = now.saturating_sub(attempt.began) >= BLOCKED_AFTER;
                return if blocked { Err("logging blocked".to_owned()) } else { Ok(()) };
            }
            Some(attempt) if now.saturating_sub(attempt.began) < TRY_EVERY => return Ok(()),
            _ => {}
        }
        let (flush, shared) = (Arc::clone(&self.flush), Arc::clone(&self.last));
        let started = std::thread::Builder::new().name("log-check".into()).spawn(move || {
            flush();
            if let Some(attempt) = &mut *lock(&shared) {
                attempt.ended = true;
            }
        });
        // If no thread could be started, no attempt was made.
        *last = started.is_ok().then_some(Attempt { began: now, ended: false });
        Ok(())
    }
}

fn lock(last: &Mutex<Option<Attempt>>) -> MutexGuard<'_, Option<Attempt>> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct At(Mutex<Duration>);

    impl Clock for At {
        fn now(&self) -> jiff::Timestamp {
            jiff::Timestamp::UNIX_EPOCH
        }
        fn monotonic(&self) -> Duration {
            *self.0.lock().unwrap()
        }
        fn sleep(&self, _: Duration) -> knarr_apimachinery::clock::Sleep {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn a_log_that_is_not_read_is_noticed_and_forgiven() {
        let (release, waiting) = mpsc::channel::<()>();
        let (began, begun) = mpsc::channel();
        let waiting = Mutex::new(waiting);
        let check = LogCheck::new(move || {
            began.send(()).unwrap();
            let _ = waiting.lock().unwrap().recv();
        });
        let clock = At(Mutex::default());
        let later = |seconds| *clock.0.lock().unwrap() += Duration::from_secs(seconds);
        assert_eq!(check.check(&clock), Ok(()));
        begun.recv().unwrap();
        later(119);
        assert_eq!(check.check(&clock), Ok(()));
        later(1);
        assert_eq!(check.check(&clock), Err("logging blocked".into()));
        release.send(()).unwrap();
        while check.check(&clock).is_err() {
            std::thread::yield_now();
        }
        // The next attempt has started and has its own timeout.
        begun.recv().unwrap();
        later(60);
        assert_eq!(check.check(&clock), Ok(()));
        drop(release);
    }
}
