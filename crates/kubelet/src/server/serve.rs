//! Accepts connections: TLS, the client's certificate, HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, StatusCode, Version};
use hyper::body::Incoming;
use knarr_client::Client;
use knarr_client::reviews::CertifiedUser;
use knarr_serving::{CloseConnection, KnownSender, Limits, Service};
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, Body};
use super::certificates::{Certificates, NotAfter};
use super::client_authorities::ClientAuthorities;
use super::error::ServerError;
use super::families::OtherMetrics;
use super::handler::{Folders, Handler, Shown};
use super::serving_certificate::ServingCertificate;
use crate::pod_lookup::PodLookup;
use crate::runtime::ContainerRuntime;

/// The maximum of concurrent connections: each followed log and each exec has its own.
const MAX_CONNECTIONS: usize = 1000;
/// The maximum of connections from one address that is not the node's own.
const MAX_PER_ADDRESS: usize = 500;
/// Connections may use one in this many of the process's file descriptors.
const OPEN_FILES_SHARE: u64 = 8;

/// The settings of the server.
#[derive(Clone)]
pub struct Options {
    pub address: SocketAddr,
    /// The certificate for handshakes; the task that renews it keeps a reference.
    pub serving: Arc<ServingCertificate>,
    /// When the kubelet's client certificate for the API server expires.
    pub client_not_after: NotAfter,
    /// The authorities of client certificates; the task that follows changes keeps a reference.
    pub clients: Arc<ClientAuthorities>,
    pub node_name: String,
    /// The content of /configz.
    pub configz: Value,
    /// The content of /flagz.
    pub flags: Vec<(String, String)>,
    /// The metrics of other parts of the node, for /metrics.
    pub other_metrics: OtherMetrics,
    pub folders: Folders,
    /// The limit of open files of the process.
    pub open_files: u64,
}

/// A server that listens, and does not accept connections yet.
pub struct BoundServer {
    listener: std::net::TcpListener,
    tls: Arc<rustls::ServerConfig>,
    handler: Arc<Handler>,
    limits: Limits,
}

/// Binds the port. `client` is used for TokenReviews and SubjectAccessReviews.
pub async fn bind(
    options: Options,
    pods: Arc<dyn PodLookup>,
    runtime: Arc<dyn ContainerRuntime>,
    client: Client,
) -> Result<BoundServer, ServerError> {
    let (tls, limits) = (Arc::new(tls_config(&options)?), limits(options.open_files));
    let address = options.address;
    let listener = TcpListener::bind(address).await.and_then(TcpListener::into_std);
    let listener = listener.map_err(|source| ServerError::Bind { address, source })?;
    let shown = Shown::new(options.configz, options.flags, client.clock());
    let mut handler = Handler::new(&options.node_name, shown, pods, runtime, client, options.folders);
    handler.certificates = Some(Certificates { serving: options.serving, client: options.client_not_after });
    handler.other_metrics = options.other_metrics;
    let handler = Arc::new(handler);
    Ok(BoundServer { listener, tls, handler, limits })
}

fn tls_config(options: &Options) -> Result<rustls::ServerConfig, ServerError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::clone(&options.clients) as _)
        .with_cert_resolver(Arc::clone(&options.serving) as _);
    // A resumed session would be based on earlier authorities.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

impl BoundServer {
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is cancelled, and then closes open connections. May be called again after it has ended.
    pub fn serve(&self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        let (tls, handler) = (Arc::clone(&self.tls), Arc::clone(&self.handler));
        let (node, limits) = (Arc::new(Node { tls, handler, stop: stop.clone() }), self.limits.clone());
        let listener = self.listener.try_clone();
        Box::pin(async move {
            match listener.and_then(TcpListener::from_std) {
                Ok(listener) => knarr_serving::serve(node, listener, limits, stop).await,
                Err(error) => tracing::error!(%error, "cannot use the kubelet's listening socket"),
            }
        })
    }
}

/// Returns the connection limits for a process with this limit of open files.
fn limits(open_files: u64) -> Limits {
    let most = Limits { connections: MAX_CONNECTIONS, per_address: MAX_PER_ADDRESS, ..Limits::default() };
    Limits { drain: Duration::ZERO, ..most }.within_open_files(open_files, OPEN_FILES_SHARE)
}

/// The service behind the connections.
pub(super) struct Node {
    pub tls: Arc<rustls::ServerConfig>,
    pub handler: Arc<Handler>,
    /// Ends upgraded connections.
    pub stop: CancellationToken,
}

impl Service for Node {
    /// The user of the client certificate.
    type Peer = Option<CertifiedUser>;
    type Body = Body;

    fn tls(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.tls)
    }

    fn peer(&self, _: SocketAddr, chain: Option<&[CertificateDer<'_>]>) -> Option<CertifiedUser> {
        chain.and_then(|chain| chain.first()).and_then(|der| CertifiedUser::read(der))
    }

    fn is_certified(&self, user: &Option<CertifiedUser>) -> bool {
        user.is_some()
    }

    async fn answer(&self, peer: Option<CertifiedUser>, request: Request<Incoming>) -> Answer {
        let user = peer.as_ref().and_then(|peer| peer.user(self.handler.client.clock().now()));
        let http2 = request.version() == Version::HTTP_2;
        let mut answer = self.handler.handle(request, user, &self.stop).await;
        if !matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            // Every account of the cluster can authenticate; only those that may use this server count as known
            // senders.
            answer.extensions_mut().insert(KnownSender);
        }
        if http2 && answer.status() == StatusCode::UNAUTHORIZED {
            // As at the API server, an unauthenticated client gets one answer, and its connection is closed.
            answer.extensions_mut().insert(CloseConnection::Now);
        }
        answer
    }
}
