//! A webhook for tests: an HTTPS server with its own certificate that answers posted JSON with a function.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::tls;

/// The answer of a webhook.
pub enum Reply {
    /// 200 with this JSON.
    Json(Value),
    /// This status code and body.
    Raw(u16, Vec<u8>),
    /// No answer, ever.
    Never,
    /// The connection is closed without an answer.
    HangUp,
}

/// A request that the webhook received.
#[derive(Debug, Clone)]
pub struct Received {
    /// The path, with the query.
    pub path: String,
    /// The Authorization header, or an empty string.
    pub authorization: String,
    pub body: Value,
}

/// A running webhook; dropping it stops it.
pub struct HookServer {
    pub address: SocketAddr,
    /// The authority that signed its certificate.
    pub ca_pem: String,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

type Answer = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;

impl HookServer {
    /// Starts the webhook on the loopback address under a certificate for these names.
    pub async fn start(
        names: &[&str],
        answer: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        Self::start_with(tls::server(names, None).map_err(std::io::Error::other)?, answer).await
    }

    /// Starts the webhook under a certificate that is its own authority.
    pub async fn start_under_own_authority(
        names: &[&str],
        answer: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        Self::start_with(tls::own_authority(names).map_err(std::io::Error::other)?, answer).await
    }

    async fn start_with(
        (tls, ca_pem): (ServerConfig, String),
        answer: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let connections: Arc<AtomicUsize> = Arc::default();
        let (seen, count, answer) =
            (Arc::clone(&received), Arc::clone(&connections), Arc::new(answer) as Answer);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let (acceptor, seen, answer) = (acceptor.clone(), Arc::clone(&seen), Arc::clone(&answer));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service =
                        service_fn(move |request| handle(request, Arc::clone(&seen), Arc::clone(&answer)));
                    // A client that disconnects is no failure of the test.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { address, ca_pem, received, connections, task })
    }

    /// Returns `https://127.0.0.1:PORT/path`.
    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// Returns all requests so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().map(|list| list.clone()).unwrap_or_default()
    }

    /// Returns how many connections were opened so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for HookServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(
    request: Request<Incoming>,
    seen: Arc<Mutex<Vec<Received>>>,
    answer: Answer,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let authorization = parts.headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
    let received = Received {
        path: parts.uri.to_string(),
        authorization: authorization.unwrap_or("").to_owned(),
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
    };
    let reply = answer(&received);
    if let Ok(mut seen) = seen.lock() {
        seen.push(received);
    }
    let (code, body) = match reply {
        Reply::Json(value) => (200, value.to_string().into_bytes()),
        Reply::Raw(code, body) => (code, body),
        Reply::Never => pending().await,
        Reply::HangUp => return Err(std::io::Error::other("hung up")),
    };
    Response::builder()
        .status(code)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body.into()))
        .map_err(std::io::Error::other)
}
