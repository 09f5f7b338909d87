//! The certificate request (PKCS#10, RFC 2986) inside a CertificateSigningRequest, and issued certificates.

use std::net::IpAddr;

use jiff::Timestamp;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

/// Why a certificate request is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    BlockType,
    #[error("x509: malformed certificate request: {0}")]
    Malformed(String),
    #[error("x509: the signature of the certificate request does not fit its key")]
    Signature,
    #[error("x509: cannot verify signature: algorithm unimplemented")]
    Algorithm,
}

/// The identity that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CertificateRequest {
    pub common_names: Vec<String>,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub ip_addresses: Vec<IpAddr>,
    pub email_addresses: Vec<String>,
    pub uris: Vec<String>,
    /// Whether the request has alternative names of other types, or malformed ones.
    pub other_names: bool,
    /// The DER encoding of the request.
    pub der: Vec<u8>,
}

impl CertificateRequest {
    /// Parses the first PEM block. Does not check the signature: see [`CertificateRequest::check_signature`].
    pub fn parse(pem: &[u8]) -> Result<Self, RequestError> {
        let first = Pem::iter_from_buffer(pem).next();
        let Some(Ok(block)) = first.filter(|b| b.as_ref().is_ok_and(|b| b.label == "CERTIFICATE REQUEST"))
        else {
            return Err(RequestError::BlockType);
        };
        Self::from_der(block.contents)
    }

    pub(super) fn from_der(der: Vec<u8>) -> Result<Self, RequestError> {
        let mut found = Self::default();
        {
            let csr = whole(&der)?;
            let subject = &csr.certification_request_info.subject;
            for name in subject.iter_common_name() {
                found.common_names.push(text(name)?);
            }
            for organization in subject.iter_organization() {
                found.organizations.push(text(organization)?);
            }
            for extension in csr.requested_extensions().into_iter().flatten() {
                if let ParsedExtension::SubjectAlternativeName(names) = extension {
                    names.general_names.iter().for_each(|name| found.add(name));
                }
            }
        }
        found.der = der;
        Ok(found)
    }

    fn add(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
            GeneralName::RFC822Name(address) => self.email_addresses.push((*address).to_owned()),
            GeneralName::URI(uri) => self.uris.push((*uri).to_owned()),
            GeneralName::IPAddress(bytes) => match ip_address(bytes) {
                Some(address) => self.ip_addresses.push(address),
                None => self.other_names = true,
            },
            _ => self.other_names = true,
        }
    }

    /// Returns the subject's common name if there is exactly one: readers differ in which of several they use.
    pub fn common_name(&self) -> Option<&str> {
        match self.common_names.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }

    /// Verifies that the requestor holds the private key.
    pub fn check_signature(&self) -> Result<(), RequestError> {
        super::signature::check(&whole(&self.der)?)
    }
}

fn whole(der: &[u8]) -> Result<X509CertificationRequest<'_>, RequestError> {
    match X509CertificationRequest::from_der(der) {
        Ok(([], request)) => Ok(request),
        Ok(_) => Err(RequestError::Malformed("trailing data".to_owned())),
        Err(error) => Err(RequestError::Malformed(error.to_string())),
    }
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<String, RequestError> {
    let unreadable = |_| RequestError::Malformed("a name in the subject is no text".to_owned());
    attribute.as_str().map(str::to_owned).map_err(unreadable)
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Returns the problem of an issued chain (PEM), with upstream's error text; an empty chain has none.
pub fn certificate_problem(pem: &[u8]) -> Option<String> {
    if pem.is_empty() {
        return None;
    }
    let mut blocks = 0;
    for block in Pem::iter_from_buffer(pem) {
        let Ok(block) = block else { return Some("no PEM block headers are permitted".to_owned()) };
        if block.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if let Err(error) = block.parse_x509() {
            return Some(format!("x509: malformed certificate: {error}"));
        }
        blocks += 1;
    }
    (blocks == 0).then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}

/// Returns when the first certificate of a chain (PEM) expires.
pub fn not_after(pem: &[u8]) -> Option<Timestamp> {
    let block = Pem::iter_from_buffer(pem).next()?.ok()?;
    let certificate = block.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{CERTIFICATE, JANE, NODE};
    use super::*;

    #[test]
    fn names_are_read_and_signatures_checked() {
        let node = CertificateRequest::parse(NODE.as_bytes()).unwrap();
        assert_eq!(node.common_name(), Some("system:node:n1"));
        assert_eq!(node.organizations, ["system:nodes"]);
        assert_eq!(node.dns_names, ["n1"]);
        assert_eq!(node.ip_addresses, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        assert!(!node.other_names);
        node.check_signature().unwrap();
        let jane = CertificateRequest::parse(JANE.as_bytes()).unwrap();
        assert_eq!(jane.organizations, ["dev", "ops"]);
        jane.check_signature().unwrap();
    }

    #[test]
    fn damaged_requests_are_refused() {
        assert_eq!(CertificateRequest::parse(b""), Err(RequestError::BlockType));
        assert_eq!(CertificateRequest::parse(b"\xff\xfe-----BEGIN "), Err(RequestError::BlockType));
        assert_eq!(CertificateRequest::parse(CERTIFICATE.as_bytes()), Err(RequestError::BlockType));
        let node = CertificateRequest::parse(NODE.as_bytes()).unwrap();
        // The signed part: after the outer header come 184 bytes with a header of their own.
        for at in 4..4 + 3 + 184 {
            let mut der = node.der.clone();
            der[at] ^= 1;
            let checked = CertificateRequest::from_der(der).and_then(|r| r.check_signature());
            assert!(checked.is_err(), "byte {at} is not covered by the signature");
        }
        let mut longer = node.der.clone();
        longer.push(0);
        assert!(matches!(CertificateRequest::from_der(longer), Err(RequestError::Malformed(_))));
    }

    #[test]
    fn chains_are_checked() {
        assert_eq!(certificate_problem(b""), None);
        assert_eq!(certificate_problem(CERTIFICATE.repeat(2).as_bytes()), None);
        for (pem, problem) in [
            ("x", "must contain at least one CERTIFICATE PEM block"),
            (NODE, "only CERTIFICATE PEM blocks are allowed, found \"CERTIFICATE REQUEST\""),
        ] {
            assert_eq!(certificate_problem(pem.as_bytes()).as_deref(), Some(problem));
        }
        let broken = CERTIFICATE.replacen("MII", "MIJ", 1);
        assert!(certificate_problem(broken.as_bytes()).is_some());
        assert_eq!(not_after(CERTIFICATE.as_bytes()), "2100-10-24T07:15:30Z".parse().ok());
        assert_eq!(not_after(b"nonsense"), None);
    }
}
