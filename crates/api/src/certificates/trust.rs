//! Trust anchors: certificates of authorities, one PEM block each.

use std::collections::BTreeMap;

use knarr_apimachinery::field::{Error, ErrorList, Path};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

const BUNDLE_MAX_BYTES: usize = 1024 * 1024;

/// Validates a bundle of trust anchors; skips text between the PEM blocks.
pub fn trust_anchors(errors: &mut ErrorList, path: &Path, bundle: &str) {
    if bundle.len() > BUNDLE_MAX_BYTES {
        errors.push(Error::too_long(path, BUNDLE_MAX_BYTES));
        return;
    }
    let mut invalid = |problem: String| errors.push(Error::invalid(path, "<value omitted>", problem));
    let mut seen: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    let mut fine = true;
    for (i, block) in Pem::iter_from_buffer(bundle.as_bytes()).map_while(Result::ok).enumerate() {
        match anchor_problem(&block) {
            Some(problem) => {
                fine = false;
                invalid(format!("entry {i} {problem}"));
            }
            None => seen.entry(block.contents).or_default().push(i.to_string()),
        }
    }
    if !fine {
        return;
    }
    if seen.is_empty() {
        invalid("at least one trust anchor must be provided".to_owned());
    }
    for indices in seen.values().filter(|i| i.len() > 1) {
        invalid(format!("duplicate trust anchor (indices [{}])", indices.join(" ")));
    }
}

fn anchor_problem(block: &Pem) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    let Ok((_, certificate)) = X509Certificate::from_der(&block.contents) else {
        return Some("does not parse as X.509".to_owned());
    };
    let is_ca = certificate.basic_constraints().ok().flatten().is_some_and(|c| c.value.ca);
    (!is_ca).then(|| "does not have the CA bit set".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::testing::CERTIFICATE;
    use super::*;

    #[test]
    fn anchors_are_authorities() {
        let problems = |bundle: &str| {
            let mut errors = ErrorList::new();
            trust_anchors(&mut errors, &Path::new("b"), bundle);
            errors.0.iter().map(|e| e.detail.clone()).collect::<Vec<_>>()
        };
        assert_eq!(problems("hello"), ["at least one trust anchor must be provided"]);
        assert_eq!(problems(CERTIFICATE), [""; 0]);
        let twice = CERTIFICATE.repeat(2);
        assert_eq!(problems(&twice), ["duplicate trust anchor (indices [0 1])"]);
        let key = CERTIFICATE.replace("CERTIFICATE", "PRIVATE KEY");
        assert_eq!(problems(&key), ["entry 0 has bad block type: PRIVATE KEY"]);
    }
}
