//! CertificateSigningRequest: a requestor asks a signer for a certificate, and an approver approves or denies it.

use k8s_openapi::api::certificates::v1 as api;
use knarr_apimachinery::field::ErrorList;
use serde_json::{Value, json};

use super::signers::{APPROVED, DENIED, FAILED, has_condition, is_issued};
use super::validation::{self, Part};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource, Subresource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["csr"],
    subresources: &[Subresource { name: "approval", body: None, verbs: resource::PART }, resource::STATUS],
    selectable: &["spec.signerName"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::CertificateSigningRequest::RESOURCE,
        "CertificateSigningRequestList",
        "certificatesigningrequest",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    AGE,
    Column::new("SignerName", "string", "The requested signer."),
    Column::new("Requestor", "string", "The user that created the request."),
    Column::new("RequestedDuration", "string", "The requested lifetime of the certificate."),
    Column::new("Condition", "string", "The condition of the request."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::CertificateSigningRequest>().unwrap_or_default();
    let or_none = |text: &str| Value::from(if text.is_empty() { "<none>" } else { text });
    let duration = o.spec.expiration_seconds.map(|s| table::human_duration(i128::from(s) * 1_000_000_000));
    vec![
        Value::from(object.name()),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        or_none(&o.spec.signer_name),
        Value::from(o.spec.username.as_deref().unwrap_or("")),
        or_none(duration.as_deref().unwrap_or("")),
        Value::from(condition(&o)),
    ]
}

/// Returns the CONDITION cell: `Approved,Issued` and the like.
fn condition(csr: &api::CertificateSigningRequest) -> String {
    let decision = match (has_condition(csr, DENIED), has_condition(csr, APPROVED)) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    };
    let mut parts = vec![decision];
    parts.extend(has_condition(csr, FAILED).then_some("Failed"));
    parts.extend(is_issued(csr).then_some("Issued"));
    parts.join(",")
}

/// The fields about the requestor, which the API server sets at creation.
pub const OF_REQUESTOR: [&str; 4] = ["username", "uid", "groups", "extra"];

struct Rules;

impl Strategy for Rules {
    /// Removes the requestor's fields; admission, which knows the requestor, sets them.
    fn prepare_for_create(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            OF_REQUESTOR.iter().for_each(|field| drop(spec.remove(*field)));
        }
        prepare::object(object).insert("status".to_owned(), json!({}));
    }

    /// Restores the spec, which never changes; admission sets missing times of conditions.
    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::keep(new, old, "spec");
        match subresource {
            Some("status") => [APPROVED, DENIED].iter().for_each(|type_| keep_conditions(new, old, type_)),
            Some("approval") => {
                let conditions = new.pointer("/status/conditions").cloned();
                prepare::keep(new, old, "status");
                let status = prepare::object(new).entry("status").or_insert_with(|| json!({}));
                match conditions {
                    Some(conditions) => {
                        drop(prepare::object(status).insert("conditions".to_owned(), conditions))
                    }
                    None => drop(prepare::object(status).remove("conditions")),
                }
            }
            _ => prepare::keep(new, old, "status"),
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let csr = object.typed::<api::CertificateSigningRequest>();
        csr.map(|csr| validation::create(&csr)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        let part = match subresource {
            Some("status") => Part::Status,
            Some("approval") => Part::Approval,
            _ => Part::Whole,
        };
        match (new.typed::<api::CertificateSigningRequest>(), old.typed::<api::CertificateSigningRequest>()) {
            (Ok(new), Ok(old)) => validation::update(&new, &old, part),
            _ => ErrorList::new(),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

/// Restores the conditions of this type, unless some were added or removed: validation refuses that.
fn keep_conditions(new: &mut Value, old: &Value, type_: &str) {
    let of_type = |c: &&Value| c["type"] == type_;
    let list =
        |v: &Value| v.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let before: Vec<Value> = list(old).iter().filter(of_type).cloned().collect();
    let Some(Value::Array(now)) = new.pointer_mut("/status/conditions") else { return };
    if now.iter().filter(of_type).count() != before.len() {
        return;
    }
    for (place, was) in now.iter_mut().filter(|c| c["type"] == type_).zip(before) {
        *place = was;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn csr(status: Value) -> Value {
        json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "a"},
            "spec": {"request": "", "signerName": "kubernetes.io/kubelet-serving", "username": "u",
                "expirationSeconds": 3600},
            "status": status})
    }

    fn shown(value: &Value) -> Vec<Value> {
        let object = Object::new(Bytes::from(value.to_string()), &[]).unwrap();
        cells(&object, &CellContext { now: jiff::Timestamp::UNIX_EPOCH })
    }

    #[test]
    fn cells_show_what_has_become_of_it() {
        let row = shown(&csr(json!({})));
        assert_eq!(row[2..], ["kubernetes.io/kubelet-serving", "u", "60m", "Pending"].map(Value::from));
        let conditions = |types: &[&str]| -> Value {
            types.iter().map(|t| json!({"type": t, "status": "True"})).collect()
        };
        for (types, certificate, words) in [
            (&["Approved"][..], "", "Approved"),
            (&["Approved"], "YQ==", "Approved,Issued"),
            (&["Approved", "Failed"], "", "Approved,Failed"),
            (&["Approved", "Denied"], "", "Denied"),
        ] {
            let status = json!({"conditions": conditions(types), "certificate": certificate});
            assert_eq!(shown(&csr(status))[5], words);
        }
    }

    #[test]
    fn each_path_writes_its_own_part() {
        let approved = json!({"type": "Approved", "status": "True", "message": "m"});
        let old = csr(json!({"conditions": [approved]}));
        let mut new = csr(json!({"certificate": "YQ==", "conditions": [
            {"type": "Approved", "status": "True", "message": "other"}, {"type": "Failed", "status": "True"}]}));
        new["spec"]["username"] = "x".into();
        let after = |subresource| {
            let mut changed = new.clone();
            Rules.prepare_for_update(&mut changed, &old, subresource);
            assert_eq!(changed["spec"], old["spec"]);
            changed["status"].take()
        };
        assert_eq!(after(None), old["status"]);
        let failed = json!({"type": "Failed", "status": "True"});
        assert_eq!(after(Some("status")), json!({"certificate": "YQ==", "conditions": [approved, failed]}));
        assert_eq!(after(Some("approval")), json!({"conditions": new["status"]["conditions"]}));
        Rules.prepare_for_create(&mut new);
        assert_eq!(new["status"], json!({}));
        assert_eq!(new["spec"].get("username"), None);
    }
}
