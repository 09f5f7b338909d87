//! The seats of a request in its priority level, released on drop.

use std::sync::Arc;
use std::time::Duration;

use super::queue_set::{Id, Work};
use super::{Classified, Fairness};
use knarr_wire::metrics::Metric;

pub struct Seat {
    fairness: Arc<Fairness>,
    pub(super) id: Id,
    pub classified: Classified,
    pub(super) work: Work,
    /// When the request started to execute; `None` while it waits.
    began: Option<Duration>,
    /// How long the request waited.
    pub queued: Duration,
    held: bool,
    watch: bool,
}

impl Seat {
    pub(super) fn new(
        fairness: Arc<Fairness>,
        id: Id,
        classified: Classified,
        work: Work,
        now: Duration,
    ) -> Self {
        Self {
            fairness,
            id,
            classified,
            work,
            began: Some(now),
            queued: Duration::ZERO,
            held: true,
            watch: false,
        }
    }

    /// Creates a seat for a request that no level handles.
    pub(super) fn nowhere(fairness: Arc<Fairness>) -> Self {
        let mut seat = Self::new(fairness, 0, Classified::default(), Work::seats(0), Duration::ZERO);
        seat.held = false;
        seat
    }

    /// Marks the request as waiting.
    pub(super) fn queue_up(&mut self) {
        self.began = None;
    }

    pub(super) fn waits(&self) -> bool {
        self.began.is_none()
    }

    /// Records the end of the wait, and whether the request executes.
    pub(super) fn waited(&mut self, waited: Duration, executes: bool) {
        self.queued = waited;
        self.began = executes.then(|| self.fairness.clock.monotonic());
        let word = if executes { "true" } else { "false" };
        let Classified { schema, level, .. } = &self.classified;
        self.fairness.metrics.record(Metric::FairnessWait, &[word, schema, level], waited.as_secs_f64());
    }

    /// Drops the seat of a request that has already been removed.
    pub(super) fn forget(mut self) {
        self.held = false;
    }

    /// Marks the seat as a watch's, which is only occupied until the watch has started.
    pub fn for_watch(mut self) -> Self {
        self.watch = true;
        self
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.held {
            return;
        }
        if let Some(began) = self.began {
            let took = self.fairness.clock.monotonic().saturating_sub(began).as_secs_f64();
            let kind = if self.watch { "watch" } else { "regular" };
            let Classified { schema, level, .. } = &self.classified;
            self.fairness.metrics.record(Metric::FairnessExecution, &[schema, level, kind], took);
        }
        let fairness = Arc::clone(&self.fairness);
        fairness.finish(self);
    }
}
