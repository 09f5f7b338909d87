//! The server's connection to one shim: numbered requests with their answers, and pushes in order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot, watch};

use super::protocol::{
    Decoder, Envelope, Incoming, MAX_FRAME_BYTES, Push, RemoteError, Request, Response, encode,
};
use super::state::SandboxFolder;
use super::status::ContainerStatus;
use super::{Error, Result, protocol, socket};

/// Long, because starting a container may wait for a slow disk or a network file system below its mounts.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
const QUEUE: usize = 64;
const READ_BYTES: usize = 64 << 10;

/// A change of a container that the shim reports, in the order of occurrence.
pub enum Notice {
    Status(ContainerStatus),
    Oom(String),
    Closed,
}

type NoticeFn = Box<dyn Fn(Notice) + Send + Sync>;
type Answer = (Response, Vec<OwnedFd>);
type ExecWaiters = Arc<Mutex<BTreeMap<String, oneshot::Sender<i32>>>>;

struct Call {
    request: Request,
    fds: Vec<OwnedFd>,
    answer: oneshot::Sender<Answer>,
}

/// Cheap to clone; the connection closes with the last clone or when the shim ends.
#[derive(Clone)]
pub struct ShimClient {
    sandbox_id: String,
    calls: mpsc::Sender<Call>,
    exec_waiters: ExecWaiters,
    closed: watch::Receiver<bool>,
}

impl ShimClient {
    /// Connects to the shim; `notice` is called from one task, in order.
    pub fn connect(sandbox_id: &str, folder: &SandboxFolder, notice: NoticeFn) -> io::Result<Self> {
        // The path goes through a descriptor, because the full path may be longer than a socket address allows.
        let directory = File::open(folder.path())?;
        let path = format!("/proc/self/fd/{}/shim.sock", directory.as_raw_fd());
        let stream = std::os::unix::net::UnixStream::connect(path)?;
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        let (calls, queue) = mpsc::channel(QUEUE);
        let (closed_sender, closed) = watch::channel(false);
        let exec_waiters = ExecWaiters::default();
        let driver = Driver {
            stream,
            queue,
            pending: BTreeMap::new(),
            next_number: 1,
            decoder: Decoder::default(),
            exec_waiters: exec_waiters.clone(),
            notice,
        };
        tokio::spawn(async move {
            driver.run().await;
            let _ = closed_sender.send(true);
        });
        Ok(Self { sandbox_id: sandbox_id.to_owned(), calls, exec_waiters, closed })
    }

