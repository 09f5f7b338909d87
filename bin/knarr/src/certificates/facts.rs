//! The contents of a certificate: its subject, its uses, its issuer and its expiry.

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;

/// Returns the certificates of a PEM text, in DER; at least one.
pub fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().context("not PEM")?;
    if all.is_empty() {
        bail!("no certificate in it");
    }
    Ok(all)
}

/// The contents of one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The common name, or the whole subject if it has none.
    pub subject: String,
    pub groups: Vec<String>,
    /// `authority`, `server`, `client`.
    pub uses: Vec<&'static str>,
    /// The issuer's common name.
    pub issuer: String,
    pub expires: Timestamp,
}

impl Facts {
    pub fn of(der: &[u8]) -> Result<Self> {
        let certificate = parse(der)?;
        let usages = certificate.extended_key_usage().ok().flatten().map(|u| u.value);
        let has = |on: bool, word: &'static str| on.then_some(word);
        let uses = [
            has(certificate.is_ca(), "authority"),
            has(usages.is_some_and(|u| u.server_auth), "server"),
            has(usages.is_some_and(|u| u.client_auth), "client"),
        ];
        let organizations = certificate.subject().iter_organization();
        Ok(Self {
            subject: name(certificate.subject()),
            groups: organizations.filter_map(|o| o.as_str().ok()).map(str::to_owned).collect(),
            uses: uses.into_iter().flatten().collect(),
            issuer: name(certificate.issuer()),
            expires: Timestamp::from_second(certificate.validity().not_after.timestamp())
                .context("its end is out of range")?,
        })
    }
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).context("no X.509 certificate")?;
    Ok(certificate)
}

fn name(name: &x509_parser::x509::X509Name) -> String {
    let common = name.iter_common_name().find_map(|n| n.as_str().ok());
    common.map_or_else(|| name.to_string(), str::to_owned)
}

/// Returns whether the key of `authority` signed `certificate`; both in DER.
pub fn is_signed_by(certificate: &[u8], authority: &[u8]) -> bool {
    let (Ok(certificate), Ok(authority)) = (parse(certificate), parse(authority)) else { return false };
    certificate.issuer() == authority.subject()
        && certificate.verify_signature(Some(authority.public_key())).is_ok()
}
