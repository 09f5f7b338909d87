//! Keeps long-running tasks running: a task that panics or ends is logged, counted, and restarted after a back-off.

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use knarr_apimachinery::clock::Clock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::metrics;

const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// When a task fails after running this long, the back-off starts from the beginning.
const BACKOFF_RESET: Duration = Duration::from_secs(300);

/// The name of a task: a label of `knarr_task_restarts_total`, and part of a health check's name. There are few names.
pub type Name = Cow<'static, str>;

/// Whether a task may end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lasts {
    /// Runs until it is stopped; any other end is a failure.
    UntilStopped,
    /// Runs until its work is done; only a panic is a failure.
    UntilDone,
}

/// The health of a supervised task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    pub name: Name,
    /// The reason why the task is not running now, as an error.
    pub result: Result<(), String>,
    /// An error if the task keeps failing: its back-off has become as long as possible, and it has not run for long
    /// since. Restarting the task alone will probably not help.
    pub lasting: Result<(), String>,
}

/// Runs tasks and tracks their health. Clones share the tasks.
#[derive(Clone)]
pub struct Supervisor {
    clock: Arc<dyn Clock>,
    tasks: Arc<Mutex<Tasks>>,
}

/// Tasks by a number of their own, because several may have the same name.
#[derive(Default)]
struct Tasks {
    next: u64,
    running: BTreeMap<u64, Task>,
}

struct Task {
    name: Name,
    /// Why it is not running now.
    down: Option<String>,
    /// Why and when (by the monotonic clock) it failed last, if the longest back-off followed.
    lasting: Option<(String, Duration)>,
}

impl Supervisor {
    /// Creates a supervisor without tasks.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, tasks: Arc::default() }
    }

    /// The clock of the back-offs.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Runs what `start` returns until `stop` is cancelled, and restarts it whenever it panics or ends before that.
    ///
    /// `start` gets a child of `stop` that is cancelled when its future has ended in any way, so that everything the
    /// task has started ends with it.
    pub fn run<F, Fut>(
        &self,
        name: impl Into<Name>,
        stop: CancellationToken,
        start: F,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>
    where
        F: FnMut(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Box::pin(keep(self.enter(name.into()), Lasts::UntilStopped, stop, boxed(start)))
    }

    /// Like [`Supervisor::run`], for a task that may finish before `stop`.
    pub fn run_until_done<F, Fut>(
        &self,
        name: impl Into<Name>,
        stop: CancellationToken,
        start: F,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>>
    where
        F: FnMut(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        Box::pin(keep(self.enter(name.into()), Lasts::UntilDone, stop, boxed(start)))
    }

    /// Like [`Supervisor::run`], in the background.
    pub fn spawn<F, Fut>(&self, name: impl Into<Name>, stop: CancellationToken, start: F) -> JoinHandle<()>
    where
        F: FnMut(CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        tokio::spawn(self.run(name, stop, start))
    }

    /// The health of the tasks, sorted by name. If several have the same name, a failing one is reported.
    pub fn health(&self) -> Vec<Health> {
        let now = self.clock.monotonic();
        let mut by_name: BTreeMap<Name, Health> = BTreeMap::new();
        for task in lock(&self.tasks).running.values() {
            let well = || Health { name: task.name.clone(), result: Ok(()), lasting: Ok(()) };
            let health = by_name.entry(task.name.clone()).or_insert_with(well);
            if let Some(why) = &task.down {
                health.result = Err(why.clone());
            }
            if let Some((why, at)) = &task.lasting
                && now.saturating_sub(*at) < BACKOFF_RESET
            {
                health.lasting = Err(why.clone());
            }
        }
        by_name.into_values().collect()
    }

    fn enter(&self, name: Name) -> Entry {
        let mut tasks = lock(&self.tasks);
        let number = tasks.next;
        tasks.next += 1;
        tasks.running.insert(number, Task { name: name.clone(), down: None, lasting: None });
        drop(tasks);
        Entry { name, number, clock: Arc::clone(&self.clock), tasks: Arc::clone(&self.tasks) }
    }
}

/// A task's entry in the list, removed when the task ends.
struct Entry {
    name: Name,
    number: u64,
    clock: Arc<dyn Clock>,
    tasks: Arc<Mutex<Tasks>>,
}

impl Entry {
    fn failed(&self, why: String, at: Duration, for_the_longest: bool) {
        if let Some(task) = lock(&self.tasks).running.get_mut(&self.number) {
            task.lasting = for_the_longest.then(|| (why.clone(), at));
            task.down = Some(why);
        }
    }

    fn runs_again(&self) {
        if let Some(task) = lock(&self.tasks).running.get_mut(&self.number) {
            task.down = None;
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.tasks).running.remove(&self.number);
    }
}

fn lock(tasks: &Mutex<Tasks>) -> MutexGuard<'_, Tasks> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
type Start = Box<dyn FnMut(CancellationToken) -> Work + Send>;

fn boxed<F, Fut>(mut start: F) -> Start
where
    F: FnMut(CancellationToken) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    Box::new(move |stop| Box::pin(start(stop)))
}

