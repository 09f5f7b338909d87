//! Serves one connection: TLS, HTTP in the version that ALPN chose, and closing.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{io, net::SocketAddr};

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::activity::{Activity, Next};
use crate::answer::{self, CloseConnection, KnownSender};
use crate::limits::Limits;
use crate::listener::Service;
use crate::place::{Place, Standing};
use crate::slots::Slot;

/// The version of HTTP on a connection. ALPN decides it, as in Go: the server does not detect it from the first
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// A stream that keeps its slot, also after it has switched to another protocol.
struct Held<S> {
    stream: S,
    /// Resolves when another connection gets the slot.
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    _slot: Slot,
}

pub(crate) async fn accepted<S: Service>(
    service: Arc<S>,
    (stream, peer): (TcpStream, SocketAddr),
    slot: Slot,
    limits: &Limits,
    stop: CancellationToken,
) {
    // Watch events are small and must not be delayed for more data.
    let _ = stream.set_nodelay(true);
    let place = Arc::clone(slot.place());
    let tls = tokio::select! {
        tls = timeout(limits.handshake, TlsAcceptor::from(service.tls()).accept(stream)) => tls,
        () = stop.cancelled() => return,
        () = place.evicted().cancelled() => return,
    };
    let stream = match tls {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return service.handshake_failed();
        }
        Err(_) => return service.handshake_failed(),
    };
    let session = stream.get_ref().1;
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    let peer = service.peer(peer, session.peer_certificates());
    if service.is_certified(&peer) {
        slot.certify();
    }
    let evicted = Box::pin(place.evicted().clone().cancelled_owned());
    speak_at(place, service, Held { stream, evicted, _slot: slot }, peer, protocol, limits, stop).await;
}

/// Answers the requests of a connection until it ends.
pub async fn speak<S: Service, IO>(
    service: Arc<S>,
    stream: IO,
    peer: S::Peer,
    protocol: Protocol,
    limits: &Limits,
    stop: CancellationToken,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    speak_at(Arc::new(Place::new()), service, stream, peer, protocol, limits, stop).await;
}

/// Like [`speak`], for a connection that ends when its `place` is evicted in favour of another connection.
async fn speak_at<S: Service, IO>(
    place: Arc<Place>,
    service: Arc<S>,
    stream: IO,
    peer: S::Peer,
    protocol: Protocol,
    limits: &Limits,
    stop: CancellationToken,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let doing = Arc::clone(&place);
    let answering = service_fn(move |request: Request<Incoming>| {
        let (service, peer, place) = (Arc::clone(&service), peer.clone(), Arc::clone(&doing));
        let activity = Arc::clone(&place.activity);
        let (running, method) = (activity.begin(), request.method().clone());
        // Boxed separately, because hyper keeps the memory for a request as long as the connection lasts.
        Box::pin(async move {
            let response = service.answer(peer, request).await;
            let close = response.extensions().get::<CloseConnection>().copied();
            if response.extensions().get::<KnownSender>().is_some() {
                place.raise(Standing::Authenticated);
            }
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                place.hand_on();
            }
            if close.is_some() {
                activity.close.notify_one();
            }
            let running = (close != Some(CloseConnection::Now)).then_some(running);
            Ok::<_, Infallible>(answer::prepare(response, &method, running))
        })
    });
    let builder = builder(protocol, limits);
    let conn = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), answering));
    let served = tokio::select! {
        served = supervise(conn, &place.activity, limits, stop) => served,
        () = place.evicted().cancelled() => Ok(()),
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

fn builder(protocol: Protocol, limits: &Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // The timeout also applies between requests: it is the idle limit of HTTP/1.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.idle);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.ping_interval)
        .keep_alive_timeout(limits.ping_timeout)
        .max_header_list_size(limits.header_bytes)
        .max_concurrent_streams(limits.streams);
    match protocol {
        Protocol::Http1 => builder.http1_only(),
        Protocol::Http2 => builder.http2_only(),
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection that can be asked to finish its requests and close.
trait Graceful: Future<Output = Result<(), BoxError>> {
    fn finish(self: Pin<&mut Self>);
}

impl<I, S, E, B> Graceful for hyper_util::server::conn::auto::UpgradeableConnection<'_, I, S, E>
where
    S: hyper::service::Service<Request<Incoming>, Response = http::Response<B>>,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body + 'static,
    B::Error: Into<BoxError>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    E: hyper_util::server::conn::auto::HttpServerConnExec<S::Future, B>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs a connection until it ends, is idle for too long, or the server stops.
async fn supervise(
    mut conn: Pin<&mut impl Graceful>,
    activity: &Activity,
    limits: &Limits,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let mut closing = false;
    let mut look = Instant::now();
    loop {
        let close = tokio::select! {
            ended = conn.as_mut() => return ended,
            () = activity.close.notified() => true,
            () = sleep_until(look) => match activity.next(limits) {
                Next::Look(at) => {
                    look = at;
                    false
                }
                Next::Close => true,
                Next::Drop => return Ok(()),
            },
            () = stop.cancelled() => {
                conn.as_mut().finish();
                return timeout(limits.drain, conn).await.unwrap_or(Ok(()));
            }
        };
        if close && !closing {
            closing = true;
            activity.closing();
            conn.as_mut().finish();
            look = Instant::now();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        // This also ends connections that no longer are HTTP: a terminal, a forwarded port.
        if read.is_pending() && self.evicted.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Held<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::slots::Slots;
    use tokio::io::{AsyncReadExt, duplex};

    #[tokio::test]
    async fn a_connection_ends_when_its_place_is_taken() {
        let limits = Limits { connections: 10, per_address: 1, ..Limits::default() };
        let slots = Arc::new(Slots::default());
        let take = || slots.take("10.0.0.1".parse().unwrap(), false, &limits);
        let slot = take().unwrap();
        let evicted = Box::pin(slot.place().evicted().clone().cancelled_owned());
        let (near, _far) = duplex(64);
        let mut held = Held { stream: near, evicted, _slot: slot };
        let reading = tokio::spawn(async move { held.read_u8().await.map_err(|error| error.kind()) });
        let next = take().unwrap();
        let read = timeout(Duration::from_secs(10), reading).await.unwrap().unwrap();
        assert_eq!(read, Err(io::ErrorKind::ConnectionAborted));
        drop(next);
        take().unwrap();
    }
}
