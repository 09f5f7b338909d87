//! Validation of CertificateSigningRequests.

use std::collections::BTreeSet;

use k8s_openapi::api::certificates::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use super::request::{CertificateRequest, certificate_problem};
use super::signers::{APPROVED, DENIED, FAILED, LEGACY_UNKNOWN};
use crate::validate;

/// The endpoint of an update, which decides what it may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Whole,
    Status,
    Approval,
}

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];
const SHORTEST_SECONDS: i32 = 600;
/// The longest domain and path: a label, a dot and a subdomain.
const DOMAIN_MAX: usize = 253;
const PATH_MAX: usize = 253 + 63 + 1;

pub fn create(csr: &api::CertificateSigningRequest) -> ErrorList {
    let mut errors = spec(&csr.spec);
    conditions(&mut errors, csr, None);
    certificate(&mut errors, csr);
    errors
}

/// Validates an update. The spec is not checked: it is immutable and was checked at creation.
pub fn update(
    new: &api::CertificateSigningRequest,
    old: &api::CertificateSigningRequest,
    part: Part,
) -> ErrorList {
    let mut errors = ErrorList::new();
    conditions(&mut errors, new, Some(old));
    let (now, before) = (certificate_of(new), certificate_of(old));
    let changed = now != before;
    if changed && certificate_problem(before).is_none() {
        certificate(&mut errors, new);
    }
    decisions_stay(&mut errors, new, old, part);
    if changed {
        let path = Path::new("status").child("certificate");
        if part != Part::Status {
            errors.push(Error::forbidden(&path, "updates may not set certificate content"));
        } else if !before.is_empty() {
            errors.push(Error::forbidden(&path, "updates may not modify existing certificate content"));
        }
    }
    errors
}

fn spec(spec: &api::CertificateSigningRequestSpec) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    let checked = CertificateRequest::parse(&spec.request.0).and_then(|r| r.check_signature());
    if let Err(error) = checked {
        errors.push(Error::invalid(
            &path.child("request"),
            validate::shown(&spec.request),
            error.to_string(),
        ));
    }
    let usages = spec.usages.as_deref().unwrap_or_default();
    let path_of_usages = path.child("usages");
    if usages.is_empty() {
        errors.push(Error::required(&path_of_usages, ""));
    }
    for (i, usage) in usages.iter().enumerate() {
        validate::supported_value(&mut errors, &path_of_usages.index(i), usage, &USAGES);
    }
    let mut seen = BTreeSet::new();
    for (i, usage) in usages.iter().enumerate() {
        if !seen.insert(usage) {
            errors.push(Error::duplicate(&path_of_usages.index(i), usage.as_str()));
        }
    }
    signer_name(&mut errors, &path.child("signerName"), &spec.signer_name);
    if let Some(seconds) = spec.expiration_seconds.filter(|s| *s < SHORTEST_SECONDS) {
        let problem = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(Error::invalid(&path.child("expirationSeconds"), seconds, problem));
    }
    errors
}

/// Validates `domain/path`, such as `kubernetes.io/kubelet-serving`.
pub fn signer_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if name == LEGACY_UNKNOWN {
        errors.push(Error::invalid(path, name, "the legacy signerName is not allowed via this API version"));
        return;
    }
    if !validate::required(errors, path, name) {
        return;
    }
    let parts: Vec<&str> = name.split('/').collect();
    let [domain, rest] = parts[..] else {
        let problem = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(Error::invalid(path, name, problem));
        return;
    };
    if domain.len() > DOMAIN_MAX {
        errors.push(Error::too_long(path, DOMAIN_MAX));
    }
    if let Some((label, problems)) = first_problems(domain, names::dns1123_label) {
        for problem in problems {
            errors.push(Error::invalid(path, domain, format!("validating label \"{label}\": {problem}")));
        }
    }
    if !domain.contains('.') {
        errors.push(Error::invalid(
            path,
            domain,
            "should be a domain with at least two segments separated by dots",
        ));
    }
    if let Some((label, problems)) = first_problems(rest, names::dns1123_subdomain) {
        for problem in problems {
            errors.push(Error::invalid(path, rest, format!("validating label \"{label}\": {problem}")));
        }
    }
    if name.len() > DOMAIN_MAX + PATH_MAX + 1 {
        errors.push(Error::too_long(path, DOMAIN_MAX + PATH_MAX + 1));
    }
}