async fn keep(entry: Entry, lasts: Lasts, stop: CancellationToken, mut start: Start) {
    let mut backoff = Backoff::new(FIRST_BACKOFF, LONGEST_BACKOFF, BACKOFF_RESET);
    while !stop.is_cancelled() {
        let why = match attempt(&mut start, &stop).await {
            Ok(()) if lasts == Lasts::UntilDone || stop.is_cancelled() => return,
            Ok(()) => "it ended unexpectedly".to_owned(),
            Err(why) => format!("it panicked: {why}"),
        };
        let now = entry.clock.monotonic();
        let wait = backoff.step(now);
        tracing::error!(task = %entry.name, why, restart_in = ?wait, "a task failed and will be restarted");
        entry.failed(why, now, backoff.is_longest());
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = entry.clock.sleep(wait) => {}
        }
        metrics::task_restarted(&entry.name);
        entry.runs_again();
    }
}

/// Runs a task once. The error is the message of its panic.
async fn attempt(start: &mut Start, stop: &CancellationToken) -> Result<(), String> {
    let own = stop.child_token();
    let _ended = own.clone().drop_guard();
    // Starting the task may panic as well.
    AssertUnwindSafe(async { start(own).await }).catch_unwind().await.map_err(|panic| message(&*panic))
}

/// The message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::clock::TokioClock;

    fn supervisor() -> (Supervisor, TokioClock) {
        let clock = TokioClock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        (Supervisor::new(Arc::new(clock)), clock)
    }

    fn health(of: &Supervisor, name: &str) -> Option<Result<(), String>> {
        of.health().into_iter().find(|h| h.name == name).map(|h| h.result)
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_down_then_restarted_and_counted() {
        let (supervisor, _) = supervisor();
        let stop = CancellationToken::new();
        let (lives, again) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let task = supervisor.spawn("panics", stop.clone(), {
            let (lives, again) = (Arc::clone(&lives), Arc::clone(&again));
            move |stop| {
                let life = lives.fetch_add(1, Ordering::SeqCst);
                let again = Arc::clone(&again);
                async move {
                    assert!(life > 0, "in life {life}");
                    again.notify_one();
                    stop.cancelled().await;
                }
            }
        });
        assert_eq!(health(&supervisor, "panics"), Some(Ok(())));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(health(&supervisor, "panics"), Some(Err("it panicked: in life 0".into())));
        again.notified().await;
        assert_eq!(health(&supervisor, "panics"), Some(Ok(())));
        assert!(metrics::render().contains("knarr_task_restarts_total{task=\"panics\"} 1\n"));
        stop.cancel();
        task.await.unwrap();
        assert_eq!(health(&supervisor, "panics"), None);
        assert_eq!(lives.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_may_be_done_ends_without_a_stop() {
        let (supervisor, clock) = supervisor();
        let stop = CancellationToken::new();
        supervisor.run_until_done("short", stop.clone(), |_| async {}).await;
        assert_eq!(health(&supervisor, "short"), None);

        let lives = Arc::new(AtomicUsize::new(0));
        let task = supervisor.spawn("ends", stop.clone(), {
            let lives = Arc::clone(&lives);
            move |_| {
                lives.fetch_add(1, Ordering::SeqCst);
                async {}
            }
        });
        clock.sleep(Duration::from_secs(200)).await;
        assert_eq!(health(&supervisor, "ends"), Some(Err("it ended unexpectedly".into())));
        // The delays between runs are 0.5, 1, 2, 4, 8, 16, then 30 seconds, plus jitter of up to the same length.
        let lives = lives.load(Ordering::SeqCst);
        assert!((8..=12).contains(&lives), "{lives}");
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_goes_on_failing_says_so_until_it_has_run_for_long() {
        let (supervisor, clock) = supervisor();
        let stop = CancellationToken::new();
        let lives = Arc::new(AtomicUsize::new(0));
        let task = supervisor.spawn("goes-on", stop.clone(), {
            let lives = Arc::clone(&lives);
            move |stop| {
                let life = lives.fetch_add(1, Ordering::SeqCst);
                async move {
                    assert!(life >= 8, "in life {life}");
                    stop.cancelled().await;
                }
            }
        });
        let lasting = || supervisor.health().into_iter().next().unwrap().lasting;
        // Down, for the first time.
        clock.sleep(Duration::from_millis(1)).await;
        assert_eq!(lasting(), Ok(()));
        while lives.load(Ordering::SeqCst) < 9 {
            clock.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(health(&supervisor, "goes-on"), Some(Ok(())));
        assert_eq!(lasting(), Err("it panicked: in life 7".into()));
        clock.sleep(BACKOFF_RESET).await;
        assert_eq!(lasting(), Ok(()));
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_life_left_behind_ends_with_it() {
        let (supervisor, _) = supervisor();
        let stop = CancellationToken::new();
        let (left, mut lefts) = tokio::sync::mpsc::channel(1);
        let task = supervisor.spawn("leaves", stop.clone(), move |own: CancellationToken| {
            let left = left.clone();
            async move {
                tokio::spawn(async move {
                    own.cancelled().await;
                    let _ = left.send(()).await;
                });
            }
        });
        lefts.recv().await.unwrap();
        assert!(!stop.is_cancelled());
        stop.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_of_one_name_are_shown_as_one() {
        let (supervisor, _) = supervisor();
        let stop = CancellationToken::new();
        let waits = |stop: CancellationToken| async move { stop.cancelled().await };
        let _well = supervisor.spawn("pair", stop.clone(), waits);
        let ill = supervisor.spawn("pair", stop.clone(), |_| async { panic!("down") });
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(health(&supervisor, "pair"), Some(Err("it panicked: down".into())));
        ill.abort();
        let _ = ill.await;
        assert_eq!(health(&supervisor, "pair"), Some(Ok(())));
        stop.cancel();
    }
}
