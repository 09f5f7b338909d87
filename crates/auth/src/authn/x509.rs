//! Client certificates: the common name is the user, the organizations are its groups.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use knarr_tls::Roots;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::UserInfo;

/// Verifies client certificates against the configured CAs.
#[derive(Clone, Debug)]
pub struct Verifier(Arc<dyn ClientCertVerifier>);

/// The identity of a connection's client certificate, parsed once.
#[derive(Debug, Clone)]
pub struct Identity {
    user: Arc<UserInfo>,
    not_after: i64,
}

/// The certificate is not trusted, expired or unreadable.
#[derive(Debug, thiserror::Error)]
#[error("x509: {0}")]
pub struct Refused(String);

impl Verifier {
    pub fn new(roots: Roots) -> Result<Self, rustls::Error> {
        knarr_tls::client_verifier(roots).map(Self)
    }

    /// Returns the user of a certificate chain at this time.
    pub fn identify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<Identity, Refused> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(Refused("no certificate".into()));
        };
        let seconds = u64::try_from(now.as_second()).unwrap_or(0);
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        self.0
            .verify_client_cert(leaf, intermediates, time)
            .map_err(|e| Refused(format!("certificate refused: {e}")))?;
        let (_, certificate) =
            X509Certificate::from_der(leaf).map_err(|e| Refused(format!("unreadable certificate: {e}")))?;
        Ok(Identity {
            user: Arc::new(user_of(&certificate, leaf)),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    /// Returns the verifier for the TLS handshake. It requests a certificate and checks that the client holds its
    /// key, but does not check the issuer, so that an untrusted or expired certificate is answered with 401.
    pub fn for_handshake(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(AnyCertificate(Arc::clone(&self.0)))
    }
}

impl Identity {
    /// Returns the user, unless the certificate has expired since the connection started.
    pub fn user(&self, now: Timestamp) -> Option<&Arc<UserInfo>> {
        (now.as_second() <= self.not_after).then_some(&self.user)
    }

    /// Returns how long the certificate is still valid, in seconds.
    pub fn seconds_left(&self, now: Timestamp) -> f64 {
        (self.not_after.saturating_sub(now.as_second())) as f64
    }
}

fn user_of(certificate: &X509Certificate<'_>, der: &[u8]) -> UserInfo {
    let subject = certificate.subject();
    let name = subject.iter_common_name().filter_map(|a| a.as_str().ok()).next().unwrap_or("").to_owned();
    let groups = subject.iter_organization().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect();
    let mut fingerprint = String::from("X509SHA256=");
    for byte in Sha256::digest(der) {
        // Writing to a String cannot fail.
        let _ = write!(fingerprint, "{byte:02x}");
    }
    let extra =
        BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), vec![fingerprint])]);
    UserInfo { name, uid: String::new(), groups, extra }.authenticated()
}

#[derive(Debug)]
struct AnyCertificate(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AnyCertificate {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The identities that a connection's client certificate proves.
#[derive(Clone, Default)]
pub struct Certificate {
    /// The identity as a client; `None` without a certificate, or without client CAs.
    pub client: Option<Result<Identity, Arc<Refused>>>,
    /// The identity as an authenticating proxy.
    pub proxy: Option<Identity>,
    pub peer: Option<IpAddr>,
}
