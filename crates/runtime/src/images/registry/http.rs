//! Sends one HTTP request at a time: connect, TLS, redirects, time limits.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::pace::{Pace, Paced};
use super::{NetworkError, RegistryError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const TLS_TIMEOUT: Duration = Duration::from_secs(30);
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest pause in the middle of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// The same number as Go's client follows.
const MAX_REDIRECTS: usize = 10;
const AGENT: &str = concat!("knarr/", env!("CARGO_PKG_VERSION"));

/// Sends requests; each uses its own connection.
#[derive(Debug, Clone, Default)]
pub struct HttpClient {
    /// Registries, `host` or `host:port`, that are contacted without TLS in addition to the loopback ones.
    pub insecure: Vec<String>,
}

/// A request without a body, or with a form.
#[derive(Debug, Clone)]
pub struct Call {
    pub method: Method,
    pub url: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Call {
    pub fn get(url: Uri) -> Call {
        Call { method: Method::GET, url, headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub(super) fn failed(&self, source: impl Into<NetworkError>) -> RegistryError {
        let method = self.method.as_str();
        // Go spells the method `Get`, and so do the messages that users know.
        let method = format!("{}{}", &method[..1], method[1..].to_ascii_lowercase());
        RegistryError::Network { method, url: self.url.to_string(), source: source.into() }
    }

    /// Returns the error for an answer with an unexpected status.
    pub(super) async fn unexpected(&self, response: Response<Incoming>) -> RegistryError {
        let status = response.status();
        let message = server_message(response.into_body()).await;
        let message = message.map(|m| format!(": {m}")).unwrap_or_default();
        RegistryError::Status { method: self.method.to_string(), url: self.url.to_string(), status, message }
    }
}

impl HttpClient {
    /// Returns `http` for loopback and listed hosts, otherwise `https`.
    pub fn scheme(&self, authority: &str) -> &'static str {
        let host = host_of(authority);
        let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let listed = self.insecure.iter().any(|entry| entry == authority || entry == host);
        if loopback || listed { "http" } else { "https" }
    }

    /// Sends a request and follows redirects. Credentials are sent only to their own host; a redirect from TLS
    /// to plain text is followed only to a host that may be contacted without TLS.
    pub async fn send(&self, mut call: Call) -> Result<(Call, Response<Incoming>), RegistryError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&call).await?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((call, response));
            }
            let location = response.headers().get(LOCATION).and_then(|l| l.to_str().ok());
            let Some(location) = location else {
                return Err(RegistryError::Protocol("redirect without a location".to_owned()));
            };
            let next = resolve(&call.url, location)?;
            let authority = next.authority().map(ToString::to_string).unwrap_or_default();
            if next.scheme_str() == Some("http")
                && call.url.scheme_str() == Some("https")
                && self.scheme(&authority) != "http"
            {
                return Err(RegistryError::Protocol(format!("redirect to plain text: {next}")));
            }
            if next.authority() != call.url.authority() || next.scheme() != call.url.scheme() {
                call.headers.remove(AUTHORIZATION);
            }
            if response.status() == StatusCode::SEE_OTHER {
                call.method = Method::GET;
                call.body = Bytes::new();
            }
            call.url = next;
        }
        Err(RegistryError::Protocol(format!("stopped after {MAX_REDIRECTS} redirects")))
    }

    async fn send_once(&self, call: &Call) -> Result<Response<Incoming>, RegistryError> {
        let authority = call.url.authority().map(|a| a.as_str()).unwrap_or_default();
        let host = host_of(authority);
        let tls = call.url.scheme_str() == Some("https");
        let port = call.url.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = call.url.path_and_query().map_or("/", |p| p.as_str());
        let mut request = Request::builder().method(call.method.clone()).uri(path);
        if let Some(headers) = request.headers_mut() {
            headers.extend(call.headers.clone());
            headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
            if let Ok(value) = HeaderValue::from_str(authority.rsplit('@').next().unwrap_or(authority)) {
                headers.insert(HOST, value);
            }
        }
        let request = request
            .body(Full::new(call.body.clone()))
            .map_err(|e| RegistryError::Protocol(format!("unusable address {:?}: {e}", call.url)))?;
        let stream = connect(host, port).await.map_err(|e| call.failed(e))?;
        let response = if tls {
            let stream = start_tls(host, stream).await.map_err(|e| call.failed(e))?;
            exchange(stream, request).await
        } else {
            exchange(stream, request).await
        };
        response.map_err(|e| call.failed(e))
    }
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, NetworkError> {
    let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port)))
        .await
        .map_err(|_| NetworkError::Timeout("a connection"))?
        .map_err(|source| NetworkError::Dial { address, source })?;
    // A request is one small write, so delaying it gains nothing.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