/// Returns the first invalid label between dots, with its problems.
fn first_problems(text: &str, check: fn(&str) -> Vec<String>) -> Option<(&str, Vec<String>)> {
    text.split('.').map(|label| (label, check(label))).find(|(_, problems)| !problems.is_empty())
}

fn conditions_of(csr: &api::CertificateSigningRequest) -> &[api::CertificateSigningRequestCondition] {
    csr.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default()
}

fn certificate_of(csr: &api::CertificateSigningRequest) -> &[u8] {
    csr.status.as_ref().and_then(|s| s.certificate.as_ref()).map_or(&[], |c| &c.0)
}

fn has(csr: &api::CertificateSigningRequest, type_: &str) -> bool {
    conditions_of(csr).iter().any(|c| c.type_ == type_)
}

fn has_duplicates(csr: &api::CertificateSigningRequest) -> bool {
    let mut seen = BTreeSet::new();
    !conditions_of(csr).iter().all(|c| seen.insert(&c.type_))
}

/// Validates the conditions; tolerates violations that the old object already has.
fn conditions(
    errors: &mut ErrorList,
    csr: &api::CertificateSigningRequest,
    old: Option<&api::CertificateSigningRequest>,
) {
    let list = Path::new("status").child("conditions");
    let bears_empty = old.is_some_and(|old| has(old, ""));
    let bears_both = old.is_some_and(|old| has(old, APPROVED) && has(old, DENIED));
    let bears_duplicates = old.is_some_and(has_duplicates);
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for (i, condition) in conditions_of(csr).iter().enumerate() {
        let (path, type_) = (list.index(i), condition.type_.as_str());
        if type_.is_empty() && !bears_empty {
            errors.push(Error::required(&path.child("type"), ""));
        }
        let allowed: &[&str] = match type_ {
            APPROVED | DENIED | FAILED => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        validate::one_of(errors, &path.child("status"), &condition.status, allowed);
        let other = match type_ {
            APPROVED => DENIED,
            DENIED => APPROVED,
            _ => "",
        };
        if !bears_both && !other.is_empty() && seen.contains(other) {
            errors.push(Error::invalid(
                &list,
                type_,
                "Approved and Denied conditions are mutually exclusive",
            ));
        }
        if !seen.insert(type_) && !bears_duplicates {
            errors.push(Error::duplicate(&path.child("type"), type_));
        }
    }
}

fn certificate(errors: &mut ErrorList, csr: &api::CertificateSigningRequest) {
    if let Some(problem) = certificate_problem(certificate_of(csr)) {
        let path = Path::new("status").child("certificate");
        errors.push(Error::invalid(&path, "<certificate data>", problem));
    }
}

/// Refuses to remove decisions, and to add them except through the approval endpoint.
fn decisions_stay(
    errors: &mut ErrorList,
    new: &api::CertificateSigningRequest,
    old: &api::CertificateSigningRequest,
    part: Part,
) {
    let path = Path::new("status").child("conditions");
    let of = |csr, type_: &str| -> Vec<api::CertificateSigningRequestCondition> {
        conditions_of(csr).iter().filter(|c| c.type_ == type_).cloned().collect()
    };
    for type_ in [APPROVED, DENIED, FAILED] {
        if of(new, type_).len() < of(old, type_).len() {
            let problem = format!("updates may not remove a condition of type \"{type_}\"");
            errors.push(Error::forbidden(&path, problem));
        }
    }
    if part == Part::Approval {
        return;
    }
    for type_ in [APPROVED, DENIED] {
        let (now, before) = (of(new, type_), of(old, type_));
        if now.len() > before.len() {
            let problem = format!("updates may not add a condition of type \"{type_}\"");
            errors.push(Error::forbidden(&path, problem));
        } else if now.len() == before.len() && now != before {
            let problem = format!("updates may not modify a condition of type \"{type_}\"");
            errors.push(Error::forbidden(&path, problem));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{CERTIFICATE, NODE};
    use super::*;
    use k8s_openapi::ByteString;

    fn csr() -> api::CertificateSigningRequest {
        api::CertificateSigningRequest {
            spec: api::CertificateSigningRequestSpec {
                request: ByteString(NODE.as_bytes().to_vec()),
                signer_name: "kubernetes.io/kubelet-serving".into(),
                usages: Some(vec!["digital signature".into(), "server auth".into()]),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    fn with(types: &[&str], certificate: &str) -> api::CertificateSigningRequest {
        let condition = |t: &&str| api::CertificateSigningRequestCondition {
            type_: (*t).to_owned(),
            status: "True".into(),
            ..Default::default()
        };
        let certificate = (!certificate.is_empty()).then(|| ByteString(certificate.as_bytes().to_vec()));
        let status = api::CertificateSigningRequestStatus {
            certificate,
            conditions: Some(types.iter().map(condition).collect()),
        };
        api::CertificateSigningRequest { status: Some(status), ..csr() }
    }

    #[track_caller]
    fn errors(list: &ErrorList, wanted: &[&str]) {
        let found: Vec<String> = list.0.iter().map(ToString::to_string).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn specs() {
        errors(&create(&csr()), &[]);
        let mut bad = csr();
        bad.spec.request = ByteString(b"hi".to_vec());
        bad.spec.usages = Some(vec!["fly".into(), "any".into(), "any".into()]);
        bad.spec.expiration_seconds = Some(599);
        bad.spec.signer_name = String::new();
        let supported = USAGES.map(|u| format!("\"{u}\"")).join(", ");
        let supported = format!("spec.usages[0]: Unsupported value: \"fly\": supported values: {supported}");
        errors(
            &create(&bad),
            &[
                "spec.request: Invalid value: \"aGk=\": PEM block type must be CERTIFICATE REQUEST",
                &supported,
                "spec.usages[2]: Duplicate value: \"any\"",
                "spec.signerName: Required value",
                "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)",
            ],
        );
        bad = csr();
        bad.spec.usages = None;
        errors(&create(&bad), &["spec.usages: Required value"]);
    }

    #[test]
    fn signer_names() {
        let check = |name: &str| {
            let mut list = ErrorList::new();
            signer_name(&mut list, &Path::new("s"), name);
            list.0.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        for fine in ["example.com/a", "a.b.c/d.e-f"] {
            assert_eq!(check(fine), [""; 0], "{fine}");
        }
        let form = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        assert_eq!(check("a.b"), [format!("s: Invalid value: \"a.b\": {form}")]);
        assert_eq!(check("a.b/c/d"), [format!("s: Invalid value: \"a.b/c/d\": {form}")]);
        assert_eq!(
            check("a/b"),
            ["s: Invalid value: \"a\": should be a domain with at least two segments separated by dots"]
        );
        assert!(
            check("a.B/c")[0]
                .starts_with("s: Invalid value: \"a.B\": validating label \"B\": a lowercase RFC")
        );
        assert!(
            check("a.b/").first().is_some_and(|e| e.starts_with("s: Invalid value: \"\": validating label"))
        );
        assert_eq!(
            check(LEGACY_UNKNOWN),
            [
                "s: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed via this API version"
            ]
        );
    }

    #[test]
    fn updates_through_each_path() {
        let add_approved =
            "status.conditions: Forbidden: updates may not add a condition of type \"Approved\"";
        let set = "status.certificate: Forbidden: updates may not set certificate content";
        let modify = "status.certificate: Forbidden: updates may not modify existing certificate content";
        let both = "status.conditions: Invalid value: \"Denied\": Approved and Denied conditions are mutually exclusive";
        let remove = "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\"";
        let garbage = "status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block";
        let twice = CERTIFICATE.repeat(2);
        for (new, old, part, wanted) in [
            (with(&["Approved"], ""), with(&[], ""), Part::Approval, vec![]),
            (with(&["Approved"], ""), with(&[], ""), Part::Status, vec![add_approved]),
            (with(&[], CERTIFICATE), with(&[], ""), Part::Status, vec![]),
            (with(&[], CERTIFICATE), with(&[], ""), Part::Approval, vec![set]),
            (with(&[], &twice), with(&[], CERTIFICATE), Part::Status, vec![modify]),
            (with(&["Approved", "Denied"], ""), with(&["Approved"], ""), Part::Approval, vec![both]),
            (with(&[], ""), with(&["Approved"], ""), Part::Approval, vec![remove]),
            (with(&["Failed"], ""), with(&[], ""), Part::Status, vec![]),
            (with(&[], "x"), with(&[], ""), Part::Status, vec![garbage]),
        ] {
            errors(&update(&new, &old, part), &wanted);
        }
    }
}
