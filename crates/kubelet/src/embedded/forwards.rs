//! Connections into sandboxes: port-forward.
//!
//! A socket belongs to the network namespace in which it was created, wherever it is used. So a thread enters the
//! namespace only for the system calls that create it, and the connection is awaited without a thread.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, oneshot};

use crate::runtime::{Connection, Result, RuntimeError};

/// The maximum of concurrent connections, into all sandboxes and into one.
const MAX_CONNECTIONS: usize = 4096;
const MAX_PER_SANDBOX: usize = 1024;
/// The maximum of threads in other namespaces; each makes two system calls.
const MAX_THREADS: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Counts and limits connections.
pub struct Forwards {
    most: usize,
    most_per_sandbox: usize,
    open: Mutex<BTreeMap<String, usize>>,
    threads: Semaphore,
}

impl Default for Forwards {
    fn default() -> Self {
        Self::new(MAX_CONNECTIONS, MAX_PER_SANDBOX)
    }
}

/// The count of one connection; dropping it decrements the count.
struct Place {
    forwards: Arc<Forwards>,
    sandbox: String,
}

impl Forwards {
    fn new(most: usize, most_per_sandbox: usize) -> Self {
        Self { most, most_per_sandbox, open: Mutex::default(), threads: Semaphore::new(MAX_THREADS) }
    }

    fn take_place(self: &Arc<Self>, sandbox: &str) -> Result<Place> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_sandbox = open.get(sandbox).copied().unwrap_or(0);
        if of_sandbox >= self.most_per_sandbox {
            let text = format!("too many forwarded connections of one pod (at most {of_sandbox})");
            return Err(RuntimeError::Failed(text));
        }
        if open.values().sum::<usize>() >= self.most {
            let text = format!("too many forwarded connections on this node (at most {})", self.most);
            return Err(RuntimeError::Failed(text));
        }
        open.insert(sandbox.to_owned(), of_sandbox + 1);
        Ok(Place { forwards: Arc::clone(self), sandbox: sandbox.to_owned() })
    }

    /// Connects to a loopback port, in the given network namespace or in the process's own.
    pub async fn connect(
        self: &Arc<Self>,
        sandbox: &str,
        netns: Option<PathBuf>,
        port: u16,
    ) -> Result<Box<dyn Connection>> {
        let place = self.take_place(sandbox)?;
        let stream = match self.sockets(netns).await {
            Ok(sockets) => sockets.connect(port).await,
            Err(error) => Err(error),
        };
        let stream = stream.map_err(|error| RuntimeError::Failed(error.to_string()))?;
        Ok(Box::new(Forwarded { stream, _place: place }))
    }

    async fn sockets(&self, netns: Option<PathBuf>) -> io::Result<Sockets> {
        let Some(path) = netns else { return Sockets::new() };
        // Acquiring cannot fail: the semaphore is never closed.
        let _turn = self.threads.acquire().await;
        let (sender, receiver) = oneshot::channel();
        // A new thread: one that has entered another namespace must not be used for anything else.
        std::thread::Builder::new().name("port-forward".into()).spawn(move || {
            let _ = sender.send(Sockets::new_in(path));
        })?;
        receiver.await.unwrap_or_else(|_| Err(io::Error::other("port-forward thread ended")))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.forwards.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&self.sandbox) {
            Some(count @ 2..) => *count -= 1,
            _ => drop(open.remove(&self.sandbox)),
        }
    }
}

/// Sockets that are not connected yet. One of the two address families may be missing.
struct Sockets {
    v4: io::Result<TcpSocket>,
    v6: io::Result<TcpSocket>,
}

impl Sockets {
    fn new() -> io::Result<Self> {
        Ok(Self { v4: TcpSocket::new_v4(), v6: TcpSocket::new_v6() })
    }

    fn new_in(netns: PathBuf) -> io::Result<Self> {
        nix::sched::setns(File::open(netns)?, nix::sched::CloneFlags::CLONE_NEWNET)?;
        Self::new()
    }

    async fn connect(self, port: u16) -> io::Result<TcpStream> {
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        match connect_to(self.v4, v4).await {
            Ok(stream) => Ok(stream),
            Err(first) => connect_to(self.v6, v6).await.map_err(|_| first),
        }
    }
}

async fn connect_to(socket: io::Result<TcpSocket>, address: SocketAddr) -> io::Result<TcpStream> {
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, socket?.connect(address)).await;
    connected.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out")))
}

/// A counted connection.
struct Forwarded {
    stream: TcpStream,
    _place: Place,
}

impl AsyncRead for Forwarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn own_namespace() -> Option<PathBuf> {
        Some("/proc/self/ns/net".into())
    }

    /// A listener whose queue is full: the kernel does not complete further connections.
    fn full_listener() -> (TcpListener, Vec<std::net::TcpStream>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // SAFETY: plain system call.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = listener.local_addr().unwrap();
        let limit = Duration::from_millis(200);
        let waiting = std::iter::from_fn(|| std::net::TcpStream::connect_timeout(&address, limit).ok());
        let waiting: Vec<_> = waiting.take(16).collect();
        assert!(waiting.len() < 16, "the listener takes connections");
        (listener, waiting)
    }

    fn threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|name| name.trim() == "port-forward").count()
    }

    #[tokio::test]
    async fn connections_that_wait_hold_no_thread() {
        let (listener, _waiting) = full_listener();
        let port = listener.local_addr().unwrap().port();
        let forwards = Arc::new(Forwards::default());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let forwards = Arc::clone(&forwards);
            tasks.spawn(async move { forwards.connect("s", own_namespace(), port).await.map(drop) });
        }
        let all_asked = async {
            let asked = || -> usize { forwards.open.lock().unwrap().values().sum() };
            while asked() < 20 || forwards.threads.available_permits() < MAX_THREADS || threads() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(CONNECT_TIMEOUT / 2, all_asked).await.expect("threads wait for connections");
        assert!(tasks.try_join_next().is_none(), "a connection did not wait");
        drop(tasks);
    }

    #[tokio::test]
    async fn bytes_pass_and_places_are_given_back() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let forwards = Arc::new(Forwards::new(3, 2));
        let connect = async |sandbox: &str, netns| forwards.connect(sandbox, netns, port).await;
        let mut first = connect("a", own_namespace()).await.unwrap();
        let (mut accepted, _) = listener.accept().await.unwrap();
        first.write_all(b"ping").await.unwrap();
        first.shutdown().await.unwrap();
        let mut got = String::new();
        accepted.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "ping");
        let _second = connect("a", None).await.unwrap();
        let text = |result: Result<Box<dyn Connection>>| result.err().map(|error| error.to_string());
        let refused = text(connect("a", None).await);
        assert_eq!(refused.as_deref(), Some("too many forwarded connections of one pod (at most 2)"));
        let _third = connect("b", None).await.unwrap();
        let refused = text(connect("b", None).await);
        assert_eq!(refused.as_deref(), Some("too many forwarded connections on this node (at most 3)"));
        drop(first);
        assert_eq!(text(connect("a", None).await), None);
    }

    #[tokio::test]
    async fn a_closed_port_is_an_error() {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let forwards = Arc::new(Forwards::default());
        let error = forwards.connect("a", own_namespace(), port).await.err().unwrap().to_string();
        assert!(error.contains("refused"), "{error}");
        assert!(forwards.open.lock().unwrap().is_empty());
    }
}
