//! Writes and signs end-entity certificates (RFC 5280): for the cluster's own keys, and for certificate
//! requests.
//!
//! rcgen stores a subject as a map and would drop all but one organization. Kubernetes reads groups from
//! organizations, so the certificates are encoded here.

mod der;

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use knarr_api::certificates::signature;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

use crate::certificates::facts;

/// How far clocks of other machines may be behind. Source: kube-controller-manager's backdating.
const BACKDATED: Duration = Duration::from_secs(5 * 60);
/// Certificates with a shorter lifetime are not shortened by the backdating.
const SHORT: Duration = Duration::from_secs(8 * 3600);

/// What a certificate is for, and which names it has.
pub struct Subject<'a> {
    pub common_name: &'a str,
    pub organizations: &'a [&'a str],
    pub names: &'a [String],
    pub addresses: &'a [IpAddr],
    pub server: bool,
    pub client: bool,
}

/// An authority: its certificates (PEM; empty for a bare key) and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub certificates: String,
    pub key: String,
}

/// A CA: its certificate and key.
pub struct Authority<'a> {
    pub certificate_pem: &'a str,
    pub key: &'a KeyPair,
}

/// What the certificate may be used for, besides signatures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usages {
    pub key_encipherment: bool,
    pub server: bool,
    pub client: bool,
}

/// When the certificate is valid.
#[derive(Debug, Clone, Copy)]
pub struct Validity {
    pub from: Timestamp,
    pub lifetime: Duration,
}

/// The parts that differ between certificates, each in DER.
struct Leaf {
    subject: Vec<u8>,
    public_key: Vec<u8>,
    alternative_names: Option<Vec<u8>>,
}

/// The holder of an end-entity certificate, and when the certificate expires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub server: bool,
    pub client: bool,
    pub not_after: Timestamp,
}

impl Holder {
    /// Reads the first certificate of a PEM text.
    pub fn of(pem: &str) -> Result<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).context("no certificate")?;
        let (_, certificate) =
            x509_parser::parse_x509_certificate(&der).context("the certificate does not parse")?;
        let usages = certificate.extended_key_usage()?.map(|u| u.value);
        let text = |name: &x509_parser::x509::AttributeTypeAndValue| name.as_str().map(str::to_owned);
        let subject = certificate.subject();
        let mut holder = Self {
            common_name: subject.iter_common_name().next().map_or(Ok(String::new()), text)?,
            organizations: subject.iter_organization().map(text).collect::<Result<_, _>>()?,
            names: Vec::new(),
            addresses: Vec::new(),
            server: usages.is_some_and(|u| u.server_auth),
            client: usages.is_some_and(|u| u.client_auth),
            not_after: Timestamp::from_second(certificate.validity().not_after.timestamp())?,
        };
        let alternatives = certificate.subject_alternative_name()?;
        for name in alternatives.iter().flat_map(|a| &a.value.general_names) {
            match name {
                GeneralName::DNSName(name) => holder.names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => {
                    let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                    let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
                    holder.addresses.push(address.context("an address of a strange length")?);
                }
                _ => {}
            }
        }
        Ok(holder)
    }
}

/// Returns the alternative names for these names and addresses. A name that is an address (of a node, for
/// instance) becomes an address entry, because clients check addresses there.
///
/// Source: `addressesToHostnamesAndIPs` of `k8s.io/kubernetes/pkg/kubelet/certificate`.
pub fn alternative_names(names: &[String], addresses: &[IpAddr]) -> (Vec<String>, Vec<IpAddr>) {
    let (mut plain, mut all) = (Vec::new(), Vec::new());
    for name in names {
        match name.parse() {
            Ok(address) => all.push(address),
            Err(_) => plain.push(name.clone()),
        }
    }
    for address in addresses {
        if !all.contains(address) {
            all.push(*address);
        }
    }
    (plain, all)
}

/// Fails unless the certificate (PEM) belongs to this key.
pub fn check_pair(certificate_pem: &str, key: &KeyPair) -> Result<()> {
    let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes())?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der)?;
    if certificate.public_key().raw != key.subject_public_key_info() {
        bail!("certificate and key do not belong together");
    }
    Ok(())
}

