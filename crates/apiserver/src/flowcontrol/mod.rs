//! Priority and fairness: requests are classified into flows, and flows into priority levels with seats of their own.
//!
//! Decisions are pure ([`queue_set`], [`levels`]); [`Fairness`] holds the lock, makes requests wait and records
//! metrics.

mod allocation;
mod debug;
pub mod defaults;
mod demand;
pub mod estimate;
mod levels;
mod matching;
mod queue_set;
mod seat;
mod shuffle;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use estimate::Known;
use knarr_auth::authn::UserInfo;
use knarr_registry::cache::{Cache, Caches};
use knarr_wire::metrics::{Metric, Metrics};
use knarr_wire::request_info::RequestInfo;
use levels::{Dangling, Levels};
use queue_set::{Id, Started, Work};
pub use seat::Seat;
pub use status::maintain_status;

const LEVELS: &str = "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations";
const SCHEMAS: &str = "flowcontrol.apiserver.k8s.io/flowschemas";
/// How often the seats are divided again while requests exist.
const BORROW_EVERY: Duration = Duration::from_secs(10);

/// The classification of a request; response headers carry it.
#[derive(Debug, Clone, Default)]
pub struct Classified {
    pub schema: String,
    pub schema_uid: String,
    pub level: String,
    pub level_uid: String,
}

/// A request in progress, for the debug endpoints.
struct Detail {
    schema: String,
    flow: String,
    arrived: jiff::Timestamp,
    work: Work,
    user: String,
    info: RequestInfo,
}

#[derive(Default)]
struct Retry {
    /// The Retry-After of rejected requests, in seconds.
    after: u64,
    since: Duration,
    refused: u64,
}

struct State {
    generations: Option<[u64; 2]>,
    levels: Levels,
    waiters: HashMap<Id, oneshot::Sender<()>>,
    details: BTreeMap<Id, Detail>,
    retries: BTreeMap<String, Retry>,
    /// The conditions that must be written.
    dangling: Vec<Dangling>,
}

pub struct Fairness {
    state: Mutex<State>,
    next: AtomicU64,
    caches: Arc<Caches>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    /// How long a request waits in a queue at most.
    patience: Duration,
    active: Notify,
    changed: Notify,
}

/// The rejection of a request.
pub struct Refused {
    pub classified: Classified,
    pub retry_after_seconds: u64,
}

