//! A request's place in its priority level, given back when it is dropped.

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
    /// When it began to execute; `None` while it waits.
    began: Option<Duration>,
    /// How long it waited.
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

    /// For a request that no level is there for.
    pub(super) fn nowhere(fairness: Arc<Fairness>) -> Self {
        let mut seat = Self::new(fairness, 0, Classified::default(), Work::seats(0), Duration::ZERO);
        seat.held = false;
        seat
    }

    /// Its turn has not come yet.
    pub(super) fn queue_up(&mut self) {
        self.began = None;
    }

    pub(super) fn waits(&self) -> bool {
        self.began.is_none()
    }

    /// Its turn came, or did not, after this long.
    pub(super) fn waited(&mut self, waited: Duration, executes: bool) {
        self.queued = waited;
        self.began = executes.then(|| self.fairness.clock.monotonic());
        let word = if executes { "true" } else { "false" };
        let Classified { schema, level, .. } = &self.classified;
        self.fairness.metrics.record(Metric::FairnessWait, &[word, schema, level], waited.as_secs_f64());
    }

    /// It was given up already.
    pub(super) fn forget(mut self) {
        self.held = false;
    }

    /// A watch keeps its seat only until it has begun.
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
