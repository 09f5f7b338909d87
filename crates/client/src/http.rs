//! The transport over HTTPS: HTTP/2 connections that are shared by all calls of one identity.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use http::{HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use knarr_api::kind::ResourceType;
use knarr_tls::{Roots, tls_words};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::error::{Error, Result};
use crate::kubeconfig::Access;
use crate::metrics;
use crate::transport::{List, ListOptions, Transport, WatchStream};
use crate::wire;

/// The number of watches on one connection, which is below the stream limit of common servers.
const WATCHES_PER_CONNECTION: usize = 80;
/// The size limit of a response that is read as a whole, in bytes.
const MAX_ANSWER_BYTES: usize = 1 << 30;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    watches: Arc<AtomicUsize>,
}

/// Connects to an API server by its URL.
#[derive(Clone)]
pub struct HttpTransport {
    link: Arc<Link>,
    authorization: Option<HeaderValue>,
}

/// The connections to one server, which several identities can share if they use tokens.
struct Link {
    server: String,
    host: String,
    port: u16,
    /// Host and port, as in the URL.
    authority: String,
    server_name: ServerName<'static>,
    tls: TlsConnector,
    connections: tokio::sync::Mutex<Vec<Connection>>,
}

impl HttpTransport {
    /// Creates a transport from the access of a kubeconfig. It connects at the first call.
    pub fn new(access: &Access) -> Result<Self> {
        let wrong =
            |what: &str| Error::Protocol(format!("{what} in the kubeconfig's server {:?}", access.server));
        let rest = access.server.strip_prefix("https://").ok_or_else(|| wrong("no https:// scheme"))?;
        let uri: http::Uri = format!("https://{rest}").parse().map_err(|_| wrong("no valid URL"))?;
        let host = uri.host().ok_or_else(|| wrong("no host"))?.trim_matches(['[', ']']).to_owned();
        let name = access.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let server_name = ServerName::try_from(name).map_err(|_| wrong("no valid host name"))?;
        let authorization = access.token.as_deref().map(bearer).transpose()?;
        let link = Link {
            server: access.server.clone(),
            authority: format!("{}:{}", bracket(&host), uri.port_u16().unwrap_or(443)),
            host,
            port: uri.port_u16().unwrap_or(443),
            server_name,
            tls: TlsConnector::from(Arc::new(client_tls(access)?)),
            connections: tokio::sync::Mutex::default(),
        };
        Ok(Self { link: Arc::new(link), authorization })
    }

    /// Returns a transport with the same connections and another token.
    pub fn with_authorization(&self, authorization: HeaderValue) -> Self {
        Self { link: Arc::clone(&self.link), authorization: Some(authorization) }
    }
}

