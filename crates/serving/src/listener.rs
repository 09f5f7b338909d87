//! Accepts connections within the limits, and lets them finish when the server stops.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection;
use crate::limits::Limits;
use crate::slots::{Full, Slots, is_own};

/// The pause after a failed accept, for example because of too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Refused connections are logged at most once in this time.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// Answers the requests of a server.
pub trait Service: Send + Sync + 'static {
    /// What the service knows about a connection's peer.
    type Peer: Clone + Send + 'static;
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Unpin
        + Send
        + 'static;

    /// Returns the certificate and the other TLS settings for the next handshake.
    fn tls(&self) -> Arc<ServerConfig>;

    /// Identifies the peer of a connection, after the handshake.
    fn peer(&self, address: SocketAddr, chain: Option<&[CertificateDer<'_>]>) -> Self::Peer;

    /// Returns whether the peer has presented a client certificate that the service accepts. When the server is
    /// full, such connections are closed last.
    fn is_certified(&self, _: &Self::Peer) -> bool {
        false
    }

    fn answer(
        &self,
        peer: Self::Peer,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Called when a handshake failed or took too long.
    fn handshake_failed(&self) {}
}

/// Accepts connections until `stop`; then running requests have [`Limits::drain`] to end.
pub async fn serve<S: Service>(
    service: Arc<S>,
    listener: TcpListener,
    limits: Limits,
    stop: CancellationToken,
) {
    let (connections, slots) = (TaskTracker::new(), Arc::new(Slots::default()));
    let limits = Arc::new(limits);
    let mut warned = None;
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let local = stream.local_addr().ok().map(|address| address.ip());
        let slot = match slots.take(peer.ip(), is_own(peer.ip(), local), &limits) {
            Ok(slot) => slot,
            Err(full) => {
                warn(&mut warned, peer.ip(), full);
                continue;
            }
        };
        let (service, limits, stop) = (Arc::clone(&service), Arc::clone(&limits), stop.clone());
        connections.spawn(async move {
            connection::accepted(service, (stream, peer), slot, &limits, stop).await;
        });
    }
    connections.close();
    // Every connection ends by itself after the drain.
    let _ = timeout(limits.drain * 2 + ACCEPT_PAUSE, connections.wait()).await;
}

fn warn(warned: &mut Option<Instant>, peer: IpAddr, full: Full) {
    if warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
        *warned = Some(Instant::now());
        tracing::warn!(%peer, reason = %full, "connection refused");
    }
}
