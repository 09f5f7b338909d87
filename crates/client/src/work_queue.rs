//! A work queue of keys: each key is queued once and processed by one worker at a time, with delays and back-off per
//! key.
//!
//! Source: the contract of `k8s.io/client-go/util/workqueue`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use knarr_apimachinery::clock::Clock;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::metrics::{self, Observed, QueueCounts, Snapshot};

/// The back-off of a failing key: 5 ms, doubled with each failure, 1000 s at most.
const BASE_DELAY: Duration = Duration::from_millis(5);
const MAX_DELAY: Duration = Duration::from_secs(1000);

struct Inner<T> {
    queue: VecDeque<T>,
    /// Keys to process, with the time they were queued.
    dirty: HashMap<T, Duration>,
    /// Keys being processed, with the time they were taken.
    processing: HashMap<T, Duration>,
    /// Keys that are due later. The time is the clock's monotonic one; the number keeps the order of insertion.
    waiting: BinaryHeap<Reverse<(Duration, u64, Keyed<T>)>>,
    due: HashMap<T, Duration>,
    failures: HashMap<T, u32>,
    sequence: u64,
}

/// Puts keys into the heap without comparing them.
struct Keyed<T>(T);
impl<T> PartialEq for Keyed<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<T> Eq for Keyed<T> {}
impl<T> PartialOrd for Keyed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Keyed<T> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// The queue, shared as an `Arc`.
pub struct WorkQueue<T> {
    inner: Mutex<Inner<T>>,
    ready: Notify,
    clock: Arc<dyn Clock>,
    counts: QueueCounts,
}