async fn start_tls(
    host: &str,
    stream: TcpStream,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, NetworkError> {
    let failed = |source| NetworkError::Tls { host: host.to_owned(), source };
    let name = ServerName::try_from(host.to_owned()).map_err(|e| failed(std::io::Error::other(e)))?;
    let connector = TlsConnector::from(tls_config().await?);
    tokio::time::timeout(TLS_TIMEOUT, connector.connect(name, stream))
        .await
        .map_err(|_| NetworkError::Timeout("the TLS handshake"))?
        .map_err(|e| failed(std::io::Error::new(e.kind(), knarr_tls::tls_words(&e, host))))
}

/// Returns the TLS configuration with the machine's root certificates, which are read once.
async fn tls_config() -> Result<Arc<rustls::ClientConfig>, NetworkError> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let roots = tokio::task::spawn_blocking(knarr_tls::Roots::of_the_machine)
        .await
        .map_err(|e| NetworkError::Roots(rustls::Error::General(e.to_string())))?;
    let config = knarr_tls::trusting(roots).map_err(NetworkError::Roots)?.with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, NetworkError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The task ends when the answer was read or dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "registry connection ended");
        }
    });
    let response = tokio::time::timeout(HEADER_TIMEOUT, sender.send_request(request));
    Ok(response.await.map_err(|_| NetworkError::Timeout("response headers"))??)
}

/// Returns the next piece of a body; `None` at its end.
pub async fn next_chunk(body: &mut Incoming, paced: &mut Paced) -> Result<Option<Bytes>, NetworkError> {
    loop {
        let began = Instant::now();
        let frame = tokio::time::timeout(BODY_TIMEOUT, body.frame());
        match frame.await.map_err(|_| NetworkError::Timeout("more of the response body"))? {
            None => return Ok(None),
            Some(frame) => {
                let data = frame?.into_data();
                paced.came(began.elapsed(), data.as_ref().map_or(0, Bytes::len))?;
                if let Ok(data) = data {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Reads a body of at most `limit` bytes; returns `None` if it is longer.
pub async fn read_body(mut body: Incoming, limit: u64) -> Result<Option<Vec<u8>>, NetworkError> {
    let (mut bytes, mut paced) = (Vec::new(), Paced::new(Pace::default()));
    while let Some(chunk) = next_chunk(&mut body, &mut paced).await? {
        if (bytes.len() + chunk.len()) as u64 > limit {
            return Ok(None);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Some(bytes))
}

/// Returns the registry's error message, from `{"errors": [{"code", "message"}]}`.
pub async fn server_message(body: Incoming) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Errors {
        errors: Vec<ServerError>,
    }
    #[derive(serde::Deserialize)]
    struct ServerError {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    const MAX_ERROR_BYTES: u64 = 64 << 10;
    let bytes = read_body(body, MAX_ERROR_BYTES).await.ok()??;
    let errors: Errors = serde_json::from_slice(&bytes).ok()?;
    let first = errors.errors.into_iter().next()?;
    let code = first.code.to_ascii_lowercase().replace('_', " ");
    let text = if first.message.is_empty() { code } else { format!("{code}: {}", first.message) };
    Some(text.chars().filter(|c| !c.is_control()).take(1000).collect())
}

fn host_of(authority: &str) -> &str {
    let authority = authority.rsplit('@').next().unwrap_or(authority);
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    authority.split(':').next().unwrap_or(authority)
}

/// Resolves a redirect's target: absolute, of the same scheme (`//host/x`), of the same host (`/x`), or
/// relative.
fn resolve(base: &Uri, location: &str) -> Result<Uri, RegistryError> {
    let bad = || RegistryError::Protocol(format!("redirect to unusable address {location:?}"));
    let scheme = base.scheme_str().unwrap_or("https");
    let authority = base.authority().map(|a| a.as_str()).unwrap_or_default();
    let text = if location.starts_with("http://") || location.starts_with("https://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let dir = base.path().rsplit_once('/').map_or("", |(dir, _)| dir);
        format!("{scheme}://{authority}{dir}/{location}")
    };
    let url: Uri = text.split('#').next().unwrap_or(&text).parse().map_err(|_| bad())?;
    if url.authority().is_none() || !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err(bad());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_for_loopback_and_listed_hosts() {
        let client = HttpClient { insecure: vec!["reg.test".into(), "other.test:81".into()] };
        for (authority, scheme) in [
            ("localhost", "http"),
            ("localhost:5000", "http"),
            ("127.0.0.1:5000", "http"),
            ("127.9.9.9", "http"),
            ("[::1]:5000", "http"),
            ("reg.test", "http"),
            ("reg.test:99", "http"),
            ("other.test:81", "http"),
            ("other.test", "https"),
            ("docker.io", "https"),
            ("localhost.evil.test", "https"),
            ("[2001:db8::1]:5000", "https"),
        ] {
            assert_eq!(client.scheme(authority), scheme, "{authority}");
        }
    }

    #[test]
    fn redirects_resolve_against_the_request() {
        let base: Uri = "https://r.io:81/v2/a/blobs/x?y=1".parse().unwrap();
        for (location, wanted) in [
            ("https://cdn.io/b#c", "https://cdn.io/b"),
            ("//cdn.io/b", "https://cdn.io/b"),
            ("/b?q", "https://r.io:81/b?q"),
            ("b", "https://r.io:81/v2/a/blobs/b"),
        ] {
            assert_eq!(resolve(&base, location).unwrap().to_string(), wanted);
        }
        for bad in ["https://", "http:// x/"] {
            assert!(resolve(&base, bad).is_err(), "{bad}");
        }
    }
}
