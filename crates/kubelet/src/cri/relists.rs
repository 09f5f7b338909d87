//! The number and duration of comparisons of the runtime's lists, with upstream's metric names.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/pleg`, the generic one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::metric_families;
use knarr_apimachinery::metrics::{Kind, Registry};

use crate::kubelet_metrics::SECONDS;

metric_families! {
    Took, Kind::Histogram(SECONDS), "kubelet_pleg_relist_duration_seconds", [],
        "[ALPHA] How long it takes to list what the container runtime has and to compare it with the list before.";
    Between, Kind::Histogram(SECONDS), "kubelet_pleg_relist_interval_seconds", [],
        "[ALPHA] How long it is from the beginning of one list to that of the next.";
    LastSeen, Kind::Gauge, "kubelet_pleg_last_seen_seconds", [],
        "[ALPHA] When the container runtime was last listed, in seconds since 1970.";
}

pub struct Relists {
    counted: Registry,
    clock: Arc<dyn Clock>,
    /// When the last successful one began.
    last: Mutex<Option<Duration>>,
}

/// A comparison that is under way.
pub struct Relist<'a> {
    relists: &'a Relists,
    begun: Duration,
    at: Timestamp,
}

impl Relists {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { counted: Registry::new(FAMILIES), clock, last: Mutex::default() }
    }

    pub fn begin(&self) -> Relist<'_> {
        let (begun, at) = (self.clock.monotonic(), self.clock.now());
        if let Some(last) = *self.last.lock().unwrap_or_else(PoisonError::into_inner) {
            let between = begun.saturating_sub(last);
            self.counted.record(Metric::Between as usize, &[], between.as_secs_f64());
        }
        Relist { relists: self, begun, at }
    }

    pub fn render(&self) -> String {
        self.counted.render()
    }
}

impl Relist<'_> {
    pub fn end(self, succeeded: bool) {
        let Self { relists: Relists { counted, clock, last }, begun, at } = self;
        let took = clock.monotonic().saturating_sub(begun);
        counted.record(Metric::Took as usize, &[], took.as_secs_f64());
        if succeeded {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(begun);
            counted.set(Metric::LastSeen as usize, &[], at.as_second() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use knarr_client::clock::TokioClock;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn intervals_are_those_between_beginnings() {
        let clock: Arc<dyn Clock> = Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH));
        let relists = Relists::new(Arc::clone(&clock));
        for (wait, takes, succeeded) in [(0, 200, true), (1800, 300, false), (700, 100, true)] {
            tokio::time::advance(Duration::from_millis(wait)).await;
            let relist = relists.begin();
            tokio::time::advance(Duration::from_millis(takes)).await;
            relist.end(succeeded);
        }
        let text = relists.render();
        for line in [
            "kubelet_pleg_relist_duration_seconds_count 3\n",
            "kubelet_pleg_relist_duration_seconds_sum 0.6\n",
            // 2 s after the first one, and 3 s after that, as the second one failed.
            "kubelet_pleg_relist_interval_seconds_count 2\n",
            "kubelet_pleg_relist_interval_seconds_sum 5\n",
            "kubelet_pleg_last_seen_seconds 3\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