/// Returns whether the first certificate of one PEM text is signed by the first of another.
pub fn is_signed_by(certificate_pem: &str, authority_pem: &str) -> bool {
    let first = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes());
    let (Ok(certificate), Ok(authority)) = (first(certificate_pem), first(authority_pem)) else {
        return false;
    };
    facts::is_signed_by(&certificate, &authority)
}

/// Signs a certificate for a key of the cluster's own. Returns PEM.
pub fn for_key(
    authority: &Authority,
    key: &KeyPair,
    subject: &Subject,
    validity: Validity,
) -> Result<String> {
    if let Some(name) = subject.names.iter().find(|name| !name.is_ascii()) {
        bail!("{name} is no host name: write it in its ASCII form");
    }
    let (names, addresses) = alternative_names(subject.names, subject.addresses);
    let leaf = Leaf {
        subject: der::name(subject.organizations, subject.common_name),
        public_key: key.subject_public_key_info(),
        alternative_names: der::general_names(&names, &addresses),
    };
    let usages = Usages { server: subject.server, client: subject.client, key_encipherment: false };
    sign(authority, &leaf, usages, validity)
}

/// Signs a certificate for a request (PKCS#10, DER). It takes only subject, key and alternative names from
/// the request.
pub fn for_request(authority: &Authority, csr: &[u8], usages: Usages, validity: Validity) -> Result<String> {
    let (_, csr) = X509CertificationRequest::from_der(csr).context("the request does not parse")?;
    signature::check(&csr).context("the request is not signed by its own key")?;
    let info = &csr.certification_request_info;
    let mut alternative_names = None;
    for attribute in info.iter_attributes() {
        if let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() {
            let named = |e: &&x509_parser::extensions::X509Extension| {
                matches!(e.parsed_extension(), ParsedExtension::SubjectAlternativeName(_))
            };
            alternative_names = requested.extensions.iter().find(named).map(|e| e.value.to_vec());
        }
    }
    let leaf = Leaf {
        subject: info.subject.as_raw().to_vec(),
        public_key: info.subject_pki.raw.to_vec(),
        alternative_names,
    };
    sign(authority, &leaf, usages, validity)
}

fn sign(authority: &Authority, leaf: &Leaf, usages: Usages, validity: Validity) -> Result<String> {
    let root =
        CertificateDer::from_pem_slice(authority.certificate_pem.as_bytes()).context("no CA certificate")?;
    let (_, root) =
        x509_parser::parse_x509_certificate(&root).context("the CA certificate does not parse")?;
    let ends = Timestamp::from_second(root.validity().not_after.timestamp())?;
    if ends <= validity.from {
        bail!("the CA has expired");
    }
    let backdated = if validity.lifetime < SHORT { Duration::ZERO } else { BACKDATED };
    let not_after = validity.from.checked_add(validity.lifetime.saturating_sub(backdated))?.min(ends);
    let algorithm = algorithm_of(authority.key)?;
    let key_identifier = root.iter_extensions().find_map(|e| match e.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
        _ => None,
    });
    let certificate = der::sequence(&[
        der::tagged(0, &der::integer(&[2])),
        der::integer(&serial_number()?),
        algorithm.to_vec(),
        root.subject().as_raw().to_vec(),
        der::sequence(&[der::time(validity.from - BACKDATED), der::time(not_after)]),
        leaf.subject.clone(),
        leaf.public_key.clone(),
        der::tagged(3, &der::sequence(&extensions(leaf, usages, key_identifier.as_deref()))),
    ]);
    let signature = authority.key.sign(&certificate)?;
    let whole = der::sequence(&[certificate, algorithm.to_vec(), der::bit_string(0, &signature)]);
    Ok(pem(&whole))
}

