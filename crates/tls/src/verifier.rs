//! Accepts the server certificates that Go accepts.
//!
//! webpki refuses a server certificate that may sign others, and a trusted one that is not self-signed. Go
//! accepts both, and `openssl req -x509` creates the first kind.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

use crate::chain::{self, Purpose};
use crate::p521::provider;
use crate::roots::Roots;

#[derive(Debug)]
struct Verifier {
    roots: Roots,
    /// `None` if there are no roots.
    webpki: Option<Arc<WebPkiServerVerifier>>,
}

/// Returns a verifier of servers' certificates against these roots.
pub fn verifier(roots: Roots) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    let webpki = match roots.is_empty() {
        true => None,
        false => {
            let store = Arc::new(roots.store.clone());
            let builder = WebPkiServerVerifier::builder_with_provider(store, provider());
            Some(builder.build().map_err(|e| Error::General(e.to_string()))?)
        }
    };
    Ok(Arc::new(Verifier { roots, webpki }))
}

fn may_sign_others(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref::<webpki::Error>(), Some(webpki::Error::CaUsedAsEndEntity))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(webpki) = &self.webpki else { return Err(CertificateError::UnknownIssuer.into()) };
        if !self.roots.certificates.contains(leaf) {
            match webpki.verify_server_cert(leaf, intermediates, name, ocsp, now) {
                Err(error) if may_sign_others(&error) => {}
                other => return other,
            }
        }
        chain::verify(Purpose::Server, leaf, intermediates, &self.roots.certificates, now)?;
        verify_server_name(&ParsedCertificate::try_from(leaf)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        KeyUsagePurpose, date_time_ymd,
    };
    use rustls::pki_types::pem::PemObject;

    /// A subject with its key, which may sign others.
    struct Made {
        der: CertificateDer<'static>,
        issuer: Issuer<'static, KeyPair>,
    }

    fn params(name: &str, hosts: &[&str]) -> CertificateParams {
        let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    }

    fn authority(name: &str, hosts: &[&str]) -> CertificateParams {
        let mut params = params(name, hosts);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    }

    fn own(params: CertificateParams) -> Made {
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Made { der, issuer: Issuer::new(params, key) }
    }

    fn signed(params: CertificateParams, by: &Made) -> Made {
        let key = KeyPair::generate().unwrap();
        let der = params.signed_by(&key, &by.issuer).unwrap().der().clone();
        Made { der, issuer: Issuer::new(params, key) }
    }

    fn check(roots: &[&Made], leaf: &Made, intermediates: &[&Made], name: &str) -> Result<(), String> {
        let mut trusted = Roots::empty();
        roots.iter().for_each(|root| trusted.add(root.der.clone()).unwrap());
        let intermediates: Vec<_> = intermediates.iter().map(|made| made.der.clone()).collect();
        let wanted = ServerName::try_from(name).unwrap();
        let found = verifier(trusted).unwrap().verify_server_cert(
            &leaf.der,
            &intermediates,
            &wanted,
            &[],
            UnixTime::now(),
        );
        found.map(|_| ()).map_err(|error| match error {
            Error::InvalidCertificate(why) => crate::certificate_words(&why, name),
            other => other.to_string(),
        })
    }

    const UNKNOWN: &str = "x509: certificate signed by unknown authority";

    #[test]
    fn a_trusted_certificate_is_accepted_whatever_it_may_sign() {
        let (may_sign, plain) = (own(authority("s", &["s"])), own(params("s", &["s"])));
        for made in [&may_sign, &plain] {
            assert_eq!(check(&[made], made, &[], "s"), Ok(()));
            assert_eq!(
                check(&[made], made, &[], "t").unwrap_err(),
                "x509: certificate is valid for s, not t"
            );
        }
        // Another certificate with the same name is not trusted.
        let other = own(authority("s", &["s"]));
        for (root, leaf) in [(&may_sign, &other), (&plain, &other), (&may_sign, &plain)] {
            assert_eq!(check(&[root], leaf, &[], "s").unwrap_err(), UNKNOWN);
        }
        assert_eq!(check(&[], &may_sign, &[], "s").unwrap_err(), UNKNOWN);
        // A certificate that it has signed is trusted through it; a pinned certificate needs no signer.
        let below = signed(params("x", &["x"]), &may_sign);
        assert_eq!(check(&[&may_sign], &below, &[], "x"), Ok(()));
        assert_eq!(check(&[&below], &below, &[], "x"), Ok(()));
    }

    #[test]
    fn validity_and_purpose_are_checked() {
        let with = |change: fn(&mut CertificateParams)| {
            let mut params = authority("s", &["s"]);
            change(&mut params);
            own(params)
        };
        let expired = with(|p| {
            p.not_before = date_time_ymd(2000, 1, 1);
            p.not_after = date_time_ymd(2001, 1, 1);
        });
        let why = check(&[&expired], &expired, &[], "s").unwrap_err();
        assert!(why.starts_with("x509: certificate has expired or is not yet valid: current time "), "{why}");
        assert!(why.ends_with(" is after 2001-01-01T00:00:00Z"), "{why}");
        let early = with(|p| p.not_before = date_time_ymd(3000, 1, 1));
        assert!(check(&[&early], &early, &[], "s").unwrap_err().ends_with(" is before 3000-01-01T00:00:00Z"));
        let client = with(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
        assert_eq!(
            check(&[&client], &client, &[], "s").unwrap_err(),
            "x509: certificate specifies an incompatible key usage"
        );
        let any = with(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any]);
        assert_eq!(check(&[&any], &any, &[], "s"), Ok(()));
    }

    #[test]
    fn a_chain_leads_from_an_authority_that_serves_to_a_root() {
        let root = own(authority("root", &[]));
        let middle = signed(authority("middle", &[]), &root);
        let leaf = signed(authority("s", &["s"]), &middle);
        assert_eq!(check(&[&root], &leaf, &[&middle], "s"), Ok(()));
        assert_eq!(check(&[&root], &signed(authority("s", &["s"]), &root), &[], "s"), Ok(()));
        assert_eq!(check(&[&root], &leaf, &[], "s").unwrap_err(), UNKNOWN);
        // Trusting an intermediate certificate is sufficient.
        assert_eq!(check(&[&middle], &leaf, &[], "s"), Ok(()));

        let limited = |change: fn(&mut CertificateParams)| {
            let mut params = authority("limited", &[]);
            change(&mut params);
            let limited = signed(params, &root);
            let below = signed(authority("below", &[]), &limited);
            let leaf = signed(authority("s", &["s"]), &below);
            check(&[&root], &leaf, &[&below, &limited], "s")
        };
        assert_eq!(limited(|_| {}), Ok(()));
        let refusals: [fn(&mut CertificateParams); 6] = [
            |p| p.is_ca = IsCa::ExplicitNoCa,
            |p| p.is_ca = IsCa::Ca(BasicConstraints::Constrained(0)),
            |p| p.key_usages = vec![KeyUsagePurpose::DigitalSignature],
            |p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth],
            |p| p.not_after = date_time_ymd(2001, 1, 1),
            |p| {
                p.name_constraints = Some(rcgen::NameConstraints {
                    permitted_subtrees: vec![rcgen::GeneralSubtree::DnsName("elsewhere".into())],
                    excluded_subtrees: Vec::new(),
                });
            },
        ];
        for refused in refusals {
            assert_eq!(limited(refused).unwrap_err(), UNKNOWN);
        }
        // A signature by another key of an issuer with the same name.
        let forged = signed(authority("s", &["s"]), &own(authority("root", &[])));
        assert_eq!(check(&[&root], &forged, &[], "s").unwrap_err(), UNKNOWN);
    }

    #[test]
    fn p521_keys_are_known() {
        let read = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
        let (root, leaf) =
            (read(include_str!("../tests/p521-ca.pem")), read(include_str!("../tests/p521.pem")));
        let mut roots = Roots::empty();
        roots.add(root).unwrap();
        let verifier = verifier(roots).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        verifier.verify_server_cert(&leaf, &[], &name, &[], UnixTime::now()).unwrap();
        let mut forged = leaf.to_vec();
        *forged.last_mut().unwrap() ^= 1;
        assert!(verifier.verify_server_cert(&forged.into(), &[], &name, &[], UnixTime::now()).is_err());
        assert!(verifier.supported_verify_schemes().contains(&SignatureScheme::ECDSA_NISTP521_SHA512));
    }
}
