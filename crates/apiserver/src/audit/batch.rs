//! Batches of audit events: how many events are queued, how long, and how often a batch is sent.

use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::options::{Batch, Throttle};

/// Waits for an event and then for more, until the batch is full or `options.wait` has passed. `None` if no event
/// will follow.
pub async fn next(
    events: &mut mpsc::Receiver<Value>,
    options: &Batch,
    clock: &dyn Clock,
    stop: &CancellationToken,
) -> Option<Vec<Value>> {
    let first = tokio::select! {
        biased;
        first = events.recv() => first,
        () = stop.cancelled() => events.try_recv().ok(),
    };
    let mut batch = vec![first?];
    let mut old = clock.sleep(options.wait);
    while batch.len() < options.size {
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(event) => batch.push(event),
                None => break,
            },
            () = &mut old => break,
            () = stop.cancelled() => break,
        }
    }
    Some(batch)
}

/// A token bucket: allows a burst of batches, and a number of batches a second after that.
pub struct Bucket {
    throttle: Throttle,
    tokens: f64,
    filled: Duration,
}

impl Bucket {
    pub fn new(throttle: Throttle, now: Duration) -> Self {
        Self { throttle, tokens: f64::from(throttle.burst), filled: now }
    }

    /// Takes a token for the next batch, and returns how long that batch must wait for it.
    fn pass(&mut self, now: Duration) -> Duration {
        let gained = now.saturating_sub(self.filled).as_secs_f64() * self.throttle.qps;
        self.tokens = (self.tokens + gained).min(f64::from(self.throttle.burst));
        self.filled = now;
        self.tokens -= 1.0;
        if self.tokens >= 0.0 || self.throttle.qps <= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(-self.tokens / self.throttle.qps)
    }

    /// Waits until the next batch may be sent; returns at once while the server stops.
    pub async fn wait(&mut self, clock: &dyn Clock, stop: &CancellationToken) {
        let wait = self.pass(clock.monotonic());
        if !wait.is_zero() {
            tokio::select! {
                () = clock.sleep(wait) => {}
                () = stop.cancelled() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_client::clock::SystemClock;
    use serde_json::json;

    #[test]
    fn a_burst_passes_and_then_some_each_second() {
        let mut bucket = Bucket::new(Throttle { qps: 10.0, burst: 2 }, Duration::ZERO);
        let at = |millis| Duration::from_millis(millis);
        for (now, wait) in [(0, 0), (0, 0), (0, 100), (0, 200), (1000, 0), (5000, 0), (5000, 0), (5000, 100)]
        {
            assert_eq!(bucket.pass(at(now)).as_millis(), wait, "{now}");
        }
    }

    #[tokio::test]
    async fn batches_are_full_or_the_last() {
        let (sender, mut events) = mpsc::channel(8);
        for n in 0..5 {
            sender.try_send(json!(n)).unwrap();
        }
        drop(sender);
        let (stop, clock) = (CancellationToken::new(), SystemClock);
        let options = Batch { size: 2, wait: Duration::from_secs(3600), ..Batch::of_log() };
        let mut sizes = Vec::new();
        while let Some(batch) = next(&mut events, &options, &clock, &stop).await {
            sizes.push(batch.len());
        }
        assert_eq!(sizes, [2, 2, 1]);
    }

    #[tokio::test]
    async fn what_waits_at_the_end_is_not_lost() {
        let (sender, mut events) = mpsc::channel(8);
        sender.try_send(json!(1)).unwrap();
        let (stop, clock) = (CancellationToken::new(), SystemClock);
        stop.cancel();
        let options = Batch { size: 400, wait: Duration::from_secs(3600), ..Batch::of_webhook() };
        assert_eq!(next(&mut events, &options, &clock, &stop).await, Some(vec![json!(1)]));
        assert_eq!(next(&mut events, &options, &clock, &stop).await, None);
    }
}
