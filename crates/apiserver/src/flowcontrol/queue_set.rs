//! Fair queuing for one priority level: decides which request executes next. It has neither clock nor locks; callers
//! pass the time.
//!
//! Each queue has a virtual time at which its next request would start if all busy queues had shared the seats
//! evenly. The request that would finish first is dispatched first. Source: KEP-1040.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::shuffle;

/// The initial estimate of a request's execution time.
const GUESS: Duration = Duration::from_millis(3);

pub type Id = u64;

/// The cost of a request: seats while it executes, and seats for some time after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub initial_seats: u64,
    pub final_seats: u64,
    pub additional_latency: Duration,
}

impl Work {
    pub fn seats(n: u64) -> Self {
        Self { initial_seats: n, final_seats: 0, additional_latency: Duration::ZERO }
    }

    pub fn max_seats(&self) -> u64 {
        self.initial_seats.max(self.final_seats)
    }

    /// The total cost, in seat-seconds.
    fn total(&self) -> f64 {
        self.initial_seats as f64 * GUESS.as_secs_f64()
            + self.final_seats as f64 * self.additional_latency.as_secs_f64()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queuing {
    /// All requests execute at once.
    Exempt,
    /// Requests that exceed the limit are rejected.
    Reject,
    Queues {
        queues: usize,
        hand: usize,
        length: usize,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub enum Started {
    Executing,
    /// The request is in this queue at this position; it may be dispatched at once.
    Queued {
        length: usize,
    },
    Rejected(&'static str),
}

#[derive(Debug)]
struct Waiting {
    id: Id,
    work: Work,
    /// The virtual time of its arrival.
    arrival: f64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    executing: usize,
    seats: u64,
    /// The virtual time at which its next request starts.
    next: f64,
}

#[derive(Debug)]
struct Executing {
    queue: Option<usize>,
    work: Work,
    started: Duration,
}

/// The state of a queue, for the debug endpoints.
pub struct QueueShown {
    pub waiting: Vec<Id>,
    pub executing: usize,
    pub seats: u64,
    pub next: f64,
    pub initial_seats_sum: u64,
    pub max_seats_sum: u64,
    pub total_work_sum: f64,
}

#[derive(Debug)]
pub struct QueueSet {
    queuing: Queuing,
    limit: u64,
    queues: Vec<Queue>,
    /// The virtual time: the seat-seconds that each busy queue has received.
    virtual_now: f64,
    seen: Duration,
    robin: usize,
    enqueues: usize,
    executing: BTreeMap<Id, Executing>,
    /// Requests that have finished but still hold their seats.
    lingering: BTreeMap<Id, Executing>,
    waiting: usize,
    seats_waiting: u64,
    seats_in_use: u64,
    pub dispatched: u64,
    pub rejected: u64,
    pub cancelled: u64,
    /// The last request that could not be dispatched for lack of seats.
    pub no_accommodation: Option<Id>,
}

impl QueueSet {
    pub fn new(queuing: Queuing, limit: u64, now: Duration) -> Self {
        let mut set = Self {
            queuing,
            limit,
            queues: Vec::new(),
            virtual_now: 0.0,
            seen: now,
            robin: 0,
            enqueues: 0,
            executing: BTreeMap::new(),
            lingering: BTreeMap::new(),
            waiting: 0,
            seats_waiting: 0,
            seats_in_use: 0,
            dispatched: 0,
            rejected: 0,
            cancelled: 0,
            no_accommodation: None,
        };
        set.configure(queuing, limit, now);
        set
    }

    /// Applies a new configuration. Queues beyond the new number drain.
    pub fn configure(&mut self, queuing: Queuing, limit: u64, now: Duration) {
        self.sync(now);
        if let Queuing::Queues { queues, .. } = queuing {
            while self.queues.len() < queues {
                self.queues.push(Queue::default());
            }
        }
        (self.queuing, self.limit) = (queuing, limit);
    }

    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.executing.is_empty()
    }

    pub fn waiting(&self) -> usize {
        self.waiting
    }

    pub fn executing(&self) -> usize {
        self.executing.len()
    }

    /// Returns the number of seats in use and requested.
    pub fn demand(&self) -> u64 {
        self.seats_in_use + self.seats_waiting
    }

    fn sync(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.seen).as_secs_f64();
        self.seen = self.seen.max(now);
        let (mut active, mut wanted) = (0u64, 0u64);
        for queue in &self.queues {
            wanted += queue.seats + queue.waiting.iter().map(|w| w.work.max_seats()).sum::<u64>();
            active += u64::from(!queue.waiting.is_empty() || queue.executing > 0);
        }
        if active > 0 {
            self.virtual_now += wanted.min(self.limit) as f64 / active as f64 * seconds;
        }
    }

    /// Adds a request. The caller then calls [`QueueSet::dispatch`] to find out which requests start.
    pub fn start(&mut self, now: Duration, id: Id, work: Work, hash: u64) -> Started {
        self.sync(now);
        let Queuing::Queues { queues, hand, length } = self.queuing else {
            if !self.fits(work.max_seats()) {
                self.rejected += 1;
                return Started::Rejected("concurrency-limit");
            }
            self.begin(now, id, work, None);
            return Started::Executing;
        };
        let chosen = self.choose(hash, queues, hand);
        let Some(queue) = self.queues.get_mut(chosen) else {
            self.rejected += 1;
            return Started::Rejected("queue-full");
        };
        if self.seats_in_use >= self.limit && queue.waiting.len() >= length {
            self.rejected += 1;
            return Started::Rejected("queue-full");
        }
        if queue.waiting.is_empty() && queue.executing == 0 {
            queue.next = self.virtual_now;
        }
        queue.waiting.push_back(Waiting { id, work, arrival: self.virtual_now });
        let length = queue.waiting.len();
        self.waiting += 1;
        self.seats_waiting += work.max_seats();
        bound(queue);
        Started::Queued { length }
    }

    /// Returns the queue of the flow's hand with the least waiting work.
    fn choose(&mut self, hash: u64, queues: usize, hand: usize) -> usize {
        let dealt = shuffle::deal(hash, queues, hand);
        let offset = self.enqueues.checked_rem(dealt.len()).unwrap_or(0);
        self.enqueues = self.enqueues.wrapping_add(1);
        let mut best = (f64::INFINITY, 0);
        for i in 0..dealt.len() {
            let at = dealt[(offset + i) % dealt.len()];
            let work: f64 = self.queues[at].waiting.iter().map(|w| w.work.total()).sum();
            if work < best.0 {
                best = (work, at);
            }
        }
        best.1
    }

    fn fits(&self, seats: u64) -> bool {
        match self.queuing {
            Queuing::Exempt => true,
            // A request larger than the limit executes alone.
            _ if seats > self.limit => self.executing.is_empty(),
            _ => self.seats_in_use + seats <= self.limit,
        }
    }

    fn begin(&mut self, now: Duration, id: Id, work: Work, queue: Option<usize>) {
        self.seats_in_use += work.max_seats();
        self.dispatched += 1;
        if let Some(own) = queue.and_then(|q| self.queues.get_mut(q)) {
            own.executing += 1;
            own.seats += work.max_seats();
        }
        self.executing.insert(id, Executing { queue, work, started: now });
    }

    /// Returns the requests that start now.
    pub fn dispatch(&mut self, now: Duration) -> Vec<Id> {
        self.sync(now);
        let mut begun = Vec::new();
        while self.waiting > 0 && self.seats_in_use < self.limit {
            let Some(id) = self.dispatch_one(now) else { break };
            begun.push(id);
        }
        begun
    }

    fn dispatch_one(&mut self, now: Duration) -> Option<Id> {
        let mut best: Option<(f64, usize)> = None;
        for _ in 0..self.queues.len() {
            self.robin = (self.robin + 1) % self.queues.len();
            let queue = &self.queues[self.robin];
            let Some(oldest) = queue.waiting.front() else { continue };
            let finish = queue.next + oldest.work.total();
            if best.is_none_or(|(least, _)| finish < least) {
                best = Some((finish, self.robin));
            }
        }
        let (_, at) = best?;
        let seats = self.queues[at].waiting.front().map(|w| (w.id, w.work.max_seats()));
        if let Some((id, seats)) = seats
            && !self.fits(seats)
        {
            self.no_accommodation = Some(id);
            return None;
        }
        let mut chosen = self.queues[at].waiting.pop_front()?;
        self.robin = at;
        self.waiting -= 1;
        self.seats_waiting -= chosen.work.max_seats();
        if chosen.work.final_seats > self.limit && self.limit > 0 {
            // Fewer seats are held longer in proportion.
            let work = chosen.work.final_seats as f64 * chosen.work.additional_latency.as_secs_f64();
            chosen.work.final_seats = self.limit;
            chosen.work.additional_latency = Duration::from_secs_f64(work / self.limit as f64);
        }
        self.begin(now, chosen.id, chosen.work, Some(at));
        let queue = &mut self.queues[at];
        queue.next += chosen.work.total();
        bound(queue);
        Some(chosen.id)
    }

    /// Removes a waiting request that timed out; returns false if it is not waiting any more.
    pub fn cancel(&mut self, now: Duration, id: Id) -> bool {
        self.sync(now);
        for queue in &mut self.queues {
            let Some(at) = queue.waiting.iter().position(|w| w.id == id) else { continue };
            if let Some(gone) = queue.waiting.remove(at) {
                self.waiting -= 1;
                self.seats_waiting -= gone.work.max_seats();
            }
            self.rejected += 1;
            self.cancelled += 1;
            bound(queue);
            return true;
        }
        false
    }

    /// Ends a request. `Some` is how long it keeps its seats; the caller then calls [`QueueSet::release`].
    pub fn finish(&mut self, now: Duration, id: Id) -> Option<Duration> {
        self.sync(now);
        let done = self.executing.remove(&id)?;
        if let Some(queue) = done.queue.and_then(|q| self.queues.get_mut(q)) {
            queue.executing = queue.executing.saturating_sub(1);
            // Replaces the initial estimate by the actual execution time.
            let took = now.saturating_sub(done.started).as_secs_f64();
            queue.next -= done.work.initial_seats as f64 * (GUESS.as_secs_f64() - took);
            bound(queue);
        }
        let linger = done.work.additional_latency;
        self.lingering.insert(id, done);
        if linger.is_zero() {
            self.release(now, id);
            return None;
        }
        Some(linger)
    }

    /// Frees the seats of a finished request.
    pub fn release(&mut self, now: Duration, id: Id) {
        self.sync(now);
        let Some(done) = self.lingering.remove(&id) else { return };
        let seats = done.work.max_seats();
        self.seats_in_use = self.seats_in_use.saturating_sub(seats);
        if let Some(queue) = done.queue.and_then(|q| self.queues.get_mut(q)) {
            queue.seats = queue.seats.saturating_sub(seats);
        }
    }

    pub fn show(&self) -> Vec<QueueShown> {
        let one = |queue: &Queue| QueueShown {
            waiting: queue.waiting.iter().map(|w| w.id).collect(),
            executing: queue.executing,
            seats: queue.seats,
            next: queue.next,
            initial_seats_sum: queue.waiting.iter().map(|w| w.work.initial_seats).sum(),
            max_seats_sum: queue.waiting.iter().map(|w| w.work.max_seats()).sum(),
            total_work_sum: queue.waiting.iter().map(|w| w.work.total()).sum(),
        };
        self.queues.iter().map(one).collect()
    }

    /// Returns the executing requests, with their queue and start time.
    pub fn running(&self) -> impl Iterator<Item = (Id, Option<usize>, Duration)> {
        self.executing.iter().map(|(id, e)| (*id, e.queue, e.started))
    }
}

/// Raises the queue's virtual time: an idle queue does not accumulate credit.
fn bound(queue: &mut Queue) {
    if let Some(oldest) = queue.waiting.front() {
        queue.next = queue.next.max(oldest.arrival);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn queued(limit: u64) -> QueueSet {
        QueueSet::new(Queuing::Queues { queues: 8, hand: 1, length: 50 }, limit, Duration::ZERO)
    }

    /// With a hand size of one, the hash selects the queue.
    fn enqueue(set: &mut QueueSet, now: Duration, id: Id, flow: u64) -> Vec<Id> {
        assert!(matches!(set.start(now, id, Work::seats(1), flow), Started::Queued { .. }));
        set.dispatch(now)
    }

    #[test]
    fn what_fits_begins_and_the_rest_waits() {
        let mut set = queued(2);
        assert_eq!(enqueue(&mut set, MS, 1, 0), [1]);
        assert_eq!(enqueue(&mut set, MS, 2, 0), [2]);
        assert_eq!(enqueue(&mut set, MS, 3, 0), Vec::<Id>::new());
        assert_eq!((set.waiting(), set.executing(), set.demand()), (1, 2, 3));
        assert_eq!(set.finish(MS * 2, 1), None);
        assert_eq!(set.dispatch(MS * 2), [3]);
        for id in [2, 3] {
            set.finish(MS * 3, id);
        }
        assert!(set.is_idle() && set.demand() == 0);
        assert_eq!(set.dispatched, 3);
    }

    #[test]
    fn flows_take_turns_however_much_they_ask() {
        let mut set = queued(1);
        enqueue(&mut set, Duration::ZERO, 1000, 0);
        // One flow sends forty requests before the other sends five.
        for id in 0..40 {
            enqueue(&mut set, Duration::ZERO, id, 0);
        }
        for id in 100..105 {
            enqueue(&mut set, Duration::ZERO, id, 1);
        }
        let (mut now, mut running, mut order) = (Duration::ZERO, 1000, Vec::new());
        for _ in 0..10 {
            now += MS * 10;
            set.finish(now, running);
            running = set.dispatch(now)[0];
            order.push(running);
        }
        let other = order.iter().filter(|id| **id >= 100).count();
        assert_eq!(other, 5, "{order:?}");
    }

    #[test]
    fn full_queues_turn_away() {
        let mut set = QueueSet::new(Queuing::Queues { queues: 1, hand: 1, length: 2 }, 1, MS);
        for (id, expected) in [(1, true), (2, true), (3, true), (4, false)] {
            let started = set.start(MS, id, Work::seats(1), 0);
            set.dispatch(MS);
            assert_eq!(started != Started::Rejected("queue-full"), expected, "{id}");
        }
        assert!(set.cancel(MS, 2) && !set.cancel(MS, 2) && !set.cancel(MS, 1));
        assert_eq!(set.waiting(), 1);
        assert_eq!((set.rejected, set.cancelled), (2, 1));
    }

    #[test]
    fn without_queues_what_does_not_fit_is_turned_away() {
        let mut set = QueueSet::new(Queuing::Reject, 2, MS);
        assert_eq!(set.start(MS, 1, Work::seats(2), 0), Started::Executing);
        assert_eq!(set.start(MS, 2, Work::seats(1), 0), Started::Rejected("concurrency-limit"));
        set.finish(MS, 1);
        assert_eq!(set.start(MS, 3, Work::seats(9), 0), Started::Executing, "too large goes alone");
        let mut exempt = QueueSet::new(Queuing::Exempt, 0, MS);
        for id in 0..100 {
            assert_eq!(exempt.start(MS, id, Work::seats(5), 0), Started::Executing);
        }
    }

    #[test]
    fn seats_linger_after_a_write_that_many_watch() {
        let mut set = queued(10);
        let work = Work { initial_seats: 1, final_seats: 10, additional_latency: MS * 5 };
        set.start(MS, 1, work, 0);
        assert_eq!(set.dispatch(MS), [1]);
        assert_eq!(set.demand(), 10);
        assert_eq!(set.finish(MS * 2, 1), Some(MS * 5));
        assert_eq!(enqueue(&mut set, MS * 2, 2, 1), Vec::<Id>::new());
        set.release(MS * 7, 1);
        assert_eq!(set.dispatch(MS * 7), [2]);
    }

    #[test]
    fn nothing_is_lost_whatever_happens() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let limit = random.u64(1..6);
            let mut set =
                QueueSet::new(Queuing::Queues { queues: 4, hand: 2, length: 5 }, limit, Duration::ZERO);
            let (mut now, mut running, mut waiting) = (Duration::ZERO, Vec::new(), Vec::new());
            for id in 0..300 {
                now += MS * random.u32(0..4);
                match random.u8(0..4) {
                    0 | 1 => {
                        let work = Work::seats(random.u64(1..8));
                        if let Started::Queued { .. } = set.start(now, id, work, random.u64(..)) {
                            waiting.push(id);
                        }
                    }
                    2 if !running.is_empty() => {
                        let done = running.swap_remove(random.usize(0..running.len()));
                        set.finish(now, done);
                    }
                    3 if !waiting.is_empty() => {
                        let gone = waiting.swap_remove(random.usize(0..waiting.len()));
                        assert!(set.cancel(now, gone));
                    }
                    _ => {}
                }
                for begun in set.dispatch(now) {
                    waiting.retain(|w| *w != begun);
                    running.push(begun);
                }
                assert_eq!((set.waiting(), set.executing()), (waiting.len(), running.len()));
                assert!(!running.is_empty() || waiting.is_empty(), "seats are free and somebody waits");
            }
        }
    }
}
