//! Detects idle streams: tunnels, forwarded ports, terminals.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// A stream that records when bytes last moved, in either direction.
#[derive(Debug)]
pub struct IdleMonitor<S> {
    stream: S,
    moved: Moved,
}

/// The time at which bytes last moved.
#[derive(Debug, Clone)]
struct Moved(Arc<Mutex<Instant>>);

impl Moved {
    fn now(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> IdleMonitor<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, moved: Moved(Arc::new(Mutex::new(Instant::now()))) }
    }

    /// Returns when no bytes have moved for the duration `most`.
    pub fn idle_for(&self, most: Duration) -> impl Future<Output = ()> + Send + use<S> {
        let moved = self.moved.clone();
        async move {
            loop {
                let until = moved.last() + most;
                if Instant::now() >= until {
                    return;
                }
                sleep_until(until).await;
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IdleMonitor<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.moved.now();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IdleMonitor<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.moved.now();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_idle_when_nothing_moves() {
        let (near, mut far) = duplex(64);
        let mut near = IdleMonitor::new(near);
        let idle = tokio::spawn(near.idle_for(Duration::from_secs(10)));
        let echo = tokio::spawn(async move {
            let mut byte = [0];
            while near.read_exact(&mut byte).await.is_ok() && near.write_all(&byte).await.is_ok() {}
        });
        let began = Instant::now();
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(9)).await;
            far.write_all(b"x").await.unwrap();
            far.read_exact(&mut [0]).await.unwrap();
        }
        idle.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 5 * 9 + 10);
        echo.abort();
    }
}
