//! New connections to webhooks, and what Go would say of one that does not come about.

use std::io;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::Failure;
use super::pool::Connection;
use super::target::{Place, Target};

/// Opens a connection; HTTP/1.1, so that many calls at once reach many backends.
pub async fn connect(
    tls: &Option<Arc<ClientConfig>>,
    place: &Place,
    host: &str,
    port: u16,
) -> Result<Connection, Failure> {
    let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|e| Failure::Connect(format!("dial tcp {shown}: {}", io_words(&e))))?;
    let _ = stream.set_nodelay(true);
    let sender = match tls {
        None => start(stream).await?,
        Some(tls) => {
            let name = ServerName::try_from(place.server_name.clone())
                .map_err(|e| Failure::Connect(format!("invalid server name: {e}")))?;
            let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
            let stream = stream.map_err(|e| Failure::Connect(tls_words(&e, &place.server_name)))?;
            start(stream).await?
        }
    };
    Ok(Connection { sender })
}

async fn start<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|e| Failure::broken(&e))?;
    tokio::spawn(async move {
        // How a connection ends shows in the answer read from it.
        let _ = connection.await;
    });
    Ok(sender)
}

/// As Go says it.
pub fn io_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".into(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".into(),
        io::ErrorKind::TimedOut => "connect: connection timed out".into(),
        _ => error.to_string(),
    }
}

/// As Go says it, of a server that should have this name.
pub fn tls_words(error: &io::Error, name: &str) -> String {
    const VERIFY: &str = "tls: failed to verify certificate: x509: ";
    let Some(inner) = error.get_ref().and_then(|e| e.downcast_ref::<TlsError>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "EOF".into(),
            _ => error.to_string(),
        };
    };
    match inner {
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("{VERIFY}certificate signed by unknown authority")
        }
        TlsError::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) => {
            format!("{VERIFY}{}", other_names(presented, name))
        }
        TlsError::InvalidCertificate(CertificateError::NotValidForName) => {
            format!("{VERIFY}{}", other_names(&[], name))
        }
        TlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => format!("{VERIFY}certificate has expired or is not yet valid"),
        TlsError::InvalidCertificate(other) => format!("{VERIFY}{other}"),
        TlsError::InvalidMessage(_) => "tls: first record does not look like a TLS handshake".into(),
        TlsError::AlertReceived(alert) => format!("remote error: tls: {alert:?}"),
        other => format!("tls: {other}"),
    }
}

/// Of a certificate that shows other names than the wanted one, such as `DnsName("example.com")`: as Go says it.
fn other_names(presented: &[String], wanted: &str) -> String {
    let is_ip = wanted.parse::<std::net::IpAddr>().is_ok();
    let kind = if is_ip { "IpAddress(" } else { "DnsName(" };
    let names = presented.iter().filter_map(|p| p.strip_prefix(kind)?.strip_suffix(')'));
    let names: Vec<&str> = names.map(|n| n.trim_matches('"')).collect();
    match (names.is_empty(), is_ip) {
        (true, true) => {
            format!("cannot validate certificate for {wanted} because it doesn't contain any IP SANs")
        }
        (true, false) => format!("certificate is not valid for any names, but wanted to match {wanted}"),
        (false, _) => format!("certificate is valid for {}, not {wanted}", names.join(", ")),
    }
}

/// From what a target trusts and shows.
pub fn tls_config(target: &Target) -> Result<ClientConfig, Failure> {
    let wrong = |e: &dyn std::fmt::Display| Failure::Connect(e.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(&e))?;
    let builder = if target.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    } else {
        builder.with_root_certificates(authorities(&target.ca_pem)?)
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn authorities(pem: &[u8]) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    if pem.is_empty() {
        // Read once: they change with the machine, not with the cluster.
        static SYSTEM: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
        roots.add_parsable_certificates(
            SYSTEM.get_or_init(|| rustls_native_certs::load_native_certs().certs).iter().cloned(),
        );
        return Ok(roots);
    }
    let unusable =
        || Failure::Connect("unable to load root certificates: unable to parse bytes as PEM block".into());
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|_| unusable())?).map_err(|_| unusable())?;
    }
    if roots.is_empty() { Err(unusable()) } else { Ok(roots) }
}

/// Takes any certificate, where a configuration file says so.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
