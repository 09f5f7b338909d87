//! Verifies a kubelet's serving certificate: its subject must be the node, and it must have the node's name or the
//! dialled address.

use std::io;
use std::sync::Arc;

use knarr_api::certificates::signers::NODE_USER_PREFIX;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Accepts a certificate of the CA whose subject is the node's user (`system:node:NAME`), as the signer of kubelets'
/// serving certificates demands, and that contains the node's name or its address. Both alternative names are
/// accepted because a joining node first gets the name only: nothing vouches for its addresses yet. The address alone
/// would let a node answer for the node that has taken over its old address.
#[derive(Debug)]
pub struct NodeIdentity {
    inner: Arc<dyn ServerCertVerifier>,
    user: String,
    names: Vec<ServerName<'static>>,
}

impl NodeIdentity {
    pub fn new(inner: Arc<dyn ServerCertVerifier>, node: &str, address: &str) -> Self {
        let names = [node, address].map(|name| ServerName::try_from(name.to_owned()).ok());
        let user = format!("{NODE_USER_PREFIX}{node}");
        Self { inner, user, names: names.into_iter().flatten().collect() }
    }

    fn other_node(&self, leaf: &CertificateDer<'_>) -> Error {
        let subject = common_name(leaf).unwrap_or_default();
        let why = format!("certificate is of {subject:?}, not of {:?}", self.user);
        CertificateError::Other(OtherError(Arc::new(io::Error::other(why)))).into()
    }
}

fn common_name(leaf: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let mut names = certificate.subject().iter_common_name();
    names.next()?.as_str().ok().map(ToOwned::to_owned)
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
                Ok(_) if common_name(leaf).as_deref() != Some(&self.user) => {
                    return Err(self.other_node(leaf));
                }
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
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

    fn authority() -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        (certificate.der().clone(), Issuer::new(params, key))
    }

    #[test]
    fn the_node_and_its_name_or_address_have_to_fit() {
        let (root, issuer) = authority();
        let (_, foreign) = authority();
        let mut roots = knarr_tls::Roots::empty();
        roots.add(root).unwrap();
        let inner = knarr_tls::verifier(roots).unwrap();
        let leaf = |node: &str, names: &[&str], issuer: &Issuer<'static, KeyPair>| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
            let key = KeyPair::generate().unwrap();
            params.signed_by(&key, issuer).unwrap().der().clone()
        };
        let verifier = NodeIdentity::new(Arc::clone(&inner), "n1", "10.0.0.1");
        let asked = ServerName::try_from("10.0.0.1").unwrap();
        let check = |certificate: &CertificateDer<'_>| {
            verifier.verify_server_cert(certificate, &[], &asked, &[], UnixTime::now())
        };
        for names in [&["n1"][..], &["10.0.0.1"], &["n1", "10.0.0.9"]] {
            check(&leaf("n1", names, &issuer)).unwrap_or_else(|e| panic!("{names:?}: {e}"));
        }
        // A node may be called by an address.
        let called = NodeIdentity::new(Arc::clone(&inner), "10.0.0.7", "10.0.0.8");
        for names in [&["10.0.0.7"][..], &["10.0.0.8"]] {
            let leaf = leaf("10.0.0.7", names, &issuer);
            called.verify_server_cert(&leaf, &[], &asked, &[], UnixTime::now()).unwrap();
        }
        for names in [&["n2"][..], &["10.0.0.2"], &["n1.example"]] {
            assert!(is_other_name(&check(&leaf("n1", names, &issuer)).unwrap_err()), "{names:?}");
        }
        assert!(check(&leaf("n1", &["n1"], &foreign)).is_err());
        // The previous node with the address, or a node that got another node's name.
        for names in [&["n1"][..], &["10.0.0.1"], &["n2", "10.0.0.1"]] {
            let refused = check(&leaf("n2", names, &issuer)).unwrap_err();
            let Error::InvalidCertificate(CertificateError::Other(why)) = refused else {
                panic!("{refused}")
            };
            assert_eq!(why.0.to_string(), r#"certificate is of "system:node:n2", not of "system:node:n1""#);
        }
    }
}
