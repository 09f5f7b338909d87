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

/// Connections at the same time: each log that is followed and each exec has one of its own.
const MAX_CONNECTIONS: usize = 1000;
/// Of them, from one address that is not the node's own.
const MAX_PER_ADDRESS: usize = 500;
/// Connections get one in so many of the files that the process may open.
const OPEN_FILES_SHARE: u64 = 8;

/// What the server is told at its start.
#[derive(Clone)]
pub struct Options {
    pub address: SocketAddr,
    /// What handshakes show; whoever renews it keeps a reference.
    pub serving: Arc<ServingCertificate>,
    /// When the certificate ends that the kubelet shows to the API server.
    pub client_not_after: NotAfter,
    /// Who signs the certificates of clients; whoever follows changes keeps a reference.
    pub clients: Arc<ClientAuthorities>,
    pub node_name: String,
    /// What /configz shows.
    pub configz: Value,
    /// What /flagz shows.
    pub flags: Vec<(String, String)>,
    /// What other parts of the node have counted, for /metrics.
    pub other_metrics: OtherMetrics,
    pub folders: Folders,
    /// How many files the process may open.
    pub open_files: u64,
}

/// A server that listens and does not answer yet.
pub struct BoundServer {
    listener: std::net::TcpListener,
    tls: Arc<rustls::ServerConfig>,
    handler: Arc<Handler>,
    limits: Limits,
}

/// Listens. `client` asks the API server about tokens and rights.
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
    // A session that is taken up again would go by authorities of before.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

impl BoundServer {
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`; connections that are open then are closed. May be called again after an end.
    pub fn serve(&self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        let (tls, handler) = (Arc::clone(&self.tls), Arc::clone(&self.handler));
        let (node, limits) = (Arc::new(Node { tls, handler, stop: stop.clone() }), self.limits.clone());
        let listener = self.listener.try_clone();
        Box::pin(async move {
            match listener.and_then(TcpListener::from_std) {
                Ok(listener) => knarr_serving::serve(node, listener, limits, stop).await,
                Err(error) => tracing::error!(%error, "the kubelet's listening socket cannot be used"),
            }
        })
    }
}

/// Limits of the kubelet's connections, in a process that may open so many files.
fn limits(open_files: u64) -> Limits {
    let most = Limits { connections: MAX_CONNECTIONS, per_address: MAX_PER_ADDRESS, ..Limits::default() };
    Limits { drain: Duration::ZERO, ..most }.within_open_files(open_files, OPEN_FILES_SHARE)
}

/// The service behind the connections.
pub(super) struct Node {
    pub tls: Arc<rustls::ServerConfig>,
    pub handler: Arc<Handler>,
    /// Ends what was upgraded.
    pub stop: CancellationToken,
}

impl Service for Node {
    /// Whom the client certificate names.
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
            // Every account of the cluster is known; connections belong to those who may do something here.
            answer.extensions_mut().insert(KnownSender);
        }
        if http2 && answer.status() == StatusCode::UNAUTHORIZED {
            // As at the API server: who is not known gets one answer and keeps no connection open.
            answer.extensions_mut().insert(CloseConnection::Now);
        }
        answer
    }
}
