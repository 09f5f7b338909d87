//! The commit thread: takes whatever waits and carries it out together, so that it shares an fsync.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::committer::{Committer, Journal, Request};
use super::shared::Shared;
use crate::options::Options;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct CommitThread {
    sender: Option<mpsc::Sender<Request>>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl CommitThread {
    pub(super) fn start(shared: Arc<Shared>, journal: impl Journal + 'static) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(shared.options.queue_requests.max(1));
        let handle = std::thread::Builder::new()
            .name("store-commit".into())
            .spawn(move || work(shared, journal, receiver))?;
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

fn work(shared: Arc<Shared>, journal: impl Journal, mut receiver: mpsc::Receiver<Request>) {
    let closing = CloseOnExit(Arc::clone(&shared));
    let mut committer = Committer::new(Arc::clone(&shared), journal);
    let mut closes = Vec::new();
    while let Some(requests) = next_batch(&mut receiver, &shared.options, committer.has_leftovers()) {
        closes = committer.run(requests);
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
struct CloseOnExit(Arc<Shared>);

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What waits now, or what comes next if nothing does; an empty batch if there is work besides.
/// `None` once nobody can send any more.
fn next_batch(
    receiver: &mut mpsc::Receiver<Request>,
    options: &Options,
    leftovers: bool,
) -> Option<Vec<Request>> {
    let first = if leftovers {
        match receiver.try_recv() {
            Ok(request) => request,
            Err(TryRecvError::Empty) => return Some(Vec::new()),
            Err(TryRecvError::Disconnected) => return None,
        }
    } else {
        receiver.blocking_recv()?
    };
    let mut bytes = first.bytes();
    let mut requests = vec![first];
    while requests.len() < options.batch_requests && bytes < options.batch_bytes {
        let Ok(request) = receiver.try_recv() else { break };
        bytes += request.bytes();
        requests.push(request);
    }
    Some(requests)
}
