//! Accepts connections, speaks TLS and HTTP on them, and lets them finish when the server stops.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::authn::x509::{Identity, Refused};
use crate::metrics::Metric;
use crate::pipeline;
use crate::server::Inner;

/// Connections at a time; further clients wait to be accepted.
const MAX_CONNECTIONS: usize = 10_000;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Also how long a connection may stay idle, for which there is no limit of its own; upstream closes idle ones after
/// as long.
const HEADERS_WITHIN: Duration = Duration::from_secs(90);
const MAX_HEADER_BYTES: u32 = 1024 * 1024;
const MAX_H2_STREAMS: u32 = 250;
/// Requests under way get this long when the server stops.
const DRAIN: Duration = Duration::from_secs(5);
/// After a failing accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who a connection's client certificate stands for.
#[derive(Clone, Default)]
pub struct Certificate {
    /// As a client; `None` without a certificate, or without authorities for them.
    pub client: Option<Result<Identity, Arc<Refused>>>,
    /// The common name of a proxy that may speak for its clients.
    pub proxy: Option<String>,
    pub peer: Option<IpAddr>,
}

pub async fn serve(server: Arc<Inner>, listener: TcpListener) {
    let connections = TaskTracker::new();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let slot = tokio::select! {
            () = server.stop.cancelled() => break,
            slot = Arc::clone(&slots).acquire_owned() => slot,
        };
        let accepted = tokio::select! {
            () = server.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (Ok(slot), stream) = (slot, accepted) else { break };
        match stream {
            Ok((stream, peer)) => {
                let server = Arc::clone(&server);
                connections.spawn(async move {
                    connection(server, stream, peer.ip()).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                server.clock.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    connections.close();
    tokio::select! {
        () = connections.wait() => {}
        () = server.clock.sleep(DRAIN * 2) => {}
    }
}

async fn connection(server: Arc<Inner>, stream: TcpStream, peer: IpAddr) {
    let settings = server.tls.get(&*server.clock);
    let acceptor = TlsAcceptor::from(Arc::clone(&settings.server));
    // Watch events are small and must not wait for more.
    let _ = stream.set_nodelay(true);
    let tls = tokio::select! {
        tls = acceptor.accept(stream) => tls,
        () = server.clock.sleep(HANDSHAKE_WITHIN) => return,
        () = server.stop.cancelled() => return,
    };
    let tls = match tls {
        Ok(tls) => tls,
        Err(error) => {
            server.metrics.increment(Metric::TlsHandshakeErrors, &[]);
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
    };
    let mut certificate = settings.identify(tls.get_ref().1.peer_certificates(), server.clock.now());
    certificate.peer = Some(peer);
    drop(settings);
    let shared = Arc::clone(&server);
    let leave = Arc::new(Notify::new());
    let told = Arc::clone(&leave);
    let chance = server.config.goaway_chance;
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (server, certificate) = (Arc::clone(&shared), certificate.clone());
        // So that clients of several servers spread anew.
        if chance > 0.0 && request.version() == http::Version::HTTP_2 && fastrand::f64() < chance {
            told.notify_one();
        }
        // In a box of its own: hyper keeps the room for a request as long as the connection lasts, and this takes 25 kB.
        Box::pin(async move { Ok::<_, Infallible>(pipeline::serve(server, request, certificate).await) })
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_concurrent_streams(MAX_H2_STREAMS);
    let mut conn = pin!(builder.serve_connection_with_upgrades(TokioIo::new(tls), service));
    let mut leaving = false;
    let ended = loop {
        tokio::select! {
            ended = conn.as_mut() => break ended,
            () = leave.notified(), if !leaving => {
                leaving = true;
                conn.as_mut().graceful_shutdown();
            }
            () = server.stop.cancelled() => {
            conn.as_mut().graceful_shutdown();
            tokio::select! {
                ended = conn.as_mut() => break ended,
                () = server.clock.sleep(DRAIN) => return,
            }
        }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
