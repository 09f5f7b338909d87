//! Tests of clients' handshakes and chains, with certificates of versions 3 and 1.

use std::io::{Read, Write};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SigningKey};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConnection, ServerConfig, ServerConnection, SupportedProtocolVersion, version};

use super::*;
use crate::trusting_anybody;

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

struct Authority {
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Self { der, issuer: Issuer::new(params, key) }
    }

    fn roots(&self) -> Roots {
        let mut roots = Roots::empty();
        roots.add(self.der.clone()).unwrap();
        roots
    }

    /// Signs a certificate of version 3 for the key.
    fn sign(&self, key: &KeyPair) -> CertificateDer<'static> {
        params("alice").signed_by(key, &self.issuer).unwrap().der().clone()
    }

    /// Signs a certificate of version 1, which has neither a version field nor extensions.
    fn sign_old(&self, key: &KeyPair) -> CertificateDer<'static> {
        let whole = self.sign(key);
        let (_, certificate, _) = element(&whole);
        let (_, body, _) = element(certificate);
        let mut parts = Vec::new();
        let mut rest = body;
        while !rest.is_empty() {
            let (part, _, after) = element(rest);
            parts.push(part);
            rest = after;
        }
        // Serial number, algorithm, issuer, validity, subject, key.
        let body = sequence(&parts[1..7]);
        let mut signature = vec![0];
        signature.extend(self.issuer.key().sign(&body).unwrap());
        sequence(&[&body, parts[2], &tagged(0x03, &signature)]).into()
    }
}

/// Splits the first element off some DER: the whole element, its content, and the rest.
fn element(der: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let (header, length) = match der[1] {
        0x81 => (3, usize::from(der[2])),
        0x82 => (4, usize::from(der[2]) << 8 | usize::from(der[3])),
        short => (2, usize::from(short)),
    };
    let (whole, rest) = der.split_at(header + length);
    (whole, &whole[header..], rest)
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    [&[tag, 0x82], &length[..], content].concat()
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tagged(0x30, &parts.concat())
}

/// Presents a certificate without checking it.
#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Performs a handshake of this version and returns the client's certificate as the server sees it.
fn handshake(
    roots: Roots,
    certificate: CertificateDer<'static>,
    key: &KeyPair,
    version: &'static SupportedProtocolVersion,
) -> Result<CertificateDer<'static>, String> {
    let own = Authority::new("server");
    let server_key = PrivateKeyDer::try_from(own.issuer.key().serialize_der()).unwrap();
    let server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_client_cert_verifier(client_verifier(roots).unwrap())
        .with_single_cert(vec![own.der.clone()], server_key)
        .unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let key = provider().key_provider.load_private_key(key).unwrap();
    let shown = Shown(Arc::new(CertifiedKey::new(vec![certificate], key)));
    let client = trusting_anybody().unwrap().with_client_cert_resolver(Arc::new(shown));
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from("s").unwrap()).unwrap();
    while server.is_handshaking() || client.is_handshaking() || client.wants_write() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets().map_err(|e| e.to_string())?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets().map_err(|e| e.to_string())?;
    }
    // Both sides use the new keys for what is sent from here on.
    client.writer().write_all(b"hello").unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    server.read_tls(&mut bytes.as_slice()).unwrap();
    server.process_new_packets().map_err(|e| e.to_string())?;
    let mut text = [0; 5];
    server.reader().read_exact(&mut text).unwrap();
    assert_eq!(&text, b"hello");
    Ok(server.peer_certificates().unwrap()[0].clone().into_owned())
}

#[test]
fn certificates_of_versions_3_and_1_are_accepted() {
    let (authority, other) = (Authority::new("ca"), Authority::new("ca"));
    let (key, foreign) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    for version in [&version::TLS12, &version::TLS13] {
        for certificate in [authority.sign(&key), authority.sign_old(&key)] {
            let seen = handshake(authority.roots(), certificate.clone(), &key, version);
            assert_eq!(seen, Ok(certificate.clone()), "{version:?}");
            let stolen = handshake(authority.roots(), certificate.clone(), &foreign, version).unwrap_err();
            assert!(stolen.contains("BadSignature"), "{version:?}: {stolen}");
            let unknown = handshake(other.roots(), certificate, &key, version).unwrap_err();
            assert!(unknown.contains("invalid peer certificate"), "{version:?}: {unknown}");
        }
    }
}

#[test]
fn an_old_certificate_is_checked_like_any_other() {
    let authority = Authority::new("ca");
    let certificate = authority.sign_old(&KeyPair::generate().unwrap());
    assert!(is_old(&certificate) && !is_old(&authority.der));
    let verifier = client_verifier(authority.roots()).unwrap();
    let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    assert!(verifier.verify_client_cert(&certificate, &[], UnixTime::now()).is_ok());
    let expired = verifier.verify_client_cert(&certificate, &[], at(u64::MAX >> 20)).unwrap_err();
    assert!(matches!(expired, Error::InvalidCertificate(CertificateError::ExpiredContext { .. })));
    let mut changed = certificate.to_vec();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    assert!(verifier.verify_client_cert(&changed.into(), &[], UnixTime::now()).is_err());
    let longer = [&certificate[..], &[0]].concat();
    assert!(verifier.verify_client_cert(&longer.into(), &[], UnixTime::now()).is_err());
    // It may not sign other certificates.
    let below =
        Authority { der: certificate, issuer: Issuer::new(params("alice"), KeyPair::generate().unwrap()) };
    let leaf = below.sign_old(&KeyPair::generate().unwrap());
    assert!(verifier.verify_client_cert(&leaf, &[below.der], UnixTime::now()).is_err());
}
