//! Accepts connections, speaks TLS and HTTP on them, and lets them finish when the server stops.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::authn::x509::{Identity, Refused};
use crate::pipeline;
use crate::server::Inner;

/// Connections at a time; further clients wait to be accepted.
const MAX_CONNECTIONS: usize = 10_000;
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
const MAX_HEADER_BYTES: u32 = 1024 * 1024;
const MAX_H2_STREAMS: u32 = 250;
/// Requests under way get this long when the server stops.
const DRAIN: Duration = Duration::from_secs(5);
/// After a failing accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who a connection's client certificate stands for.
pub type Certificate = Option<Result<Identity, Arc<Refused>>>;

pub async fn serve(server: Arc<Inner>, listener: TcpListener, tls: Arc<ServerConfig>) {
    let acceptor = TlsAcceptor::from(tls);
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
            Ok((stream, _)) => {
                let (server, acceptor) = (Arc::clone(&server), acceptor.clone());
                connections.spawn(async move {
                    connection(server, acceptor, stream).await;
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

async fn connection(server: Arc<Inner>, acceptor: TlsAcceptor, stream: TcpStream) {
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
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
    };
    let certificate: Certificate = match (&server.certificates, tls.get_ref().1.peer_certificates()) {
        (Some(verifier), Some(chain)) => Some(verifier.identify(chain, server.clock.now()).map_err(Arc::new)),
        _ => None,
    };
    let shared = Arc::clone(&server);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (server, certificate) = (Arc::clone(&shared), certificate.clone());
        async move { Ok::<_, Infallible>(pipeline::serve(server, request, certificate).await) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_WITHIN);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_concurrent_streams(MAX_H2_STREAMS);
    let mut conn = pin!(builder.serve_connection_with_upgrades(TokioIo::new(tls), service));
    let ended = tokio::select! {
        ended = conn.as_mut() => ended,
        () = server.stop.cancelled() => {
            conn.as_mut().graceful_shutdown();
            tokio::select! {
                ended = conn.as_mut() => ended,
                () = server.clock.sleep(DRAIN) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