impl Fairness {
    pub fn new(
        seats: u64,
        patience: Duration,
        caches: Arc<Caches>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let state = State {
            generations: None,
            levels: Levels::new(seats, clock.monotonic()),
            waiters: HashMap::new(),
            details: BTreeMap::new(),
            retries: BTreeMap::new(),
            dangling: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
            next: AtomicU64::new(1),
            caches,
            clock,
            metrics,
            patience,
            active: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// Locks the state and updates it to the configuration that the caches hold now.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let caches = [LEVELS, SCHEMAS].map(|name| self.caches.get(name).map(|c| Arc::clone(&c)));
        let now = caches.each_ref().map(|c| c.as_ref().map_or(0, |c| c.generation()));
        if state.generations == Some(now) {
            return state;
        }
        let [levels, schemas] = &caches;
        let levels = typed(levels.as_deref());
        let schemas = typed(schemas.as_deref());
        state.dangling = state.levels.digest(&levels, &schemas, self.clock.monotonic());
        state.generations = Some(now);
        self.changed.notify_one();
        self.show_limits(&state.levels);
        state
    }

    fn show_limits(&self, levels: &Levels) {
        self.metrics.set(Metric::FairnessFairFraction, &[], levels.fair_fraction);
        for (name, level) in &levels.levels {
            for (metric, value) in [
                (Metric::FairnessNominal, level.limits.nominal as f64),
                (Metric::FairnessLowerLimit, level.limits.lower as f64),
                (Metric::FairnessUpperLimit, level.limits.upper as f64),
                (Metric::FairnessCurrentLimit, level.current as f64),
                (Metric::FairnessDemandHigh, level.demand.high_watermark),
                (Metric::FairnessDemandAverage, level.demand.average),
                (Metric::FairnessDemandDeviation, level.demand.deviation),
                (Metric::FairnessDemandSmoothed, level.demand.smoothed),
                (Metric::FairnessTarget, level.target),
            ] {
                self.metrics.set(metric, &[name], value);
            }
        }
    }

    /// Waits until the request may execute. Its seats are released when the returned seat is dropped.
    pub async fn admit(
        self: &Arc<Self>,
        user: &UserInfo,
        info: &RequestInfo,
        query: &knarr_wire::query::Query,
        known: Option<Known>,
    ) -> Result<Seat, Refused> {
        let (mut seat, turn) = self.start(user, info, query, known)?;
        let Some(turn) = turn else { return Ok(seat) };
        let began = self.clock.monotonic();
        let mut in_time = true;
        tokio::select! {
            biased;
            // The sender is only dropped with the whole state.
            _ = turn => {}
            () = self.clock.sleep(self.patience) => in_time = false,
        }
        let waited = self.clock.monotonic().saturating_sub(began);
        // The request may have been dispatched at the last moment.
        let executes = in_time || !self.give_up(&seat);
        seat.waited(waited, executes);
        if executes {
            return Ok(seat);
        }
        let classified = seat.classified.clone();
        let retry = self.refuse(&classified, "time-out");
        seat.forget();
        Err(Refused { classified, retry_after_seconds: retry })
    }

    #[allow(clippy::type_complexity, reason = "a seat, and the channel that notifies of its dispatch")]
    fn start(
        self: &Arc<Self>,
        user: &UserInfo,
        info: &RequestInfo,
        query: &knarr_wire::query::Query,
        known: Option<Known>,
    ) -> Result<(Seat, Option<oneshot::Receiver<()>>), Refused> {
        let now = self.clock.monotonic();
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(schema) = state.levels.classify(user, info) else {
            return Ok((Seat::nowhere(Arc::clone(self)), None));
        };
        let Some(level) = state.levels.levels.get_mut(&schema.level) else {
            return Ok((Seat::nowhere(Arc::clone(self)), None));
        };
        let classified = Classified {
            schema: schema.name.clone(),
            schema_uid: schema.uid.clone(),
            level: schema.level.clone(),
            level_uid: level.uid.clone(),
        };
        let labels = [classified.schema.as_str(), classified.level.as_str()];
        let work = estimate::estimate(info, query, known, level.max_seats);
        let flow = schema.flow(user, info);
        self.metrics.record(Metric::FairnessSeats, &labels, work.max_seats() as f64);
        if !matches!(info.verb.as_str(), "get" | "list" | "watch") && info.is_resource {
            let watchers = known.map_or(0, |k| k.watchers);
            self.metrics.record(Metric::FairnessWatchCount, &labels, watchers as f64);
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let hash = shuffle::hash(&schema.name, &flow);
        let started = level.queues.start(now, id, work, hash);
        let mut turn = None;
        match started {
            Started::Rejected(reason) => {
                level.note_demand(now);
                drop(guard);
                let retry_after_seconds = self.refuse(&classified, reason);
                return Err(Refused { classified, retry_after_seconds });
            }
            Started::Executing => self.began(&classified, work),
            Started::Queued { length } => {
                let (sender, receiver) = oneshot::channel();
                state.waiters.insert(id, sender);
                turn = Some(receiver);
                self.metrics.record(Metric::FairnessQueueLength, &labels, length as f64);
                self.metrics.add(Metric::FairnessInqueue, &labels, 1.0);
                self.metrics.add(Metric::FairnessInqueueSeats, &labels, work.max_seats() as f64);
            }
        }
        let detail = Detail {
            schema: schema.name.clone(),
            flow,
            arrived: self.clock.now(),
            work,
            user: user.name.clone(),
            info: info.clone(),
        };
        state.details.insert(id, detail);
        self.dispatch(state, &classified.level, now);
        self.active.notify_one();
        // A request that was dispatched at once need not wait for the notification.
        let waiting = turn.is_some() && state.waiters.contains_key(&id);
        drop(guard);
        let mut seat = Seat::new(Arc::clone(self), id, classified, work, now);
        if waiting {
            seat.queue_up();
            return Ok((seat, turn));
        }
        if turn.is_some() {
            seat.waited(Duration::ZERO, true);
        }
        Ok((seat, None))
    }

    /// Dispatches the requests that may execute now.
    fn dispatch(&self, state: &mut State, level: &str, now: Duration) {
        let Some(one) = state.levels.levels.get_mut(level) else { return };
        one.queues.no_accommodation = None;
        for id in one.queues.dispatch(now) {
            if let Some(detail) = state.details.get(&id) {
                let classified = Classified {
                    schema: detail.schema.clone(),
                    level: level.to_owned(),
                    ..Classified::default()
                };
                let labels = [classified.schema.as_str(), level];
                self.metrics.add(Metric::FairnessInqueue, &labels, -1.0);
                self.metrics.add(Metric::FairnessInqueueSeats, &labels, -(detail.work.max_seats() as f64));
                self.began(&classified, detail.work);
            }
            if let Some(waiter) = state.waiters.remove(&id) {
                // If the waiting request has been dropped, its seat is released with it.
                let _ = waiter.send(());
            }
        }
        if let Some(detail) = one.queues.no_accommodation.and_then(|id| state.details.get(&id)) {
            self.metrics.increment(Metric::FairnessNoAccommodation, &[&detail.schema, level]);
        }
        one.note_demand(now);
    }

    fn began(&self, classified: &Classified, work: Work) {
        let labels = [classified.schema.as_str(), classified.level.as_str()];
        self.metrics.increment(Metric::FairnessDispatched, &labels);
        self.metrics.add(Metric::FairnessExecuting, &labels, 1.0);
        self.metrics.add(Metric::FairnessExecutingSeats, &labels, work.max_seats() as f64);
    }

    /// Removes a request from its queue; returns false if it has been dispatched already.
    fn give_up(&self, seat: &Seat) -> bool {
        let now = self.clock.monotonic();
        let mut state = self.lock();
        let level = &seat.classified.level;
        let cancelled = state.levels.levels.get_mut(level).is_some_and(|l| l.queues.cancel(now, seat.id));
        if cancelled {
            state.waiters.remove(&seat.id);
            state.details.remove(&seat.id);
            let labels = [seat.classified.schema.as_str(), level.as_str()];
            self.metrics.add(Metric::FairnessInqueue, &labels, -1.0);
            self.metrics.add(Metric::FairnessInqueueSeats, &labels, -(seat.work.max_seats() as f64));
            self.dispatch(&mut state, level, now);
        }
        cancelled
    }

    /// Releases a seat, at once or after the additional latency of the request.
    fn finish(self: &Arc<Self>, seat: &Seat) {
        if seat.waits() && self.give_up(seat) {
            return;
        }
        let now = self.clock.monotonic();
        let mut state = self.lock();
        state.details.remove(&seat.id);
        state.waiters.remove(&seat.id);
        let level = seat.classified.level.clone();
        let Some(one) = state.levels.levels.get_mut(&level) else { return };
        let linger = one.queues.finish(now, seat.id);
        let labels = [seat.classified.schema.as_str(), level.as_str()];
        self.metrics.add(Metric::FairnessExecuting, &labels, -1.0);
        self.dispatch(&mut state, &level, now);
        drop(state);
        let seats = -(seat.work.max_seats() as f64);
        match (linger, tokio::runtime::Handle::try_current()) {
            (Some(linger), Ok(runtime)) => {
                let (fairness, id, schema) = (Arc::clone(self), seat.id, seat.classified.schema.clone());
                runtime.spawn(async move {
                    fairness.clock.sleep(linger).await;
                    fairness.release(&level, id);
                    fairness.metrics.add(Metric::FairnessExecutingSeats, &[&schema, &level], seats);
                });
            }
            (Some(_), Err(_)) => self.release(&level, seat.id),
            (None, _) => self.metrics.add(Metric::FairnessExecutingSeats, &labels, seats),
        }
    }

    fn release(&self, level: &str, id: Id) {
        let now = self.clock.monotonic();
        let mut state = self.lock();
        if let Some(one) = state.levels.levels.get_mut(level) {
            one.queues.release(now, id);
        }
        self.dispatch(&mut state, level, now);
    }

    /// Counts a rejection. Returns the Retry-After in seconds, which grows with the number of rejections.
    fn refuse(&self, classified: &Classified, reason: &str) -> u64 {
        const LONGEST: u64 = 32;
        self.metrics.increment(Metric::FairnessRejected, &[&classified.schema, &classified.level, reason]);
        let now = self.clock.monotonic();
        let mut state = self.lock();
        let retry = state.retries.entry(classified.level.clone()).or_default();
        retry.after = retry.after.max(1);
        if now.saturating_sub(retry.since) >= Duration::from_secs(retry.after) {
            if retry.refused >= 3 * retry.after {
                retry.after = (retry.after * 2).min(LONGEST);
            } else if retry.refused < retry.after {
                retry.after = (retry.after - 1).max(1);
            }
            (retry.since, retry.refused) = (now, 0);
        }
        retry.refused += 1;
        retry.after
    }
}

fn typed<K: knarr_api::kind::Kind>(cache: Option<&Cache>) -> Vec<Arc<K>> {
    cache.into_iter().flat_map(|c| c.list(None)).filter_map(|o| o.typed::<K>().ok()).collect()
}

/// Divides the seats periodically while requests exist.
pub async fn rebalance(fairness: Arc<Fairness>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = fairness.active.notified() => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = fairness.clock.sleep(BORROW_EVERY) => {}
        }
        let now = fairness.clock.monotonic();
        let mut state = fairness.lock();
        state.levels.borrow(now);
        let names: Vec<String> = state.levels.levels.keys().cloned().collect();
        for name in names {
            fairness.dispatch(&mut state, &name, now);
        }
        fairness.show_limits(&state.levels);
    }
}

#[cfg(test)]
mod tests;
