//! Plain HTTP GET requests to containers, for probes and hooks.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;

use crate::host_names::HostNames;

/// The maximal length of a body that is read, in bytes.
const MAX_BODY: usize = 10 << 10;

/// A request from the pod's spec.
#[derive(Debug, Clone)]
pub struct GetRequest {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub path: String,
    pub headers: HeaderMap,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetAnswer {
    pub status: u16,
    pub body: Vec<u8>,
    pub location: Option<String>,
}

/// Returns the number of a port that is given as a number, or by the name of one of the container's ports.
pub fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|p| p.name.as_deref() == Some(name));
            match named {
                Some(port) => port.container_port,
                None => name
                    .parse()
                    .map_err(|_| format!("couldn't find port: {name:?} in container: {}", container.name))?,
            }
        }
    };
    u16::try_from(number).ok().filter(|n| *n > 0).ok_or_else(|| format!("invalid port number: {number}"))
}

/// Builds the request; `purpose` is `probe` or `lifecycle`, for the user agent.
pub fn request(
    action: &HTTPGetAction,
    container: &Container,
    pod_ip: &str,
    purpose: &str,
) -> Result<GetRequest, String> {
    let mut headers = HeaderMap::new();
    for header in action.http_headers.iter().flatten() {
        let name: HeaderName =
            header.name.parse().map_err(|_| format!("invalid header name {:?}", header.name))?;
        let value: HeaderValue =
            header.value.parse().map_err(|_| format!("invalid value of header {:?}", header.name))?;
        headers.append(name, value);
    }
    if !headers.contains_key(http::header::USER_AGENT) {
        let agent = HeaderValue::from_str(&format!("kube-{purpose}/1.37"));
        headers.extend(agent.ok().map(|agent| (http::header::USER_AGENT, agent)));
    }
    match headers.get(http::header::ACCEPT) {
        None => {
            headers.insert(http::header::ACCEPT, HeaderValue::from_static("*/*"));
        }
        // An empty value means that the header is not sent.
        Some(value) if value.is_empty() => {
            headers.remove(http::header::ACCEPT);
        }
        Some(_) => {}
    }
    let path = action.path.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "/".to_owned());
    Ok(GetRequest {
        tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
        host: action.host.clone().filter(|h| !h.is_empty()).unwrap_or_else(|| pod_ip.to_owned()),
        port: resolve_port(&action.port, container)?,
        path: if path.starts_with('/') { path } else { format!("/{path}") },
        headers,
    })
}

impl GetRequest {
    /// Returns `host:port`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }

    fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.path)
    }
}

pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Sends the request. Error texts are close to Go's, as they appear in events.
pub async fn get(request: &GetRequest, timeout: Duration) -> Result<GetAnswer, String> {
    let url = request.url();
    match tokio::time::timeout(timeout, exchange(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("Get {url:?}: {error}")),
        Err(_) => Err(format!(
            "Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )),
    }
}

async fn exchange(request: &GetRequest) -> Result<GetAnswer, String> {
    let stream = connect(&request.host, request.port).await?;
    if !request.tls {
        return over(stream, request).await;
    }
    let name = ServerName::try_from(request.host.clone()).map_err(|e| e.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(any_certificate()?);
    let stream = connector.connect(name, stream).await.map_err(|e| format!("tls: {e}"))?;
    over(stream, request).await
}

/// Opens a TCP connection; the error has the text of Go's dialer.
pub async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    static NAMES: LazyLock<HostNames> = LazyLock::new(HostNames::of_the_system);
    let addresses = NAMES.addresses(host, port).await;
    let addresses = addresses.map_err(|cause| format!("dial tcp {}: {cause}", authority(host, port)))?;
    let stream = TcpStream::connect(addresses.as_slice()).await;
    stream.map_err(|e| {
        let cause = match e.kind() {
            std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
            std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
            _ => e.to_string(),
        };
        format!("dial tcp {}: {cause}", authority(host, port))
    })
}

async fn over<S>(stream: S, request: &GetRequest) -> Result<GetAnswer, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let driver = tokio::spawn(connection);
    let answer = async {
        let mut message =
            http::Request::get(&request.path).body(Empty::<Bytes>::new()).map_err(|e| e.to_string())?;
        *message.headers_mut() = request.headers.clone();
        if !request.headers.contains_key(http::header::HOST) {
            let host = HeaderValue::from_str(&request.authority()).map_err(|e| e.to_string())?;
            message.headers_mut().insert(http::header::HOST, host);
        }
        message.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        let response = sender.send_request(message).await.map_err(|e| e.to_string())?;
        let status = response.status().as_u16();
        let location = response.headers().get(http::header::LOCATION);
        let location = location.and_then(|l| l.to_str().ok()).map(str::to_owned);
        let mut incoming = response.into_body();
        let mut body = Vec::new();
        while body.len() < MAX_BODY {
            let Some(frame) = incoming.frame().await else { break };
            if let Ok(data) = frame.map_err(|e| e.to_string())?.into_data() {
                body.extend_from_slice(&data);
            }
        }
        body.truncate(MAX_BODY);
        Ok(GetAnswer { status, body, location })
    }
    .await;
    driver.abort();
    answer
}

/// Returns a TLS configuration that accepts any certificate: the node does not know which authorities a
/// container's certificate has.
fn any_certificate() -> Result<Arc<rustls::ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{ContainerPort, HTTPHeader};

    #[test]
    fn requests_from_actions() {
        let container = Container {
            name: "web".into(),
            ports: Some(vec![ContainerPort {
                name: Some("http".into()),
                container_port: 8080,
                ..Default::default()
            }]),
            ..Container::default()
        };
        let header = |name: &str, value: &str| HTTPHeader { name: name.into(), value: value.into() };
        let action = HTTPGetAction {
            path: Some("healthz".into()),
            port: IntOrString::String("http".into()),
            http_headers: Some(vec![header("Host", "example.com"), header("X-A", "1"), header("X-A", "2")]),
            ..HTTPGetAction::default()
        };
        let made = request(&action, &container, "fd00::1", "probe").unwrap();
        assert_eq!((made.authority().as_str(), made.path.as_str()), ("[fd00::1]:8080", "/healthz"));
        assert_eq!(made.headers.get_all("x-a").iter().count(), 2);
        assert_eq!(made.headers["host"], "example.com");
        assert_eq!(made.headers["user-agent"], "kube-probe/1.37");
        assert_eq!(made.headers["accept"], "*/*");
        let unknown = HTTPGetAction { port: IntOrString::String("nope".into()), ..action };
        assert!(request(&unknown, &container, "", "probe").is_err());
    }
}
