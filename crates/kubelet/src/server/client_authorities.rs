//! The certificate authorities of the server's clients, which can be replaced while the server runs.

use std::sync::{Arc, PoisonError, RwLock};

use knarr_tls::Roots;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::ServerError;

/// The authorities of clients. Handshakes after a replacement use the new ones.
#[derive(Debug)]
pub struct ClientAuthorities(RwLock<Arc<dyn ClientCertVerifier>>);

impl ClientAuthorities {
    /// Reads the authorities from PEM.
    pub fn new(pem: &str) -> Result<Arc<Self>, ServerError> {
        Ok(Arc::new(Self(RwLock::new(verifier(pem)?))))
    }

    /// Replaces the authorities. If the new ones cannot be used, the old ones stay.
    pub fn exchange(&self, pem: &str) -> Result<(), ServerError> {
        let next = verifier(pem)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn current(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn verifier(pem: &str) -> Result<Arc<dyn ClientCertVerifier>, ServerError> {
    let mut roots = Roots::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    Ok(knarr_tls::client_verifier(roots)?)
}

impl ClientCertVerifier for ClientAuthorities {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// Returns none: the authorities may change, and clients of the kubelet have only one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.current().verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current().verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.current().verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current().supported_verify_schemes()
    }
}