fn extensions(leaf: &Leaf, usages: Usages, key_identifier: Option<&[u8]>) -> Vec<Vec<u8>> {
    // digitalSignature is bit 0, keyEncipherment bit 2.
    let bits = if usages.key_encipherment { (5, 0b1010_0000) } else { (7, 0b1000_0000) };
    let purpose = |wanted: bool, last: u8| wanted.then(|| der::oid(&[0x2b, 6, 1, 5, 5, 7, 3, last]));
    let purposes: Vec<Vec<u8>> =
        [purpose(usages.server, 1), purpose(usages.client, 2)].into_iter().flatten().collect();
    let mut list = vec![
        der::extension(15, true, &der::bit_string(bits.0, &[bits.1])),
        der::extension(19, true, &der::sequence(&[])),
    ];
    if !purposes.is_empty() {
        list.push(der::extension(37, false, &der::sequence(&purposes)));
    }
    if let Some(id) = key_identifier {
        list.push(der::extension(35, false, &der::sequence(&[der::tlv(0x80, id)])));
    }
    if let Some(names) = &leaf.alternative_names {
        // Critical if the subject is empty, because then these names alone identify the holder.
        list.push(der::extension(17, leaf.subject == der::sequence(&[]), names));
    }
    list
}

/// Returns the AlgorithmIdentifier of the signatures that this key makes.
fn algorithm_of(key: &KeyPair) -> Result<&'static [u8]> {
    let known: [(&rcgen::SignatureAlgorithm, &[u8]); 4] = [
        (&rcgen::PKCS_ECDSA_P256_SHA256, &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]),
        (&rcgen::PKCS_ECDSA_P384_SHA384, &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3]),
        (&rcgen::PKCS_ED25519, &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70]),
        (&rcgen::PKCS_RSA_SHA256, &[0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11, 5, 0]),
    ];
    let found = known.iter().find(|(algorithm, _)| *algorithm == key.algorithm());
    found.map(|(_, der)| *der).context("the CA's key is of a kind that cannot sign here")
}

fn serial_number() -> Result<[u8; 16]> {
    let mut bytes = [0u8; 16];
    let random = ring::rand::SystemRandom::new();
    if ring::rand::SecureRandom::fill(&random, &mut bytes).is_err() {
        bail!("the system provides no random numbers");
    }
    // The number is positive and has no leading zero byte, so its encoding has the full length.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(bytes)
}