impl<T: Eq + Hash + Clone + Debug + Send + 'static> WorkQueue<T> {
    /// Creates an empty queue.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let inner = Inner {
            queue: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
            waiting: BinaryHeap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            ready: Notify::new(),
            clock,
            counts: QueueCounts::default(),
        })
    }

    /// Queues a key. A key that is being processed is queued again afterwards.
    pub fn add(&self, key: T) {
        let now = self.clock.monotonic();
        let mut inner = self.lock();
        if self.enqueue(&mut inner, key, now) {
            drop(inner);
            self.ready.notify_one();
        }
    }

    /// Queues the key after `delay`. If it is due earlier already, that time stays.
    pub fn add_after(&self, key: T, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = self.clock.monotonic() + delay;
        let mut inner = self.lock();
        if inner.due.get(&key).is_some_and(|earlier| *earlier <= at) {
            return;
        }
        inner.due.insert(key.clone(), at);
        inner.sequence += 1;
        let sequence = inner.sequence;
        inner.waiting.push(Reverse((at, sequence, Keyed(key))));
        drop(inner);
        // A waiting worker must update its timer.
        self.ready.notify_one();
    }

    /// Queues the key after its back-off, which grows until [`WorkQueue::forget`].
    pub fn add_rate_limited(&self, key: T) {
        self.counts.retried();
        let failures = {
            let mut inner = self.lock();
            let n = inner.failures.entry(key.clone()).or_insert(0);
            *n += 1;
            *n
        };
        let delay = BASE_DELAY.saturating_mul(1 << (failures - 1).min(20)).min(MAX_DELAY);
        self.add_after(key, delay);
    }

    /// How often the key was queued with a back-off since it was last forgotten.
    pub fn failures(&self, key: &T) -> u32 {
        self.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Resets the key's back-off.
    pub fn forget(&self, key: &T) {
        self.lock().failures.remove(key);
    }

    /// Waits for the next key. It is being processed until the caller calls [`WorkQueue::done`].
    pub async fn get(&self) -> T {
        loop {
            let notified = self.ready.notified();
            let next_due = {
                let mut inner = self.lock();
                self.take_due(&mut inner);
                if let Some(key) = inner.queue.pop_front() {
                    let now = self.clock.monotonic();
                    if let Some(added) = inner.dirty.remove(&key) {
                        self.counts.waited(now.saturating_sub(added));
                    }
                    inner.processing.insert(key.clone(), now);
                    if !inner.queue.is_empty() {
                        self.ready.notify_one();
                    }
                    return key;
                }
                inner.waiting.peek().map(|Reverse((at, _, _))| *at)
            };
            match next_due {
                None => notified.await,
                Some(at) => {
                    let wait = at.saturating_sub(self.clock.monotonic());
                    tokio::select! {
                        biased;
                        () = notified => {}
                        () = self.clock.sleep(wait) => {}
                    }
                }
            }
        }
    }

    /// Ends the processing of a key. If it was added in the meantime, it is queued again.
    pub fn done(&self, key: &T) {
        let mut inner = self.lock();
        if let Some(started) = inner.processing.remove(key) {
            self.counts.worked(self.clock.monotonic().saturating_sub(started));
        }
        if inner.dirty.contains_key(key) {
            inner.queue.push_back(key.clone());
            drop(inner);
            self.ready.notify_one();
        }
    }

    /// The number of keys that are ready or delayed.
    pub fn len(&self) -> usize {
        let inner = self.lock();
        inner.queue.len() + inner.due.len()
    }

    /// Returns whether no key is ready or delayed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs `workers` loops that take a key, reconcile it, and requeue it with back-off on an error, until `stop` is
    /// cancelled.
    pub async fn run<F, Fut, E>(
        self: Arc<Self>,
        name: &'static str,
        workers: usize,
        stop: CancellationToken,
        reconcile: F,
    ) where
        F: Fn(T) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send,
        E: std::fmt::Display + Send,
        T: Sync,
    {
        metrics::watch_queue(name, &self);
        let mut running = JoinSet::new();
        for _ in 0..workers {
            let (queue, stop, reconcile) = (Arc::clone(&self), stop.clone(), reconcile.clone());
            running.spawn(async move {
                loop {
                    let key = tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        key = queue.get() => key,
                    };
                    let mut held = Held { queue: &queue, key: key.clone(), is_done: false };
                    let (reconcile, taken) = (reconcile.clone(), key.clone());
                    // A panic for one object must not stop the processing of the others.
                    match AssertUnwindSafe(async move { reconcile(taken).await }).catch_unwind().await {
                        Ok(Ok(())) => queue.forget(&key),
                        Ok(Err(error)) => {
                            tracing::debug!(controller = name, ?key, %error, "will be retried");
                            queue.add_rate_limited(key.clone());
                        }
                        Err(_) => {
                            tracing::error!(controller = name, ?key, "panicked; will be retried");
                            queue.add_rate_limited(key.clone());
                        }
                    }
                    queue.done(&key);
                    held.is_done = true;
                }
            });
        }
        while let Some(ended) = running.join_next().await {
            // If a worker is lost, all of them fail: their supervisor restarts them.
            if let Err(error) = ended
                && error.is_panic()
            {
                resume_unwind(error.into_panic());
            }
        }
    }

    fn take_due(&self, inner: &mut Inner<T>) {
        let now = self.clock.monotonic();
        while let Some(Reverse((at, _, _))) = inner.waiting.peek() {
            if *at > now {
                return;
            }
            let Some(Reverse((at, _, Keyed(key)))) = inner.waiting.pop() else { return };
            // When a key was queued again for an earlier time, its later entry is stale.
            if inner.due.get(&key) == Some(&at) {
                inner.due.remove(&key);
                self.enqueue(inner, key, at);
            }
        }
    }

    /// Queues the key. Returns whether a worker has something new to take.
    fn enqueue(&self, inner: &mut Inner<T>, key: T, now: Duration) -> bool {
        if inner.dirty.contains_key(&key) {
            return false;
        }
        self.counts.added();
        inner.dirty.insert(key.clone(), now);
        if inner.processing.contains_key(&key) {
            return false;
        }
        inner.queue.push_back(key);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key that a worker has taken. If the worker panics, the key is returned: otherwise it would never be processed
/// again.
struct Held<'a, T: Eq + Hash + Clone + Debug + Send + 'static> {
    queue: &'a WorkQueue<T>,
    key: T,
    is_done: bool,
}

impl<T: Eq + Hash + Clone + Debug + Send + 'static> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if !self.is_done {
            self.queue.add(self.key.clone());
            self.queue.done(&self.key);
        }
    }
}

