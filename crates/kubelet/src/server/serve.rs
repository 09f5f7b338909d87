//! Accepts connections: TLS, the client's certificate, HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use knarr_client::Client;
use knarr_client::reviews::UserInfo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handler::Handler;
use crate::pod_lookup::PodLookup;
use crate::runtime::ContainerRuntime;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections at the same time.
const MAX_CONNECTIONS: usize = 1000;
/// How long a failed accept (too many open files) pauses the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the server is told at its start.
#[derive(Clone)]
pub struct Options {
    pub address: SocketAddr,
    /// The serving certificate with its chain, and its key.
    pub cert_pem: String,
    pub key_pem: String,
    /// Signs the certificates of clients.
    pub client_ca_pem: String,
    pub node_name: String,
    /// What /configz shows.
    pub configz: Value,
    /// Where the folders of provisioned volumes are made.
    pub local_path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("cannot listen on {address}")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("the kubelet's certificate, key or client CA cannot be read")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("the kubelet's certificate, key or client CA cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("the kubelet's client CA cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

/// A server that listens and does not answer yet.
pub struct BoundServer {
    listener: TcpListener,
    tls: TlsAcceptor,
    handler: Arc<Handler>,
}

/// Listens. `client` asks the API server about tokens and rights.
pub async fn bind(
    options: Options,
    pods: Arc<dyn PodLookup>,
    runtime: Arc<dyn ContainerRuntime>,
    client: Client,
) -> Result<BoundServer, ServerError> {
    let tls = TlsAcceptor::from(Arc::new(tls_config(&options)?));
    let address = options.address;
    let listener =
        TcpListener::bind(address).await.map_err(|source| ServerError::Bind { address, source })?;
    let handler = Arc::new(Handler::new(
        &options.node_name,
        options.configz,
        pods,
        runtime,
        client,
        options.local_path,
    ));
    Ok(BoundServer { listener, tls, handler })
}

fn tls_config(options: &Options) -> Result<rustls::ServerConfig, ServerError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(options.client_ca_pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    // Clients without a certificate come with a token.
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()?;
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(options.cert_pem.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(options.key_pem.as_bytes())?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

impl BoundServer {
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`; connections that are open then are closed.
    pub fn serve(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.answer(stop))
    }

    async fn answer(self, stop: CancellationToken) {
        let (slots, tracker) = (Arc::new(Semaphore::new(MAX_CONNECTIONS)), TaskTracker::new());
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accept(&self.listener, &slots) => accepted,
            };
            let Some((stream, slot)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let (tls, handler, stop) = (self.tls.clone(), Arc::clone(&self.handler), stop.clone());
            tracker.spawn(async move {
                let _slot = slot;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = connection(stream, tls, handler, stop.clone()) => {}
                }
            });
        }
        tracker.close();
        tracker.wait().await;
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, slot)),
        Err(error) => {
            tracing::debug!(%error, "accept failed");
            None
        }
    }
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, handler: Arc<Handler>, stop: CancellationToken) {
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => return,
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let user = certificate.and_then(|der| UserInfo::of_certificate(der));
    serve_stream(stream, user, handler, stop).await;
}

/// Speaks HTTP on a stream whose other end is known by its certificate, or is not known.
pub(super) async fn serve_stream<S>(
    stream: S,
    user: Option<UserInfo>,
    handler: Arc<Handler>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, user, stop) = (Arc::clone(&handler), user.clone(), stop.clone());
        async move { Ok::<_, std::convert::Infallible>(handler.handle(request, user.as_ref(), &stop).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new());
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}
