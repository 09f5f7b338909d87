//! Streams of exec'd and attached processes for async callers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::client::ExecGuard;
use super::status::TerminalSize;
use super::{Error, Result, sys};

/// The output of a process.
#[derive(Debug)]
pub struct Reader(AsyncFd<OwnedFd>);

/// The input of a process; dropping it closes a pipe, but not a terminal.
#[derive(Debug)]
pub struct Writer(AsyncFd<OwnedFd>);

impl Reader {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        sys::set_nonblocking(fd.as_fd())?;
        // SAFETY: the descriptor is owned by the AsyncFd and neither replaced nor closed before it.
        Ok(Self(unsafe { AsyncFd::register(fd)? }))
    }
}

impl Writer {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        sys::set_nonblocking(fd.as_fd())?;
        // SAFETY: the descriptor is owned by the AsyncFd and neither replaced nor closed before it.
        Ok(Self(unsafe { AsyncFd::register(fd)? }))
    }
}

impl AsyncRead for Reader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            let space = buffer.initialize_unfilled();
            match guard.try_io(|fd| sys::read(fd.get_ref().as_fd(), space)) {
                Ok(Ok(count)) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // EIO means that the last process has closed the terminal.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            match guard.try_io(|fd| sys::write(fd.get_ref().as_fd(), bytes)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return Poll::Ready(result),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// An exec'd process. Streams that were not requested are `None`; with a terminal, `stdout` is its output and
/// `stdin`, if requested, its input.
pub struct ExecStreams {
    pub stdin: Option<Writer>,
    pub stdout: Option<Reader>,
    pub stderr: Option<Reader>,
    pub(super) terminal: Option<OwnedFd>,
    pub(super) guard: ExecGuard,
    pub(super) exit: oneshot::Receiver<i32>,
    pub(super) sandbox_id: String,
}

impl ExecStreams {
    /// Waits for the exit and returns the exit code, or 128 + signal if the process was killed. Call it at most
    /// once; streams may be taken out before.
    pub async fn wait(&mut self) -> Result<i32> {
        (&mut self.exit).await.map_err(|_| Error::ShimGone(self.sandbox_id.clone()))
    }

    /// Changes the size of the terminal; does nothing without a terminal.
    pub fn resize(&self, size: TerminalSize) -> Result<()> {
        let Some(terminal) = &self.terminal else { return Ok(()) };
        sys::set_window_size(terminal.as_fd(), size.columns, size.rows)
            .map_err(Error::io("resize the terminal"))
    }

    /// Sends a signal to the process and its group.
    pub async fn kill(&self, signal: i32) -> Result<()> {
        self.guard.kill(signal).await
    }
}

/// The streams of a container's first process; they end when the process ends.
#[derive(Debug)]
pub struct AttachStreams {
    pub stdin: Option<Writer>,
    pub stdout: Option<Reader>,
    pub stderr: Option<Reader>,
}