impl<T: Eq + Hash + Send + Sync> Observed for WorkQueue<T> {
    fn snapshot(&self) -> Snapshot {
        let now = self.clock.monotonic();
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let running = inner.processing.values().map(|started| now.saturating_sub(*started));
        let (all, longest) = running.fold(Default::default(), |(all, longest): (Duration, Duration), one| {
            (all + one, longest.max(one))
        });
        self.counts.snapshot(inner.queue.len(), all, longest)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::clock::TokioClock;

    fn queue() -> Arc<WorkQueue<&'static str>> {
        WorkQueue::new(Arc::new(TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_taken_once_and_again_when_added_while_processed() {
        let q = queue();
        q.add("a");
        q.add("a");
        assert_eq!(q.get().await, "a");
        q.add("a");
        q.add("b");
        assert_eq!(q.get().await, "b");
        q.done(&"a");
        assert_eq!(q.get().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn what_goes_through_is_counted() {
        let q = queue();
        q.add("a");
        q.add("a");
        q.add("b");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(q.get().await, "a");
        q.add_rate_limited("c");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = q.snapshot();
        assert_eq!((now.adds, now.depth, now.retries), (2, 1, 1));
        assert_eq!((now.unfinished, now.longest), (2.0, 2.0));
        q.done(&"a");
        let now = q.snapshot();
        assert_eq!((now.waits.count, now.waits.sum, now.works.count, now.works.sum), (1, 1.0, 1, 2.0));
        assert_eq!(now.unfinished, 0.0);
    }

    #[tokio::test(start_paused = true)]
    async fn delays_keep_the_earliest_time() {
        let q = queue();
        let start = tokio::time::Instant::now();
        q.add_after("late", Duration::from_secs(60));
        q.add_after("late", Duration::from_secs(5));
        q.add_after("late", Duration::from_secs(90));
        assert_eq!(q.get().await, "late");
        assert_eq!(start.elapsed().as_secs(), 5);
        q.done(&"late");
        assert!(q.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_exponentially_until_forgotten() {
        let q = queue();
        for expected_ms in [5, 10, 20] {
            let start = tokio::time::Instant::now();
            q.add_rate_limited("a");
            assert_eq!(q.get().await, "a");
            assert_eq!(start.elapsed().as_millis(), expected_ms);
            q.done(&"a");
        }
        q.forget(&"a");
        assert_eq!(q.failures(&"a"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_whose_worker_ends_with_it_is_given_back() {
        let queue = queue();
        queue.add("a");
        let reconcile = |_: &'static str| std::future::pending::<Result<(), std::io::Error>>();
        let working = tokio::spawn(Arc::clone(&queue).run("lost", 1, CancellationToken::new(), reconcile));
        while !queue.is_empty() {
            tokio::task::yield_now().await;
        }
        working.abort();
        assert!(working.await.unwrap_err().is_cancelled());
        assert_eq!(queue.get().await, "a");
        queue.done(&"a");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_failure_of_one_key() {
        let queue = queue();
        let stop = CancellationToken::new();
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        let failed = Arc::new(AtomicBool::new(false));
        let working =
            tokio::spawn(Arc::clone(&queue).run("test", 1, stop.clone(), move |key: &'static str| {
                sender.send(key).unwrap();
                let first = key == "bad" && !failed.swap(true, Ordering::Relaxed);
                async move {
                    assert!(!first, "a fault in the code");
                    Ok::<(), std::io::Error>(())
                }
            }));
        queue.add("bad");
        queue.add("good");
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.push(receiver.recv().await.unwrap());
        }
        stop.cancel();
        working.await.unwrap();
        assert_eq!(seen, ["bad", "good", "bad"], "the others go on, and it is tried again");
    }
}
