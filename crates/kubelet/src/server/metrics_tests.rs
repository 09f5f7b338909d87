//! Metrics of the kubelet's own certificates.

use std::sync::Arc;

use jiff::Timestamp;

use super::ServingCertificate;
use super::certificates::Certificates;
use super::families::render;

/// A certificate that expires at the end of 2029.
fn serving() -> Arc<ServingCertificate> {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["n1".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2030, 1, 1);
    ServingCertificate::new(&params.self_signed(&key).unwrap().pem(), &key.serialize_pem()).unwrap()
}

#[test]
fn certificates_count_down_to_their_end() {
    let serving = serving();
    for (client, now, expected) in [
        (Some("2030-01-01T00:10:00Z"), "2029-12-31T23:00:00.9Z", ("4199", "3599")),
        (Some("2030-01-01T00:00:00Z"), "2030-01-01T00:00:05Z", ("-5", "-5")),
        (None, "2030-01-01T00:00:00Z", ("+Inf", "0")),
    ] {
        let client: Option<Timestamp> = client.map(|end| end.parse().unwrap());
        let certificates = Certificates { serving: Arc::clone(&serving), client: Arc::new(move || client) };
        let text = render(&certificates.families(now.parse().unwrap()));
        for (name, left) in [("client", expected.0), ("server", expected.1)] {
            let line = format!("kubelet_certificate_manager_{name}_ttl_seconds {left}\n");
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }
}
