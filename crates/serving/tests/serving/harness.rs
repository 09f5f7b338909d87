//! A server that answers with a greeting, and clients of both versions of HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use knarr_serving::{CloseConnection, Limits, Service, serve};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

pub const SOON: Duration = Duration::from_secs(10);
pub struct Greeter {
    tls: Arc<ServerConfig>,
    /// Makes `/wait` answer.
    pub go: Notify,
}

impl Service for Greeter {
    type Peer = SocketAddr;
    type Body = Full<Bytes>;

    fn tls(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.tls)
    }

    fn peer(&self, address: SocketAddr, _: Option<&[CertificateDer<'_>]>) -> SocketAddr {
        address
    }

    async fn answer(&self, _: SocketAddr, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() == "/wait" {
            self.go.notified().await;
        }
        let mut response = Response::new(Full::new(Bytes::from_static(b"hello")));
        if request.uri().path() == "/unknown" {
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            response.extensions_mut().insert(CloseConnection::Now);
        }
        response
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub client: Arc<ClientConfig>,
    pub greeter: Arc<Greeter>,
    pub stop: CancellationToken,
    pub serving: JoinHandle<()>,
}

pub fn limits() -> Limits {
    Limits {
        connections: 20,
        handshake: Duration::from_millis(300),
        headers: Duration::from_millis(300),
        idle: Duration::from_millis(300),
        ..Limits::default()
    }
}

impl Server {
    pub async fn start(limits: Limits) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (greeter, stop) =
            (Arc::new(Greeter { tls: Arc::new(tls), go: Notify::new() }), CancellationToken::new());
        let serving = tokio::spawn(serve(Arc::clone(&greeter), listener, limits, stop.clone()));
        Self { address, client: Arc::new(client), greeter, stop, serving }
    }

    pub async fn connect(&self, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = ClientConfig::clone(&self.client);
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Also returns a task that ends with the connection; `None` if the server does not accept the connection.
    pub async fn http1(&self) -> Option<(http1::SendRequest<Empty<Bytes>>, JoinHandle<()>)> {
        let stream = self.connect("http/1.1").await.ok()?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        let ended = tokio::spawn(async move {
            let _ = connection.await;
        });
        Some((sender, ended))
    }

    pub async fn http2(&self) -> (http2::SendRequest<Empty<Bytes>>, JoinHandle<()>) {
        let stream = TokioIo::new(self.connect("h2").await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let ended = tokio::spawn(async move {
            let _ = connection.await;
        });
        (sender, ended)
    }
}

pub fn request(method: Method, path: &str) -> Request<Empty<Bytes>> {
    let uri = format!("https://localhost{path}");
    Request::builder().method(method).uri(uri).header("host", "localhost").body(Empty::new()).unwrap()
}

pub async fn text(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}