/// Returns the `Authorization` header for a token.
pub fn bearer(token: &str) -> Result<HeaderValue> {
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value.map_err(|_| Error::Protocol("a token with characters that no token has".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

impl Link {
    fn broken(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Connection { server: self.server.clone(), source: source.into() }
    }

    async fn connection(&self, for_watch: bool) -> Result<Connection> {
        let mut connections = self.connections.lock().await;
        connections.retain(|c| !c.sender.is_closed());
        let free = |c: &&Connection| !for_watch || c.watches.load(Ordering::Relaxed) < WATCHES_PER_CONNECTION;
        if let Some(connection) = connections.iter().find(free) {
            return Ok(connection.clone());
        }
        let connection = self.connect().await?;
        connections.push(connection.clone());
        Ok(connection)
    }

    async fn connect(&self) -> Result<Connection> {
        let dial = async {
            let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
            tcp.set_nodelay(true)?;
            let stream = self.tls.connect(self.server_name.clone(), tcp).await;
            stream.map_err(|e| io::Error::new(e.kind(), tls_words(&e, &self.host)))
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, dial)
            .await
            .map_err(|_| self.broken("connecting took too long"))?
            .map_err(|e| self.broken(e))?;
        let (sender, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|e| self.broken(e))?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "connection to the API server ended");
            }
        });
        Ok(Connection { sender, watches: Arc::default() })
    }

    /// Sends a request. A failure status becomes an error.
    async fn exchange(
        &self,
        connection: Connection,
        authorization: Option<&HeaderValue>,
        mut request: Request<Bytes>,
    ) -> Result<Response<Incoming>> {
        if let Some(authorization) = authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        let uri = format!("https://{}{}", self.authority, request.uri());
        *request.uri_mut() = uri.parse().map_err(|_| Error::Protocol(format!("no valid URI {uri}")))?;
        let Connection { mut sender, .. } = connection;
        let (method, started) = (request.method().clone(), tokio::time::Instant::now());
        let response = sender.send_request(request.map(Full::new)).await;
        let code = response.as_ref().ok().map(|r| r.status().as_u16());
        metrics::called(&method, &self.authority, code, started.elapsed());
        let response = response.map_err(|e| self.broken(e))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        let (parts, body) = response.into_parts();
        let body = self.read_whole(body).await?;
        Err(Error::Status(wire::status_of(code, &parts.headers, &body)))
    }

    async fn read_whole(&self, body: Incoming) -> Result<Bytes> {
        let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|e| self.broken(e))?;
        Ok(body.to_bytes())
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>> {
        let connection = self.link.connection(false).await?;
        let response = self.link.exchange(connection, self.authorization.as_ref(), request).await?;
        let (parts, body) = response.into_parts();
        Ok(Response::from_parts(parts, self.link.read_whole(body).await?))
    }

    async fn list(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<List> {
        let request = get(&resource.path(namespace, None), &options.query(false))?;
        let body = self.send(request).await?.into_body();
        wire::parse_list(resource, &body)
    }

    async fn watch(
        &self,
        resource: &ResourceType,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<WatchStream> {
        let connection = self.link.connection(true).await?;
        connection.watches.fetch_add(1, Ordering::Relaxed);
        let open = OpenWatch(Arc::clone(&connection.watches));
        let request = get(&resource.path(namespace, None), &options.query(true))?;
        let answer = self.link.exchange(connection, self.authorization.as_ref(), request).await?;
        let body = answer.into_body();
        let server = self.link.server.clone();
        let chunks = body.into_data_stream().map_err(move |e| {
            // The watch counts as open as long as its body is held.
            let _ = &open;
            Error::Connection { server: server.clone(), source: e.into() }
        });
        Ok(wire::events(chunks))
    }
}

/// Counts a watch on its connection until it is dropped.
struct OpenWatch(Arc<AtomicUsize>);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn get(path: &str, query: &str) -> Result<Request<Bytes>> {
    let uri = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    Request::builder()
        .method(Method::GET)
        .uri(uri)
        .header(header::ACCEPT, "application/json")
        .body(Bytes::new())
        .map_err(|e| Error::Protocol(e.to_string()))
}

fn bracket(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The TLS configuration for a server, from a kubeconfig or similar files. It offers HTTP/2.
pub fn client_tls(access: &Access) -> Result<rustls::ClientConfig> {
    let wrong = |e: &dyn std::fmt::Display| Error::Protocol(format!("TLS material of the kubeconfig: {e}"));
    let builder = if access.insecure_skip_tls_verify {
        knarr_tls::trusting_anybody()
    } else {
        let authorities = access.certificate_authority.as_deref().unwrap_or_default();
        knarr_tls::trusting(Roots::from_pem(authorities).map_err(|e| wrong(&e))?)
    };
    let builder = builder.map_err(|e| wrong(&e))?;
    let mut config = match (&access.client_certificate, &access.client_key) {
        (Some(cert), Some(key)) => {
            let chain =
                CertificateDer::pem_slice_iter(cert).collect::<Result<_, _>>().map_err(|e| wrong(&e))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| wrong(&e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| wrong(&e))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Converts errors of reading a kubeconfig and of connecting to I/O errors, for callers outside the client.
impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        io::Error::other(e)
    }
}