pub fn pem(der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        out.push_str(line);
        out.push('\n');
        rest = more;
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa};

    fn authority() -> (String, KeyPair) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key)
    }

    fn validity(lifetime: u64) -> Validity {
        Validity { from: Timestamp::now(), lifetime: Duration::from_secs(lifetime) }
    }

    /// Checks that rustls accepts the certificate, then calls `look` with its contents.
    fn check(root: &str, leaf: &str, look: impl FnOnce(&x509_parser::certificate::X509Certificate)) {
        let root_der = CertificateDer::from_pem_slice(root.as_bytes()).unwrap();
        let leaf_der = CertificateDer::from_pem_slice(leaf.as_bytes()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(root_der.clone()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
        let now = rustls::pki_types::UnixTime::now();
        verifier.build().unwrap().verify_client_cert(&leaf_der, &[], now).unwrap();
        let (rest, certificate) = x509_parser::parse_x509_certificate(&leaf_der).unwrap();
        assert!(rest.is_empty());
        let (_, root) = x509_parser::parse_x509_certificate(&root_der).unwrap();
        certificate.verify_signature(Some(root.public_key())).unwrap();
        look(&certificate);
    }

    #[test]
    fn our_own_keys_get_all_their_groups_and_names() {
        let (root, ca_key) = authority();
        let key = KeyPair::generate().unwrap();
        let subject = Subject {
            common_name: "jane",
            organizations: &["dev", "ops"],
            names: &["n1".to_owned()],
            addresses: &["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            server: true,
            client: true,
        };
        let authority = Authority { certificate_pem: &root, key: &ca_key };
        let pem = for_key(&authority, &key, &subject, validity(86_400)).unwrap();
        check(&root, &pem, |certificate| {
            assert_eq!(certificate.subject().to_string(), "O=dev, O=ops, CN=jane");
            let names = certificate.subject_alternative_name().unwrap().unwrap();
            assert_eq!(names.value.general_names.len(), 3);
            let usages = certificate.extended_key_usage().unwrap().unwrap().value;
            assert!(usages.server_auth && usages.client_auth);
            assert!(!certificate.is_ca());
            assert!(certificate.raw_serial().len() == 16);
        });
    }

    #[test]
    fn requests_keep_who_they_are_and_nothing_else() {
        let (root, ca_key) = authority();
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let mut params = CertificateParams::new(vec!["n1".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let csr = params.serialize_request(&key).unwrap();
        let authority = Authority { certificate_pem: &root, key: &ca_key };
        let usages = Usages { client: true, key_encipherment: true, server: false };
        let pem = for_request(&authority, csr.der(), usages, validity(600)).unwrap();
        check(&root, &pem, |certificate| {
            assert!(!certificate.is_ca(), "a certificate request cannot ask for a CA");
            let usages = certificate.key_usage().unwrap().unwrap().value;
            assert!(usages.digital_signature() && usages.key_encipherment() && !usages.key_cert_sign());
            assert!(!certificate.extended_key_usage().unwrap().unwrap().value.server_auth);
            assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
            assert!(certificate.subject_alternative_name().unwrap().is_some());
        });
        let p521 = include_str!("../../../../crates/api/src/certificates/testdata/p521-sha512.csr");
        let p521 = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(p521.as_bytes()).unwrap();
        let pem = for_request(&authority, &p521, usages, validity(600)).unwrap();
        check(&root, &pem, |certificate| assert_eq!(certificate.subject().to_string(), "CN=u"));
        assert!(for_request(&authority, b"nonsense", usages, validity(600)).is_err());
        let mut forged = csr.der().to_vec();
        let last = forged.len() - 1;
        forged[last] ^= 1;
        assert!(for_request(&authority, &forged, usages, validity(600)).is_err());
    }

    #[test]
    fn lifetimes_are_backdated_and_nothing_outlives_the_authority() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ends = std::time::SystemTime::now() + Duration::from_secs(3600);
        params.not_after = ends.into();
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        params.not_after = (std::time::SystemTime::now() + Duration::from_secs(86_400)).into();
        let lasting = params.self_signed(&key).unwrap().pem();
        let authority = Authority { certificate_pem: &root, key: &key };
        let csr = CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap();
        let usages = Usages { client: true, ..Usages::default() };
        let pem = for_request(&authority, csr.der(), usages, validity(86_400)).unwrap();
        check(&root, &pem, |certificate| {
            let left = certificate.validity().not_after.timestamp() - Timestamp::now().as_second();
            assert!((3500..=3600).contains(&left), "{left}");
        });
        for (asked, given) in [(600, 600), (8 * 3600, 8 * 3600 - 300)] {
            let from = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
            let usages = Usages::default();
            let lasting = Authority { certificate_pem: &lasting, key: &key };
            let lifetime = Duration::from_secs(asked);
            let pem = for_request(&lasting, csr.der(), usages, Validity { from, lifetime }).unwrap();
            check(lasting.certificate_pem, &pem, |certificate| {
                let of = certificate.validity();
                let times = [of.not_before, of.not_after].map(|t| t.timestamp() - from.as_second());
                assert_eq!(times, [-300, given]);
            });
        }
        let late = Validity {
            from: Timestamp::now() + Duration::from_secs(7200),
            lifetime: Duration::from_secs(60),
        };
        assert!(for_request(&authority, csr.der(), usages, late).is_err());
    }

    #[test]
    fn lengths_and_times() {
        assert_eq!(der::tlv(4, &[0; 127])[..2], [4, 127]);
        assert_eq!(der::tlv(4, &[0; 128])[..3], [4, 0x81, 128]);
        assert_eq!(der::tlv(4, &[0; 300])[..4], [4, 0x82, 1, 44]);
        assert_eq!(der::time("2049-12-31T23:59:59Z".parse().unwrap())[2..], *b"491231235959Z");
        assert_eq!(der::time("2050-01-01T00:00:00Z".parse().unwrap())[2..], *b"20500101000000Z");
    }
}
