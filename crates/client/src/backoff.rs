//! Exponential back-off with jitter, which resets after a time without failures.
//!
//! Source: `Backoff.DelayWithReset` of `k8s.io/apimachinery/pkg/util/wait`.

use std::time::Duration;

/// The delays: each is `first`, doubled with each step up to `longest`, plus random jitter of up to the same length.
/// After `reset_after` without a step, the next delay is `first` again. Times are readings of a monotonic clock.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    reset_after: Duration,
    next: Duration,
    last_step: Duration,
}

impl Backoff {
    /// Creates a back-off whose first delay is `first`; see [`Backoff`].
    pub fn new(first: Duration, longest: Duration, reset_after: Duration) -> Self {
        Self { first, longest, reset_after, next: first, last_step: Duration::ZERO }
    }

    /// Returns how long to wait now.
    pub fn step(&mut self, now: Duration) -> Duration {
        if now.saturating_sub(self.last_step) > self.reset_after {
            self.reset();
        }
        self.last_step = now;
        let base = self.next;
        self.next = (base * 2).min(self.longest);
        base.mul_f64(1.0 + fastrand::f64())
    }

    /// Returns whether the next delay is the longest one, unless `reset_after` passes before it.
    pub fn is_longest(&self) -> bool {
        self.next >= self.longest
    }

    /// Resets the back-off: the next delay is `first` again.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_start_anew_after_a_quiet_time() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(5), seconds(60));
        for (now, base) in [(100, 1), (101, 2), (102, 4), (103, 5), (163, 5), (224, 1), (225, 2)] {
            let wait = backoff.step(seconds(now));
            assert!(wait >= seconds(base) && wait < seconds(2 * base), "at {now}: {wait:?}, of {base}");
        }
        assert!(!backoff.is_longest());
        backoff.step(seconds(225));
        assert!(backoff.is_longest());
        backoff.reset();
        assert!(backoff.step(seconds(226)) < seconds(2));
    }

    #[test]
    fn many_who_wait_do_not_wait_equally_long() {
        let step = || Backoff::new(Duration::from_secs(1), Duration::MAX, Duration::MAX).step(Duration::ZERO);
        let waits: std::collections::BTreeSet<_> = (0..20).map(|_| step()).collect();
        assert!(waits.len() > 1);
    }
}
