//! The commit thread: takes all waiting requests and executes them together, so that they share an fsync.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::committer::{Committer, Request};
use super::core::Core;
use super::journal::Journal;
use crate::options::Options;
use crate::{Error, Result};

/// How long a batch waits to become as large as the one before: if that one had at least this many requests, as long as
/// its commit took; if it had fewer, a proportional part of that. Writers share the machine with the commits: the fewer
/// commits there are, the more of it is left for the writers.
const PATIENT_FROM: u32 = 8;
const PATIENCE_MAX: Duration = Duration::from_millis(2);
/// How often a thread that waits for a time checks whether its store was dropped.
const LOOK_FOR_END: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct CommitThread {
    sender: Option<mpsc::Sender<Request>>,
    /// How many requests must be queued to wake the thread; 0 while it does not wait for more requests.
    wanted: Arc<AtomicUsize>,
    thread: Thread,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl CommitThread {
    pub(crate) fn start(core: Arc<Core>, journal: impl Journal + 'static) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(core.options.queue_requests.max(1));
        let wanted = Arc::new(AtomicUsize::new(0));
        let queue = Queue::new(receiver, Arc::clone(&wanted));
        let handle = std::thread::Builder::new()
            .name("store-commit".into())
            .spawn(move || work(core, journal, queue))?;
        let thread = handle.thread().clone();
        Ok(Self { sender: Some(sender), wanted, thread, handle: Mutex::new(Some(handle)) })
    }

    pub(crate) async fn send(&self, request: Request) -> Result<()> {
        let sender = self.sender.as_ref().ok_or(Error::Closed)?;
        sender.send(request).await.map_err(|_| Error::Closed)?;
        // Either this task sees that the thread waits, or the thread sees the request.
        fence(Ordering::SeqCst);
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted > 0 && sender.max_capacity() - sender.capacity() >= wanted {
            self.thread.unpark();
        }
        Ok(())
    }
}

impl Drop for CommitThread {
    /// Waits for the writes in progress: after the store is dropped, its files can be opened again.
    fn drop(&mut self) {
        self.sender = None;
        let handle = self.handle.get_mut().ok().and_then(Option::take);
        if let Some(handle) = handle {
            // The thread has reported its panic itself.
            let _ = handle.join();
        }
    }
}

fn work(core: Arc<Core>, journal: impl Journal, mut queue: Queue) {
    let mut closing =
        CloseOnExit { core: Arc::clone(&core), outcome: Err(not_closed("its writer ended by a fault")) };
    let mut committer = Committer::new(Arc::clone(&core), journal);
    let mut closes = Vec::new();
    while let Some(requests) = queue.next_batch(&core.options, idle(&committer)) {
        queue.last_requests = requests.len();
        let start = Instant::now();
        closes = committer.run(requests);
        queue.last_commit = start.elapsed();
        if !closes.is_empty() {
            break;
        }
    }
    // Releases the file before callers are notified that the store is closed.
    let outcome = committer.close();
    if let Err(error) = &outcome {
        tracing::error!(%error, "the store ended");
    }
    closing.outcome = outcome.clone();
    drop(closing);
    for close in closes {
        let _ = close.send(outcome.clone());
    }
}

/// Ends the watches when the thread ends in any way.
struct CloseOnExit {
    core: Arc<Core>,
    outcome: Result<()>,
}

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.core.close(self.outcome.clone());
    }
}

pub(super) fn not_closed(reason: &str) -> Error {
    Error::NotClosed { reason: reason.into() }
}

/// What a thread does while there are no requests.
enum Idle {
    Wait,
    /// It has something to do after this time, even without requests.
    WaitFor(Duration),
}

fn idle<J: Journal>(committer: &Committer<J>) -> Idle {
    match committer.retry_in() {
        Some(pause) => Idle::WaitFor(pause),
        None if committer.has_leftovers() => Idle::WaitFor(Duration::ZERO),
        None => Idle::Wait,
    }
}

struct Queue {
    receiver: mpsc::Receiver<Request>,
    wanted: Arc<AtomicUsize>,
    last_requests: usize,
    last_commit: Duration,
}

impl Queue {
    fn new(receiver: mpsc::Receiver<Request>, wanted: Arc<AtomicUsize>) -> Self {
        Self { receiver, wanted, last_requests: 0, last_commit: Duration::ZERO }
    }

    /// Returns the waiting requests, or waits for the next one. Returns an empty batch if there is other work to do,
    /// and `None` once all senders are dropped.
    fn next_batch(&mut self, options: &Options, idle: Idle) -> Option<Vec<Request>> {
        let first = match idle {
            Idle::Wait => self.receiver.blocking_recv()?,
            Idle::WaitFor(pause) => match self.first_within(pause) {
                Ok(request) => request,
                Err(TryRecvError::Empty) => return Some(Vec::new()),
                Err(TryRecvError::Disconnected) => return None,
            },
        };
        let mut bytes = first.bytes();
        let mut requests = vec![first];
        self.wait_for_company(options);
        while requests.len() < options.batch_requests && bytes < options.batch_bytes {
            let Ok(request) = self.receiver.try_recv() else { break };
            bytes += request.bytes();
            requests.push(request);
        }
        Some(requests)
    }

    /// Returns the first request, if one arrives in time.
    fn first_within(&mut self, pause: Duration) -> Result<Request, TryRecvError> {
        let start = Instant::now();
        self.wanted.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let first = loop {
            match self.receiver.try_recv() {
                Err(TryRecvError::Empty) => {}
                received => break received,
            }
            let Some(left) = pause.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                break Err(TryRecvError::Empty);
            };
            std::thread::park_timeout(left.min(LOOK_FOR_END));
        };
        self.wanted.store(0, Ordering::Relaxed);
        first
    }

    /// Waits for more requests. Writers that have just been answered usually send their next request soon. Without
    /// this, every other batch would be nearly empty, and all writers would wait for its fsync.
    fn wait_for_company(&self, options: &Options) {
        let most = options.batch_requests.min(self.receiver.max_capacity());
        // One request has arrived already.
        let wanted = self.last_requests.min(most).saturating_sub(1);
        let share = u32::try_from(self.last_requests).map_or(PATIENT_FROM, |n| n.min(PATIENT_FROM));
        let patience = (self.last_commit * share / PATIENT_FROM).min(PATIENCE_MAX);
        let start = Instant::now();
        self.wanted.store(wanted, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.receiver.len() < wanted && !self.receiver.is_closed() {
            let Some(left) = patience.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                break;
            };
            std::thread::park_timeout(left);
        }
        self.wanted.store(0, Ordering::Relaxed);
    }
}
