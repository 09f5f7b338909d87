//! Peers that take connections and give nothing for them, over real sockets with short limits.

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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

const SOON: Duration = Duration::from_secs(10);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

struct Greeter {
    tls: Arc<ServerConfig>,
    /// Lets `/wait` answer.
    go: Notify,
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

struct Server {
    address: SocketAddr,
    client: Arc<ClientConfig>,
    greeter: Arc<Greeter>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

fn limits() -> Limits {
    Limits {
        connections: 20,
        handshake: Duration::from_millis(300),
        headers: Duration::from_millis(300),
        idle: Duration::from_millis(300),
        ..Limits::default()
    }
}

impl Server {
    async fn start(limits: Limits) -> Self {
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

    async fn connect(&self, protocol: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = ClientConfig::clone(&self.client);
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// With what becomes ready when the connection ends; `None` where the server takes no connection.
    async fn http1(&self) -> Option<(http1::SendRequest<Empty<Bytes>>, JoinHandle<()>)> {
        let stream = self.connect("http/1.1").await.ok()?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        let ended = tokio::spawn(async move {
            let _ = connection.await;
        });
        Some((sender, ended))
    }

    async fn http2(&self) -> (http2::SendRequest<Empty<Bytes>>, JoinHandle<()>) {
        let stream = TokioIo::new(self.connect("h2").await.unwrap());
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let ended = tokio::spawn(async move {
            let _ = connection.await;
        });
        (sender, ended)
    }
}

fn request(method: Method, path: &str) -> Request<Empty<Bytes>> {
    let uri = format!("https://localhost{path}");
    Request::builder().method(method).uri(uri).header("host", "localhost").body(Empty::new()).unwrap()
}

async fn text(response: Response<Incoming>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

/// Reads until the server has closed.
async fn closed(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut buffer = [0; 1024];
    let reading = async { while matches!(stream.read(&mut buffer).await, Ok(1..)) {} };
    timeout(SOON, reading).await.is_ok()
}

#[tokio::test]
async fn peers_that_never_begin_do_not_keep_others_out() {
    let server = Server::start(limits()).await;
    let mut silent = Vec::new();
    for _ in 0..30 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    // Until their time is over there is no place; then there is.
    let served = async {
        loop {
            if let Some((mut sender, _)) = server.http1().await
                && let Ok(response) = sender.send_request(request(Method::GET, "/")).await
            {
                return text(response).await;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(timeout(SOON, served).await.unwrap(), "hello");
    drop(silent);
}

#[tokio::test]
async fn a_connection_without_a_request_ends() {
    let server = Server::start(limits()).await;
    for (protocol, sent) in [
        ("http/1.1", &b""[..]),
        ("http/1.1", b"GET / HT"),
        // What looks like the beginning of HTTP/2 is HTTP/1, where that was agreed on.
        ("http/1.1", &PREFACE[..20]),
        ("h2", b""),
        ("h2", &PREFACE[..20]),
        ("h2", PREFACE),
        ("h2", &[PREFACE, SETTINGS].concat()),
    ] {
        let mut stream = server.connect(protocol).await.unwrap();
        stream.write_all(sent).await.unwrap();
        assert!(closed(&mut stream).await, "{protocol} {:?}", String::from_utf8_lossy(sent));
    }
}

#[tokio::test]
async fn an_idle_connection_ends_and_a_busy_one_does_not() {
    let server = Server::start(limits()).await;
    let (mut busy, busy_end) = server.http2().await;
    let waiting = tokio::spawn(busy.send_request(request(Method::GET, "/wait")));
    for _ in 0..3 {
        let (mut sender, ended) = server.http2().await;
        let response = sender.send_request(request(Method::GET, "/")).await.unwrap();
        assert_eq!(text(response).await, "hello");
        timeout(SOON, ended).await.unwrap().unwrap();
    }
    let (mut quiet, quiet_end) = server.http1().await.unwrap();
    let response = quiet.send_request(request(Method::GET, "/")).await.unwrap();
    assert_eq!(text(response).await, "hello");
    timeout(SOON, quiet_end).await.unwrap().unwrap();
    // Several idle times have passed.
    assert!(!busy_end.is_finished());
    server.greeter.go.notify_one();
    assert_eq!(text(waiting.await.unwrap().unwrap()).await, "hello");
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_is_dropped_with_its_requests() {
    let limits = Limits {
        ping_interval: Duration::from_millis(200),
        ping_timeout: Duration::from_millis(200),
        idle: Duration::from_secs(600),
        headers: Duration::from_secs(600),
        ..limits()
    };
    let server = Server::start(limits).await;
    let mut stream = server.connect("h2").await.unwrap();
    // GET https /wait on stream 1, HPACK without Huffman codes.
    let block = [&[0x82, 0x87, 0x04, 5][..], b"/wait", &[0x41, 9], b"localhost"].concat();
    let head = [&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1][..], &block].concat();
    stream.write_all(&[PREFACE, SETTINGS, &head].concat()).await.unwrap();
    assert!(closed(&mut stream).await);
}

#[tokio::test]
async fn who_is_not_known_keeps_no_http2_connection() {
    let server = Server::start(Limits { idle: Duration::from_secs(600), ..limits() }).await;
    let (mut sender, ended) = server.http2().await;
    let response = sender.send_request(request(Method::GET, "/unknown")).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(text(response).await, "hello");
    timeout(SOON, ended).await.unwrap().unwrap();

    // Nor by not taking the answer: its window is empty.
    let mut stream = server.connect("h2").await.unwrap();
    let block = [&[0x82, 0x87, 0x04, 8][..], b"/unknown", &[0x41, 9], b"localhost"].concat();
    let head = [&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1][..], &block].concat();
    let no_window = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
    stream.write_all(&[PREFACE, &no_window, &head].concat()).await.unwrap();
    assert!(closed(&mut stream).await);
}

#[tokio::test]
async fn a_stop_ends_idle_connections_at_once() {
    let server = Server::start(Limits { idle: SOON * 60, headers: SOON * 60, ..limits() }).await;
    let (mut sender, ended) = server.http2().await;
    let response = sender.send_request(request(Method::GET, "/")).await.unwrap();
    assert_eq!(text(response).await, "hello");
    server.stop.cancel();
    timeout(SOON, ended).await.unwrap().unwrap();
    timeout(SOON, server.serving).await.unwrap().unwrap();
}
