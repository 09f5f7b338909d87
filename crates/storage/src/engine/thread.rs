//! The commit thread: takes whatever waits and carries it out together, so that it shares an fsync.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::committer::{Committer, Journal, Request};
use super::core::Core;
use crate::options::Options;
use crate::{Error, Result};

/// How long a batch waits to become as large as the one before: a part of what that one took.
const PATIENCE_FRACTION: u32 = 4;
const PATIENCE_MAX: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct CommitThread {
    sender: Option<mpsc::Sender<Request>>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl CommitThread {
    pub(super) fn start(core: Arc<Core>, journal: impl Journal + 'static) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(core.options.queue_requests.max(1));
        let handle = std::thread::Builder::new()
            .name("store-commit".into())
            .spawn(move || work(core, journal, receiver))?;
        Ok(Self { sender: Some(sender), handle: Mutex::new(Some(handle)) })
    }

    pub(super) async fn send(&self, request: Request) -> Result<()> {
        let sender = self.sender.as_ref().ok_or(Error::Closed)?;
        sender.send(request).await.map_err(|_| Error::Closed)
    }
}

impl Drop for CommitThread {
    /// Waits for the writes under way: once the store is dropped its files can be opened again.
    fn drop(&mut self) {
        self.sender = None;
        let handle = self.handle.get_mut().ok().and_then(Option::take);
        if let Some(handle) = handle {
            // A panic there has been reported by its own thread.
            let _ = handle.join();
        }
    }
}

fn work(core: Arc<Core>, journal: impl Journal, receiver: mpsc::Receiver<Request>) {
    let closing = CloseOnExit(Arc::clone(&core));
    let mut committer = Committer::new(Arc::clone(&core), journal);
    let mut queue = Queue { receiver, last_requests: 0, last_commit: Duration::ZERO };
    let mut closes = Vec::new();
    while let Some(requests) = queue.next_batch(&core.options, committer.has_leftovers()) {
        queue.last_requests = requests.len();
        let start = Instant::now();
        closes = committer.run(requests);
        queue.last_commit = start.elapsed();
        if !closes.is_empty() {
            break;
        }
    }
    // Releases the file before anyone is told that the store is closed.
    drop(committer);
    drop(closing);
    for close in closes {
        let _ = close.send(Ok(()));
    }
}

/// Ends the watches when the thread does, in whatever way.
struct CloseOnExit(Arc<Core>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Queue {
    receiver: mpsc::Receiver<Request>,
    last_requests: usize,
    last_commit: Duration,
}

impl Queue {
    /// What waits now, or what comes next if nothing does; an empty batch if there is work besides.
    /// `None` once nobody can send any more.
    fn next_batch(&mut self, options: &Options, leftovers: bool) -> Option<Vec<Request>> {
        let first = if leftovers {
            match self.receiver.try_recv() {
                Ok(request) => request,
                Err(TryRecvError::Empty) => return Some(Vec::new()),
                Err(TryRecvError::Disconnected) => return None,
            }
        } else {
            self.receiver.blocking_recv()?
        };
        let mut bytes = first.bytes();
        let mut requests = vec![first];
        let start = Instant::now();
        let patience = (self.last_commit / PATIENCE_FRACTION).min(PATIENCE_MAX);
        while requests.len() < options.batch_requests && bytes < options.batch_bytes {
            if let Ok(request) = self.receiver.try_recv() {
                bytes += request.bytes();
                requests.push(request);
            } else if requests.len() < self.last_requests && start.elapsed() < patience {
                // Writers that have just been answered come back in a moment. Without them every
                // other batch would be nearly empty, and everyone would wait for its fsync.
                std::thread::yield_now();
            } else {
                break;
            }
        }
        Some(requests)
    }
}
