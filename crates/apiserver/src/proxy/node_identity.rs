//! Whose serving certificate a kubelet shows: that of the node, by its name or by the address that was dialled.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Accepts a certificate of the CA that carries the node's name or its address: a node that joins gets the name first,
/// as nobody can vouch for its addresses yet.
#[derive(Debug)]
pub struct NodeIdentity {
    inner: Arc<dyn ServerCertVerifier>,
    names: Vec<ServerName<'static>>,
}

impl NodeIdentity {
    pub fn new(inner: Arc<dyn ServerCertVerifier>, node: &str, address: &str) -> Self {
        let names = [node, address].map(|name| ServerName::try_from(name.to_owned()).ok());
        Self { inner, names: names.into_iter().flatten().collect() }
    }
}

impl ServerCertVerifier for NodeIdentity {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut refused = Error::InvalidCertificate(CertificateError::NotValidForName);
        for name in &self.names {
            match self.inner.verify_server_cert(leaf, intermediates, name, ocsp, now) {
                Err(error) if is_other_name(&error) => refused = error,
                other => return other,
            }
        }
        Err(refused)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn is_other_name(error: &Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(error, Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    fn authority() -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        (certificate.der().clone(), Issuer::new(params, key))
    }

    #[test]
    fn the_name_or_the_address_has_to_fit() {
        let (root, issuer) = authority();
        let (_, foreign) = authority();
        let mut roots = knarr_tls::Roots::empty();
        roots.add(root).unwrap();
        let inner = knarr_tls::verifier(roots).unwrap();
        let leaf = |names: &[&str], issuer: &Issuer<'static, KeyPair>| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            let key = KeyPair::generate().unwrap();
            CertificateParams::new(names).unwrap().signed_by(&key, issuer).unwrap().der().clone()
        };
        let verifier = NodeIdentity::new(Arc::clone(&inner), "n1", "10.0.0.1");
        let asked = ServerName::try_from("10.0.0.1").unwrap();
        let check = |certificate: &CertificateDer<'_>| {
            verifier.verify_server_cert(certificate, &[], &asked, &[], UnixTime::now())
        };
        for names in [&["n1"][..], &["10.0.0.1"], &["n1", "10.0.0.9"]] {
            check(&leaf(names, &issuer)).unwrap_or_else(|e| panic!("{names:?}: {e}"));
        }
        for names in [&["n2"][..], &["10.0.0.2"], &["n1.example"]] {
            assert!(is_other_name(&check(&leaf(names, &issuer)).unwrap_err()), "{names:?}");
        }
        assert!(check(&leaf(&["n1"], &foreign)).is_err());
    }
}
