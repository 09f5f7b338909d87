//! Verifies the chain of a certificate of a kind that webpki refuses, as Go's `x509.Certificate.Verify` does.
//!
//! It is stricter than Go in one point: certificates with name constraints cannot be part of such a chain.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error};
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{
    OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_EXTENDED_KEY_USAGE, OID_X509_EXT_KEY_USAGE,
    OID_X509_EXT_SUBJECT_ALT_NAME,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::p521::provider;

/// The highest number of certificates between the peer's and the root's.
const MAX_INTERMEDIATES: usize = 8;
/// The highest number of signatures that are checked for one peer. Source: Go's `maxChainSignatureChecks`.
const MAX_SIGNATURES: usize = 100;

/// The role in which the peer presents its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Server,
    Client,
}

/// A parsed certificate with its bytes.
struct Link<'a> {
    der: &'a CertificateDer<'a>,
    parsed: X509Certificate<'a>,
}

impl<'a> Link<'a> {
    fn new(der: &'a CertificateDer<'a>) -> Option<Self> {
        let (rest, parsed) = X509Certificate::from_der(der).ok()?;
        // The owner of a certificate must not be able to change its bytes, and thereby its fingerprint, without
        // the signer.
        let is_whole = rest.is_empty() && parsed.tbs_certificate.signature == parsed.signature_algorithm;
        is_whole.then_some(Self { der, parsed })
    }

    fn is_valid_at(&self, now: UnixTime) -> Result<(), CertificateError> {
        let moment = |seconds: i64| {
            UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
        };
        let validity = self.parsed.validity();
        let not_before = moment(validity.not_before.timestamp());
        let not_after = moment(validity.not_after.timestamp());
        if now.as_secs() < not_before.as_secs() {
            return Err(CertificateError::NotValidYetContext { time: now, not_before });
        }
        if now.as_secs() > not_after.as_secs() {
            return Err(CertificateError::ExpiredContext { time: now, not_after });
        }
        Ok(())
    }

    /// Returns whether this code supports every critical extension of the certificate.
    fn is_understood(&self) -> bool {
        let known = [
            OID_X509_EXT_BASIC_CONSTRAINTS,
            OID_X509_EXT_EXTENDED_KEY_USAGE,
            OID_X509_EXT_KEY_USAGE,
            OID_X509_EXT_SUBJECT_ALT_NAME,
        ];
        let constrains_names =
            |parsed: &ParsedExtension| matches!(parsed, ParsedExtension::NameConstraints(_));
        self.parsed.extensions().iter().all(|extension| {
            !constrains_names(extension.parsed_extension())
                && (!extension.critical || known.contains(&extension.oid))
        })
    }

    /// Returns whether the certificate may identify such peers, or sign certificates that do.
    fn serves(&self, purpose: Purpose) -> bool {
        match (self.parsed.extended_key_usage(), purpose) {
            (Ok(None), _) => true,
            (Ok(Some(usage)), Purpose::Server) => usage.value.any || usage.value.server_auth,
            (Ok(Some(usage)), Purpose::Client) => usage.value.any || usage.value.client_auth,
            (Err(_), _) => false,
        }
    }

    /// Returns whether it may sign a certificate with this many certificates between that one and the peer's.
    fn may_sign(&self, below: usize) -> bool {
        let signs = match self.parsed.key_usage() {
            Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
            Err(_) => false,
        };
        let is_authority = match self.parsed.basic_constraints() {
            Ok(Some(constraints)) => {
                let deep_enough =
                    constraints.value.path_len_constraint.is_none_or(|most| below <= most as usize);
                constraints.value.ca && deep_enough
            }
            _ => false,
        };
        signs && is_authority
    }

    fn is_signed_by(&self, issuer: &Self) -> bool {
        let Ok(key) = webpki::EndEntityCert::try_from(issuer.der) else { return false };
        let oid = self.parsed.signature_algorithm.algorithm.as_bytes();
        let provider = provider();
        let mut algorithms = provider.signature_verification_algorithms.all.iter().filter(|algorithm| {
            // The object identifier comes first, with its tag and length.
            let id = algorithm.signature_alg_id();
            let id = id.as_ref();
            id.get(1).is_some_and(|length| id.get(2..2 + usize::from(*length)) == Some(oid))
        });
        let (message, signature) = (self.parsed.tbs_certificate.as_ref(), &self.parsed.signature_value.data);
        algorithms.any(|algorithm| key.verify_signature(*algorithm, message, signature).is_ok())
    }
}

/// Returns whether a chain leads from the peer's certificate to a root, which may be that certificate itself.
pub fn verify(
    purpose: Purpose,
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &[CertificateDer<'static>],
    now: UnixTime,
) -> Result<(), Error> {
    let link = Link::new(leaf).ok_or(CertificateError::BadEncoding)?;
    link.is_valid_at(now)?;
    if !link.is_understood() {
        return Err(CertificateError::UnhandledCriticalExtension.into());
    }
    if !link.serves(purpose) {
        return Err(CertificateError::InvalidPurpose.into());
    }
    if roots.contains(leaf) {
        return Ok(());
    }
    let candidates =
        Candidates { roots: usable(purpose, roots, now), intermediates: usable(purpose, intermediates, now) };
    match candidates.lead_to_root(&link, 0, &mut 0) {
        true => Ok(()),
        false => Err(CertificateError::UnknownIssuer.into()),
    }
}

fn usable<'a>(purpose: Purpose, certificates: &'a [CertificateDer<'a>], now: UnixTime) -> Vec<Link<'a>> {
    let links = certificates.iter().filter_map(Link::new);
    let fits =
        |link: &Link<'a>| link.is_valid_at(now).is_ok() && link.is_understood() && link.serves(purpose);
    links.filter(fits).collect()
}

struct Candidates<'a> {
    roots: Vec<Link<'a>>,
    intermediates: Vec<Link<'a>>,
}

impl Candidates<'_> {
    /// `below` is the number of certificates between this one and the peer's, `signatures` that of the checks
    /// so far.
    fn lead_to_root(&self, link: &Link<'_>, below: usize, signatures: &mut usize) -> bool {
        if self.roots.iter().any(|root| issued(link, root, below, signatures)) {
            return true;
        }
        below < MAX_INTERMEDIATES
            && self.intermediates.iter().any(|issuer| {
                issued(link, issuer, below, signatures) && self.lead_to_root(issuer, below + 1, signatures)
            })
    }
}

fn issued(link: &Link<'_>, issuer: &Link<'_>, below: usize, signatures: &mut usize) -> bool {
    if link.parsed.issuer().as_raw() != issuer.parsed.subject().as_raw() || !issuer.may_sign(below) {
        return false;
    }
    *signatures += 1;
    *signatures <= MAX_SIGNATURES && link.is_signed_by(issuer)
}
