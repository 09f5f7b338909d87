//! PodCertificateRequest: a kubelet asks a signer for a certificate on behalf of a pod.

use k8s_openapi::api::certificates::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::request::CertificateRequest;
use super::validation::signer_name;
use crate::conditions;
use crate::defaults::{child, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    subresources: &[resource::STATUS],
    selectable: &["spec.nodeName", "spec.podName", "spec.signerName"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::PodCertificateRequest::RESOURCE,
        "PodCertificateRequestList",
        "podcertificaterequest",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("PodName", "string", "The pod that the certificate is for."),
    Column::new("ServiceAccountName", "string", "The service account of the pod."),
    Column::new("NodeName", "string", "The node that the pod is bound to."),
    Column::new("SignerName", "string", "The requested signer."),
    Column::new("State", "string", "The state of the request."),
    Column::new(
        "UnverifiedUserAnnotations",
        "string",
        "The unverified annotations from the pod spec for the signer.",
    ),
];

const ENDS: [&str; 3] = ["Issued", "Denied", "Failed"];

fn cells(object: &Object, _: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PodCertificateRequest>().unwrap_or_default();
    let conditions = o.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let state = conditions.map(|c| c.type_.as_str()).rfind(|t| ENDS.contains(t)).unwrap_or("Pending");
    let spec = &o.spec;
    vec![
        Value::from(object.name()),
        Value::from(spec.pod_name.as_str()),
        Value::from(spec.service_account_name.as_str()),
        Value::from(spec.node_name.as_str()),
        Value::from(spec.signer_name.as_str()),
        Value::from(state),
        Value::from(table::labels(spec.unverified_user_annotations.as_ref())),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let spec = child(prepare::object(object), "spec");
        unset(spec, "maxExpirationSeconds", 86_400);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::PodCertificateRequest>().map(|o| validate_spec(&o.spec)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let kind = (new.typed::<api::PodCertificateRequest>(), old.typed::<api::PodCertificateRequest>());
        let (Ok(new), Ok(old)) = kind else { return ErrorList::new() };
        let mut errors = ErrorList::new();
        match subresource {
            Some("status") => validate_status(&mut errors, &new, &old),
            _ => validate::immutable(&mut errors, &Path::new("spec"), &new.spec, &old.spec),
        }
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

const UID_MAX_BYTES: usize = 128;
const SHORTEST_SECONDS: i32 = 3600;
const LONGEST_SECONDS: i32 = 91 * 86_400;
/// The longest lifetime of certificates by Kubernetes' own signers.
const LONGEST_OWN_SECONDS: i32 = 86_400;
const REQUEST_MAX_BYTES: usize = 10 * 1024;

fn validate_spec(spec: &api::PodCertificateRequestSpec) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec");
    signer_name(&mut errors, &path.child("signerName"), &spec.signer_name);
    if let Some(annotations) = &spec.unverified_user_annotations {
        let path = path.child("unverifiedUserAnnotations");
        validate::annotations(&mut errors, &path, Some(annotations));
    }
    let named = [
        ("podName", &spec.pod_name, "podUID", &spec.pod_uid),
        ("serviceAccountName", &spec.service_account_name, "serviceAccountUID", &spec.service_account_uid),
        ("nodeName", &spec.node_name, "nodeUID", &spec.node_uid),
    ];
    for (field, name, uid_field, uid) in named {
        validate::dns_subdomain(&mut errors, &path.child(field), name);
        if uid.is_empty() {
            errors.push(Error::invalid(&path.child(uid_field), "", "must not be empty"));
        }
        if uid.len() > UID_MAX_BYTES {
            errors.push(Error::too_long(&path.child(uid_field), UID_MAX_BYTES));
        }
    }
    let at = path.child("maxExpirationSeconds");
    let Some(seconds) = spec.max_expiration_seconds else {
        errors.push(Error::required(&at, "must be set"));
        return errors;
    };
    let domain = spec.signer_name.split('/').next().unwrap_or("");
    let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    let longest = if own { LONGEST_OWN_SECONDS } else { LONGEST_SECONDS };
    if !(SHORTEST_SECONDS..=longest).contains(&seconds) {
        let problem = format!("must be in the range [{SHORTEST_SECONDS}, {longest}]");
        errors.push(Error::invalid(&at, seconds, problem));
    }
    validate_request(&mut errors, &path, &spec.stub_pkc_s10_request.0);
    errors
}

fn validate_request(errors: &mut ErrorList, path: &Path, der: &[u8]) {
    let at = path.child("stubPKCS10Request");
    let mut omitted = |path: &Path, problem: &str| {
        errors.push(Error { value: None, ..Error::invalid(path, Value::Null, problem) });
    };
    if der.is_empty() {
        let problem = "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
        omitted(path, problem);
    } else if der.len() > REQUEST_MAX_BYTES {
        errors.push(Error::too_long(&at, REQUEST_MAX_BYTES));
    } else {
        match CertificateRequest::from_der(der.to_vec()) {
            Err(_) => omitted(&at, "must be a valid PKCS#10 CSR"),
            Ok(request) if request.check_signature().is_err() => omitted(&at, "invalid signature"),
            Ok(_) => {}
        }
    }
}

/// Returns whether the status has a condition of this type.
fn has(status: &api::PodCertificateRequestStatus, type_: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == type_ && c.status == "True")
}

fn validate_status(
    errors: &mut ErrorList,
    new: &api::PodCertificateRequest,
    old: &api::PodCertificateRequest,
) {
    let path = Path::new("status");
    let (now, before) = (new.status.clone().unwrap_or_default(), old.status.clone().unwrap_or_default());
    let listed = now.conditions.as_deref().unwrap_or_default();
    let mut ends = 0;
    for (i, condition) in listed.iter().enumerate() {
        // Upstream's error path has the index as a field.
        let path = path.child("conditions").child(&format!("[{i}]"));
        if !ENDS.contains(&condition.type_.as_str()) {
            errors.push(validate::not_supported(&path.child("type"), condition.type_.as_str(), &ENDS));
            continue;
        }
        ends += 1;
        if ends > 1 {
            let problem = r#"There may be at most one condition with type "Issued", "Denied", or "Failed""#;
            errors.push(Error::invalid(&path.child("type"), condition.type_.as_str(), problem));
        }
        validate::supported_value(errors, &path.child("status"), &condition.status, &["True"]);
    }
    conditions::validate(errors, &path.child("conditions"), listed);
    if !errors.is_empty() {
        return;
    }
    let only_conditions =
        api::PodCertificateRequestStatus { conditions: now.conditions.clone(), ..Default::default() };
    let problem = if ENDS.iter().any(|end| has(&before, end)) && now != before {
        "immutable after PodCertificateRequest is issued, denied, or failed"
    } else if (has(&now, "Denied") || has(&now, "Failed")) && now != only_conditions {
        "non-condition status fields must be empty when denying or failing the PodCertificateRequest"
    } else {
        if has(&now, "Issued") && now.certificate_chain.as_deref().unwrap_or("").is_empty() {
            let problem = "issued certificate chain must contain at least one certificate";
            errors.push(Error::invalid(&path.child("certificateChain"), "", problem));
        }
        return;
    };
    errors.push(Error { value: None, ..Error::invalid(&path, Value::Null, problem) });
}
