//! Accepts the client certificates that Go accepts.
//!
//! webpki supports only version 3 of X.509. `openssl x509 -req` without extensions creates certificates of
//! version 1, and many users have one.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, SignatureScheme,
};
use webpki::RawPublicKeyEntity;
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

use crate::chain::{self, Purpose};
use crate::p521::provider;
use crate::roots::Roots;

#[derive(Debug)]
struct Verifier {
    roots: Roots,
    webpki: Arc<dyn ClientCertVerifier>,
}

/// Returns a verifier of clients' certificates against these roots, of which there must be at least one. A
/// client without a certificate is accepted as well, because it may have a token.
pub fn client_verifier(roots: Roots) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots.store.clone()), provider());
    let webpki = builder.allow_unauthenticated().build().map_err(|e| Error::General(e.to_string()))?;
    Ok(Arc::new(Verifier { roots, webpki }))
}

/// Returns the public key of a certificate of version 1; `None` for any other.
fn old_key<'a>(certificate: &'a CertificateDer<'a>) -> Option<SubjectPublicKeyInfoDer<'a>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    (parsed.version() == X509Version::V1).then(|| parsed.tbs_certificate.subject_pki.raw.into())
}

fn is_old(certificate: &CertificateDer<'_>) -> bool {
    old_key(certificate).is_some()
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if !is_old(leaf) {
            return self.webpki.verify_client_cert(leaf, intermediates, now);
        }
        chain::verify(Purpose::Client, leaf, intermediates, &self.roots.certificates, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let provider = provider();
        let supported = &provider.signature_verification_algorithms;
        let Some(key) = old_key(certificate) else {
            return verify_tls12_signature(message, certificate, signed, supported);
        };
        let key = RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
        let scheme = supported.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
        let Some((_, algorithms)) = scheme else {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        };
        // The signature scheme does not determine the curve of the key.
        let holds = algorithms.iter().any(|a| key.verify_signature(*a, message, signed.signature()).is_ok());
        if holds {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let provider = provider();
        let supported = &provider.signature_verification_algorithms;
        match old_key(certificate) {
            None => verify_tls13_signature(message, certificate, signed, supported),
            Some(key) => verify_tls13_signature_with_raw_key(message, &key, signed, supported),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