    /// Sends a request and waits for its answer.
    pub async fn call(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Answer> {
        self.call_within(request, fds, CALL_TIMEOUT).await
    }

    /// Like [`Self::call`], with a time limit.
    pub async fn call_within(&self, request: Request, fds: Vec<OwnedFd>, limit: Duration) -> Result<Answer> {
        let gone = || Error::ShimGone(self.sandbox_id.clone());
        let (sender, receiver) = oneshot::channel();
        let exchange = async {
            self.calls.send(Call { request, fds, answer: sender }).await.map_err(|_| gone())?;
            receiver.await.map_err(|_| gone())
        };
        let answer = tokio::time::timeout(limit, exchange)
            .await
            .map_err(|_| Error::ShimTimeout(limit.as_secs()))??;
        match answer {
            (Response::Error(error), _) => Err(remote_error(error)),
            answer => Ok(answer),
        }
    }

    /// Registers a waiter for the exit of a process that is about to be started by exec.
    pub fn expect_exec(&self, exec_id: &str) -> (ExecGuard, oneshot::Receiver<i32>) {
        let (sender, receiver) = oneshot::channel();
        lock(&self.exec_waiters).insert(exec_id.to_owned(), sender);
        (ExecGuard { client: self.clone(), exec_id: exec_id.to_owned(), started: false }, receiver)
    }

    /// Resolves when the connection has ended.
    pub async fn closed(&self) {
        let mut closed = self.closed.clone();
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

/// Removes the waiter of an exec'd process when dropped. If it is dropped before the start was confirmed, for
/// example because the caller timed out, it also has the process killed, because no other code knows its id.
pub struct ExecGuard {
    client: ShimClient,
    exec_id: String,
    started: bool,
}

impl ExecGuard {
    /// Marks the start as confirmed: dropping the guard no longer kills the process.
    pub fn started(mut self) -> Self {
        self.started = true;
        self
    }

    /// Sends a signal to the process and its group.
    pub async fn kill(&self, signal: i32) -> Result<()> {
        let request = Request::KillExec { exec_id: self.exec_id.clone(), signal };
        self.client.call(request, Vec::new()).await.map(drop)
    }
}

impl Drop for ExecGuard {
    fn drop(&mut self) {
        lock(&self.client.exec_waiters).remove(&self.exec_id);
        if !self.started {
            let request = Request::KillExec { exec_id: self.exec_id.clone(), signal: libc::SIGKILL };
            let (answer, _) = oneshot::channel();
            let _ = self.client.calls.try_send(Call { request, fds: Vec::new(), answer });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remote_error(error: RemoteError) -> Error {
    let RemoteError { kind, message, exit_code } = error;
    match kind {
        protocol::ErrorKind::Start => Error::Start { message, exit_code },
        protocol::ErrorKind::Exec => Error::Exec { message, exit_code },
        protocol::ErrorKind::State | protocol::ErrorKind::NotFound | protocol::ErrorKind::Exists => {
            Error::State(message)
        }
        protocol::ErrorKind::Invalid => Error::Invalid(message),
        protocol::ErrorKind::Other => Error::Shim(message),
    }
}

struct Driver {
    stream: UnixStream,
    queue: mpsc::Receiver<Call>,
    pending: BTreeMap<u64, oneshot::Sender<Answer>>,
    next_number: u64,
    decoder: Decoder,
    exec_waiters: ExecWaiters,
    notice: NoticeFn,
}

impl Driver {
    async fn run(mut self) {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let mut fds = Vec::new();
            let received = tokio::select! {
                call = self.queue.recv() => match call {
                    Some(call) => match self.send(call).await {
                        Ok(()) => continue,
                        Err(error) => Err(error),
                    },
                    None => break,
                },
                count = self.stream.async_io(Interest::READABLE, || {
                    socket::receive(self.stream.as_fd(), &mut buffer, &mut fds)
                }) => count,
            };
            let result = match received {
                Ok(0) => break,
                Ok(count) => {
                    self.decoder.push(&buffer[..count], fds);
                    self.deliver()
                }
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                tracing::warn!(%error, "connection to a shim failed");
                break;
            }
        }
        (self.notice)(Notice::Closed);
        lock(&self.exec_waiters).clear();
    }

    async fn send(&mut self, call: Call) -> io::Result<()> {
        let number = self.next_number;
        self.next_number += 1;
        let bytes =
            encode(&Envelope { number, body: call.request }, call.fds.len()).map_err(io::Error::other)?;
        if bytes.len() > MAX_FRAME_BYTES {
            // The shim would close the connection on it, and the sandbox's other containers would be given up.
            let message = format!("a request of {} bytes is larger than {MAX_FRAME_BYTES}", bytes.len());
            let error = RemoteError { kind: protocol::ErrorKind::Invalid, message, exit_code: 128 };
            let _ = call.answer.send((Response::Error(error), Vec::new()));
            return Ok(());
        }
        self.pending.insert(number, call.answer);
        let mut sent = 0;
        while sent < bytes.len() {
            let fds: Vec<BorrowedFd<'_>> =
                if sent == 0 { call.fds.iter().map(AsFd::as_fd).collect() } else { Vec::new() };
            sent += self
                .stream
                .async_io(Interest::WRITABLE, || socket::send(self.stream.as_fd(), &bytes[sent..], &fds))
                .await?;
        }
        Ok(())
    }

    fn deliver(&mut self) -> io::Result<()> {
        while let Some((body, fds)) = self.decoder.next().map_err(io::Error::other)? {
            let envelope: Envelope<Incoming> = serde_json::from_slice(&body).map_err(io::Error::other)?;
            match envelope.body {
                Incoming::Answer(response) => {
                    // Notify before the caller gets the answer, so that an older state cannot overtake a newer
                    // one.
                    let statuses = match &response {
                        Response::Container(status) => std::slice::from_ref(status),
                        Response::Containers(statuses) => statuses.as_slice(),
                        _ => &[],
                    };
                    for status in statuses {
                        (self.notice)(Notice::Status(status.clone()));
                    }
                    if let Some(answer) = self.pending.remove(&envelope.number) {
                        let _ = answer.send((response, fds));
                    }
                }
                Incoming::Push(Push::Container(status)) => (self.notice)(Notice::Status(status)),
                Incoming::Push(Push::Oom { container_id }) => (self.notice)(Notice::Oom(container_id)),
                Incoming::Push(Push::ExecExited { exec_id, exit_code }) => {
                    let waiter = lock(&self.exec_waiters).remove(&exec_id);
                    if let Some(waiter) = waiter {
                        let _ = waiter.send(exit_code);
                    }
                }
            }
        }
        Ok(())
    }
}
