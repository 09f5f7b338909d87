//! Error texts of TLS failures in the wording of Go's `crypto/tls` and `crypto/x509`, which users search for.

use std::io;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error};

/// Returns Go's error text for a failed connection to a server that should have this name.
pub fn tls_words(error: &io::Error, name: &str) -> String {
    let Some(inner) = error.get_ref().and_then(|e| e.downcast_ref::<Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "EOF".into(),
            _ => error.to_string(),
        };
    };
    match inner {
        Error::InvalidCertificate(why) => {
            format!("tls: failed to verify certificate: {}", certificate_words(why, name))
        }
        Error::InvalidMessage(_) => "tls: first record does not look like a TLS handshake".into(),
        Error::AlertReceived(alert) => format!("remote error: tls: {}", alert_words(*alert)),
        other => format!("tls: {other}"),
    }
}

/// Returns Go's error text for a certificate that should have this name.
pub fn certificate_words(error: &CertificateError, name: &str) -> String {
    use CertificateError as E;
    let why = match error {
        E::UnknownIssuer | E::BadSignature => "certificate signed by unknown authority".into(),
        E::NotValidForNameContext { presented, .. } => other_names(presented, name),
        E::NotValidForName => other_names(&[], name),
        E::ExpiredContext { time, not_after } => {
            format!("{TIME}: current time {} is after {}", shown(*time), shown(*not_after))
        }
        E::NotValidYetContext { time, not_before } => {
            format!("{TIME}: current time {} is before {}", shown(*time), shown(*not_before))
        }
        E::Expired | E::NotValidYet => TIME.into(),
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "certificate specifies an incompatible key usage".into()
        }
        E::BadEncoding => "malformed certificate".into(),
        E::UnhandledCriticalExtension => "unhandled critical extension".into(),
        E::Other(other) => other.0.to_string(),
        other => other.to_string(),
    };
    format!("x509: {why}")
}

const TIME: &str = "certificate has expired or is not yet valid";

fn shown(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string()
}

/// Returns the text for a certificate with other names than the wanted one. `presented` has entries like
/// `DnsName("example.com")`.
fn other_names(presented: &[String], wanted: &str) -> String {
    let is_ip = wanted.parse::<std::net::IpAddr>().is_ok();
    let kind = if is_ip { "IpAddress(" } else { "DnsName(" };
    let names = presented.iter().filter_map(|p| p.strip_prefix(kind)?.strip_suffix(')'));
    let names: Vec<&str> = names.map(|n| n.trim_matches('"')).collect();
    match (names.is_empty(), is_ip) {
        (true, true) => {
            format!("cannot validate certificate for {wanted} because it doesn't contain any IP SANs")
        }
        (true, false) => format!("certificate is not valid for any names, but wanted to match {wanted}"),
        (false, _) => format!("certificate is valid for {}, not {wanted}", names.join(", ")),
    }
}

fn alert_words(alert: AlertDescription) -> String {
    use AlertDescription as A;
    match alert {
        A::UnexpectedMessage => "unexpected message",
        A::BadRecordMac => "bad record MAC",
        A::HandshakeFailure => "handshake failure",
        A::BadCertificate => "bad certificate",
        A::UnsupportedCertificate => "unsupported certificate",
        A::CertificateRevoked => "revoked certificate",
        A::CertificateExpired => "expired certificate",
        A::CertificateUnknown => "unknown certificate",
        A::IllegalParameter => "illegal parameter",
        A::UnknownCA => "unknown certificate authority",
        A::AccessDenied => "access denied",
        A::DecodeError => "error decoding message",
        A::DecryptError => "error decrypting message",
        A::ProtocolVersion => "protocol version not supported",
        A::InsufficientSecurity => "insufficient security level",
        A::InternalError => "internal error",
        A::UserCanceled => "user canceled",
        A::UnrecognisedName => "unrecognized name",
        A::CertificateRequired => "certificate required",
        A::NoApplicationProtocol => "no application protocol",
        other => return format!("alert({})", u8::from(other)),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::OtherError;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn as_go_says_it() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let names = |presented: &[&str]| CertificateError::NotValidForNameContext {
            expected: "b".try_into().unwrap(),
            presented: presented.iter().map(|n| (*n).to_owned()).collect(),
        };
        for (error, name, expected) in [
            (CertificateError::UnknownIssuer, "b", "x509: certificate signed by unknown authority"),
            (
                CertificateError::ExpiredContext { time: at(86_400), not_after: at(0) },
                "b",
                "x509: certificate has expired or is not yet valid: current time 1970-01-02T00:00:00Z is after \
                 1970-01-01T00:00:00Z",
            ),
            (
                CertificateError::NotValidYetContext { time: at(0), not_before: at(1) },
                "b",
                "x509: certificate has expired or is not yet valid: current time 1970-01-01T00:00:00Z is before \
                 1970-01-01T00:00:01Z",
            ),
            (names(&["DnsName(\"a\")", "DnsName(\"c\")"]), "b", "x509: certificate is valid for a, c, not b"),
            (
                names(&["DnsName(\"a\")"]),
                "10.0.0.1",
                "x509: cannot validate certificate for 10.0.0.1 because it doesn't contain any IP SANs",
            ),
            (
                CertificateError::Other(OtherError(Arc::new(webpki::Error::PathLenConstraintViolated))),
                "b",
                "x509: PathLenConstraintViolated",
            ),
        ] {
            assert_eq!(certificate_words(&error, name), expected);
        }
        let received = io::Error::other(Error::AlertReceived(AlertDescription::HandshakeFailure));
        assert_eq!(tls_words(&received, "b"), "remote error: tls: handshake failure");
    }
}
