//! Calls of external servers: webhooks for authentication, authorization or audit events, and token issuers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use knarr_apimachinery::clock::Clock;
use knarr_client::kubeconfig::Access;
use knarr_client::metrics;
use knarr_tls::{Roots, tls_words};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::TlsConnector;

use crate::dial::dial;

/// The maximum size of a response, in bytes.
const MAX_ANSWER: usize = 4 << 20;
const AGENT: &str = "kube-apiserver";

/// Why a call returned no response.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    #[error("{0}")]
    Configuration(String),
    #[error("cannot reach {server}: {why}")]
    Unreachable { server: String, why: String },
    #[error("{server} did not answer within {seconds} seconds")]
    Timeout { server: String, seconds: u64 },
}

/// One server, by its URL.
pub struct Outbound {
    /// The scheme, host and port, for messages.
    server: String,
    host: String,
    port: u16,
    path: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authorization: Option<HeaderValue>,
    timeout: Duration,
    idle: tokio::sync::Mutex<Option<SendRequest<Full<Bytes>>>>,
}

/// The status code and body of a response.
pub struct Reply {
    pub code: u16,
    pub body: Bytes,
}

impl Outbound {
    /// Reads the server, CAs and credentials of a kubeconfig's current context.
    pub fn from_kubeconfig(path: &Path, timeout: Duration) -> Result<Self, OutboundError> {
        let wrong = |why: String| OutboundError::Configuration(format!("{}: {why}", path.display()));
        let access = Access::load(path).map_err(|e| wrong(e.to_string()))?;
        Self::new(&access, timeout).map_err(|e| wrong(e.to_string()))
    }

    /// Creates a client of a URL whose server certificate these CAs sign; without any, the system's.
    pub fn to_url(url: &str, ca_pem: Option<&[u8]>, timeout: Duration) -> Result<Self, OutboundError> {
        let access = Access {
            server: url.to_owned(),
            certificate_authority: ca_pem.map(<[u8]>::to_vec),
            ..Access::default()
        };
        Self::new(&access, timeout)
    }

    fn new(access: &Access, timeout: Duration) -> Result<Self, OutboundError> {
        let wrong = |why: &str| OutboundError::Configuration(format!("{why}: {:?}", access.server));
        let uri: Uri = access.server.parse().map_err(|_| wrong("not a URL"))?;
        let host = uri.host().ok_or_else(|| wrong("no host"))?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("neither http nor https")),
        };
        let tls = if secure {
            let name = access.tls_server_name.clone().unwrap_or_else(|| host.clone());
            let name = ServerName::try_from(name).map_err(|_| wrong("no valid host name"))?;
            Some((TlsConnector::from(Arc::new(client_config(access)?)), name))
        } else {
            None
        };
        let authorization = access.token.as_ref().map(|t| HeaderValue::from_str(&format!("Bearer {t}")));
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        Ok(Self {
            server: format!(
                "{}://{}",
                uri.scheme_str().unwrap_or(""),
                uri.authority().map_or("", |a| a.as_str())
            ),
            host,
            port,
            path: uri.path_and_query().map_or("/", |p| p.as_str()).to_owned(),
            tls,
            authorization: authorization.transpose().map_err(|_| wrong("no valid token beside"))?,
            timeout,
            idle: tokio::sync::Mutex::default(),
        })
    }

    fn broken(&self, why: impl std::fmt::Display) -> OutboundError {
        OutboundError::Unreachable { server: self.server.clone(), why: why.to_string() }
    }

    /// Sends JSON by POST to the URL itself.
    pub async fn post(&self, body: Bytes, clock: &dyn Clock) -> Result<Reply, OutboundError> {
        self.call(Method::POST, &self.path, body, clock).await
    }

    /// Sends a GET request to the URL.
    pub async fn get(&self, clock: &dyn Clock) -> Result<Reply, OutboundError> {
        self.call(Method::GET, &self.path, Bytes::new(), clock).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        clock: &dyn Clock,
    ) -> Result<Reply, OutboundError> {
        let timeout =
            || OutboundError::Timeout { server: self.server.clone(), seconds: self.timeout.as_secs() };
        let (asked, started) = (method.clone(), clock.monotonic());
        let reply = tokio::select! {
            reply = self.exchange(method, path, body) => reply,
            () = clock.sleep(self.timeout) => Err(timeout()),
        };
        let host = self.server.split_once("://").map_or("", |(_, host)| host);
        let code = reply.as_ref().ok().map(|r| r.code);
        metrics::called(&asked, host, code, clock.monotonic().saturating_sub(started));
        reply
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Reply, OutboundError> {
        let mut request = Request::builder()
            .method(&method)
            .uri(path)
            .header(
                HOST,
                if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() },
            )
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, "application/json");
        if method == Method::POST {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let request = request.body(Full::new(body)).map_err(|e| self.broken(e))?;
        let held = self.idle.lock().await.take().filter(|s| s.is_ready());
        let mut sender = match held {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let response = sender.send_request(request).await.map_err(|e| self.broken(e))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|e| self.broken(e))?.to_bytes();
        *self.idle.lock().await = Some(sender);
        Ok(Reply { code: parts.status.as_u16(), body })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, OutboundError> {
        let tcp = dial(&self.host, self.port).await.map_err(|e| self.broken(e))?;
        let Some((connector, name)) = &self.tls else {
            let (sender, connection) =
                http1::handshake(TokioIo::new(tcp)).await.map_err(|e| self.broken(e))?;
            tokio::spawn(connection);
            return Ok(sender);
        };
        let tls = connector.connect(name.clone(), tcp).await;
        let tls = tls.map_err(|e| self.broken(tls_words(&e, &self.host)))?;
        let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.map_err(|e| self.broken(e))?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

fn client_config(access: &Access) -> Result<ClientConfig, OutboundError> {
    let wrong = |e: &dyn std::fmt::Display| OutboundError::Configuration(e.to_string());
    let roots = match &access.certificate_authority {
        Some(pem) => Roots::from_pem(pem).map_err(|e| wrong(&e))?,
        None => Roots::of_the_machine(),
    };
    let builder = knarr_tls::trusting(roots).map_err(|e| wrong(&e))?;
    let mut config = match (&access.client_certificate, &access.client_key) {
        (Some(certificate), Some(key)) => {
            let chain = CertificateDer::pem_slice_iter(certificate)
                .collect::<Result<_, _>>()
                .map_err(|e| wrong(&e))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| wrong(&e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| wrong(&e))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let to = |url: &str| Outbound::to_url(url, None, Duration::from_secs(1));
        let found = to("https://[::1]:8443/check?timeout=3s").unwrap();
        assert_eq!(
            (found.host.as_str(), found.port, found.path.as_str()),
            ("::1", 8443, "/check?timeout=3s")
        );
        assert!(found.tls.is_some());
        let plain = to("http://a.example").unwrap();
        assert_eq!((plain.port, plain.path.as_str(), plain.tls.is_none()), (80, "/", true));
        for wrong in ["", "ftp://a/", "a.example", "https://"] {
            assert!(to(wrong).is_err(), "{wrong}");
        }
    }
}
