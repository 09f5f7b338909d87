//! Posts JSON to an extender: one connection per call, with limits on time and size.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use knarr_apimachinery::clock::Clock;
use knarr_client::kubeconfig::Access;
use rustls::pki_types::ServerName;
use serde_json::Value;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::config::{ExtenderConfig, TlsConfig};

/// The size limit of a response, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a call to an extender failed.
#[derive(Debug, Error)]
pub enum CallError {
    #[error("no valid URL")]
    Url,
    #[error("Post {url:?}: {why}")]
    Connection { url: String, why: String },
    #[error("Post {0:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout(String),
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Code { verb: String, url: String, code: u16 },
    #[error("the answer from {url:?} is not what it should be: {why}")]
    Answer { url: String, why: String },
}

/// The address of an extender.
pub struct Endpoint {
    prefix: String,
    tls: Option<(TlsConnector, Option<String>)>,
    timeout: Duration,
}

/// Formats an error with its causes.
fn with_causes(error: impl Into<Source>) -> String {
    let error: Source = error.into();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// Why there is no response, timeouts excluded.
enum Failed {
    Url,
    Connection(String),
    Code(StatusCode),
    Answer(String),
}

fn connection(error: impl Into<Source>) -> Failed {
    Failed::Connection(with_causes(error))
}

impl Endpoint {
    /// Reads the certificates and keys. The error message is meant for the author of the configuration.
    pub fn new(config: &ExtenderConfig) -> Result<Self, String> {
        let prefix = config.url_prefix.trim_end_matches('/').to_owned();
        let secure = prefix.starts_with("https://");
        if !secure && !prefix.starts_with("http://") {
            return Err(format!("urlPrefix {prefix:?} is neither http:// nor https://"));
        }
        let given = config.tls_config.clone().unwrap_or_default();
        let name = Some(given.server_name.clone()).filter(|n| !n.is_empty());
        let tls = if secure { Some((connector(&given, config.enable_https)?, name)) } else { None };
        Ok(Self { prefix, tls, timeout: config.timeout() })
    }

    /// The URL prefix, by which errors name the extender.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Posts a request and reads the response.
    pub async fn post(&self, clock: &dyn Clock, verb: &str, question: &Value) -> Result<Value, CallError> {
        let body = serde_json::to_vec(question).unwrap_or_default();
        let url = format!("{}/{verb}", self.prefix);
        let answer = tokio::select! {
            answer = self.exchange(&url, Bytes::from(body)) => answer,
            () = clock.sleep(self.timeout) => return Err(CallError::Timeout(url)),
        };
        answer.map_err(|failed| match failed {
            Failed::Url => CallError::Url,
            Failed::Connection(why) => CallError::Connection { url, why },
            Failed::Code(code) => CallError::Code { verb: verb.to_owned(), url, code: code.as_u16() },
            Failed::Answer(why) => CallError::Answer { url, why },
        })
    }

    async fn exchange(&self, url: &str, body: Bytes) -> Result<Value, Failed> {
        let uri: Uri = url.parse().map_err(|_| Failed::Url)?;
        let host = uri.host().ok_or(Failed::Url)?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let tcp = TcpStream::connect((host.as_str(), port)).await.map_err(connection)?;
        let request = Request::post(uri.path_and_query().map_or("/", |p| p.as_str()))
            .header(header::HOST, uri.authority().map_or(host.as_str(), |a| a.as_str()))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|_| Failed::Url)?;
        match &self.tls {
            None => send(tcp, request).await,
            Some((connector, name)) => {
                let name = name.clone().unwrap_or(host);
                let name = ServerName::try_from(name).map_err(|_| Failed::Url)?;
                send(connector.connect(name, tcp).await.map_err(connection)?, request).await
            }
        }
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Value, Failed> {
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.map_err(connection)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(connection)?;
        if response.status() != StatusCode::OK {
            return Err(Failed::Code(response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(connection)?.to_bytes();
        serde_json::from_slice(&body).map_err(|error| Failed::Answer(error.to_string()))
    };
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The connection task may end first, when the response has already been received.
        _ = driver => exchange.await,
    }
}

fn connector(given: &TlsConfig, enable_https: bool) -> Result<TlsConnector, String> {
    let ca = material(&given.ca_data, &given.ca_file)?;
    let access = Access {
        insecure_skip_tls_verify: given.insecure || (enable_https && ca.is_none()),
        certificate_authority: ca,
        client_certificate: material(&given.cert_data, &given.cert_file)?,
        client_key: material(&given.key_data, &given.key_file)?,
        ..Access::default()
    };
    let mut config = knarr_client::http::client_tls(&access).map_err(|e| e.to_string())?;
    config.alpn_protocols.clear();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns PEM data from the configuration itself, or from a file.
fn material(data: &str, file: &str) -> Result<Option<Vec<u8>>, String> {
    if !data.is_empty() {
        return BASE64_STANDARD.decode(data).map(Some).map_err(|e| e.to_string());
    }
    if file.is_empty() {
        return Ok(None);
    }
    std::fs::read(file).map(Some).map_err(|error| format!("{file}: {error}"))
}
