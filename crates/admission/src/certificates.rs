//! Certificate signing requests: records the requestor and its address, and checks the permission to approve, sign,
//! or request a subject.

use std::net::IpAddr;

use async_trait::async_trait;
use k8s_openapi::ByteString;
use knarr_api::certificates::request::CertificateRequest;
use knarr_api::certificates::signers;
use knarr_api::table::rfc3339;
use knarr_apimachinery::status::StatusError;
use serde_json::{Map, Value, json};

use super::{Attributes, Operation, Plugin};
use crate::Context;
use knarr_auth::authn::MASTERS;
use knarr_auth::authz;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
/// The common name of the API servers' client certificates for kubelets. Kubelets of former versions authorize it for
/// everything.
const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

fn is_request(attributes: &Attributes<'_>) -> bool {
    attributes.resource.group == GROUP && attributes.resource.plural == PLURAL
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// Sets the requestor, and the times of conditions, which the resource's strategy does not know.
pub struct CertificateRequestor;

#[async_trait]
impl Plugin for CertificateRequestor {
    fn name(&self) -> &'static str {
        "CertificateRequestor"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    fn complete(&self, attributes: &mut Attributes<'_>, context: &Context<'_>) {
        if !is_request(attributes) {
            return;
        }
        match (attributes.operation, attributes.subresource) {
            (Operation::Create, "") => {
                let peer = attributes.request.peer;
                if let Value::Object(user) = attributes.user.to_value()
                    && let Some(spec) = attributes.object.get_mut("spec").and_then(Value::as_object_mut)
                {
                    spec.extend(user);
                    record_source(spec, peer);
                }
            }
            (Operation::Update, "approval" | "status") => {
                let now = rfc3339(context.registry.clock.now());
                fill_times(&mut attributes.object, attributes.old, &now);
            }
            _ => {}
        }
    }
}

/// Records the source address of a request for a kubelet's serving certificate, because the approver may accept it as
/// an address of the node. A value that an authenticator sets under this key is removed.
fn record_source(spec: &mut Map<String, Value>, peer: Option<IpAddr>) {
    if let Some(extra) = spec.get_mut("extra").and_then(Value::as_object_mut) {
        extra.remove(signers::SOURCE_ADDRESS);
    }
    let is_serving = spec.get("signerName").and_then(Value::as_str) == Some(signers::KUBELET_SERVING);
    let Some(peer) = peer.filter(|_| is_serving) else { return };
    let extra = spec.entry("extra").or_insert_with(|| json!({}));
    if let Some(extra) = extra.as_object_mut() {
        extra.insert(signers::SOURCE_ADDRESS.to_owned(), json!([peer.to_canonical().to_string()]));
    }
}

/// Sets the times that conditions lack. A condition whose status is unchanged keeps its transition time.
fn fill_times(object: &mut Value, old: Option<&Value>, now: &str) {
    let before = old.and_then(|o| o.pointer("/status/conditions")).and_then(Value::as_array);
    let Some(Value::Array(conditions)) = object.pointer_mut("/status/conditions") else { return };
    for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
        let unset = |c: &Map<String, Value>, field: &str| c.get(field).is_none_or(Value::is_null);
        if unset(condition, "lastUpdateTime") {
            condition.insert("lastUpdateTime".to_owned(), now.into());
        }
        if unset(condition, "lastTransitionTime") {
            let same = |c: &&Value| {
                ["type", "status"].iter().all(|f| Some(&c[*f]) == condition.get(*f))
                    && !c["lastTransitionTime"].is_null()
            };
            let kept = before.into_iter().flatten().find(same).map(|c| c["lastTransitionTime"].clone());
            condition.insert("lastTransitionTime".to_owned(), kept.unwrap_or_else(|| now.into()));
        }
    }
}

/// Returns whether the user may `approve`, `sign` or `attest` for this signer, or for all signers of its domain.
pub async fn may(context: &Context<'_>, attributes: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or("");
    for name in [signer.to_owned(), format!("{domain}/*")] {
        let wanted = authz::Attributes {
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            version: "*".to_owned(),
            resource: "signers".to_owned(),
            name,
            ..authz::Attributes::default()
        };
        if context.authorizer.authorize(attributes.user, &wanted).await.is_allowed() {
            return true;
        }
    }
    false
}

/// CertificateApproval: an approval needs the permission to approve for the signer.
pub struct CertificateApproval;

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if !is_request(attributes) || attributes.subresource != "approval" {
            return Ok(());
        }
        let signer = attributes.old.map_or("", |old| text(old, "/spec/signerName"));
        if may(context, attributes, "approve", signer).await {
            return Ok(());
        }
        Err(attributes
            .forbidden(&format!("user not permitted to approve requests with signerName \"{signer}\"")))
    }
}

/// CertificateSigning: issuing a certificate needs the permission to sign for the signer.
pub struct CertificateSigning;

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if !is_request(attributes) || attributes.subresource != "status" {
            return Ok(());
        }
        let part = |value: &Value, field: &str| {
            value.pointer(&format!("/status/{field}")).cloned().unwrap_or_default()
        };
        let changed = |field: &str| {
            attributes.old.is_some_and(|old| part(old, field) != part(&attributes.object, field))
        };
        let signer = attributes.old.map_or("", |old| text(old, "/spec/signerName"));
        if !(changed("certificate") || changed("conditions"))
            || may(context, attributes, "sign", signer).await
        {
            return Ok(());
        }
        Err(attributes
            .forbidden(&format!("user not permitted to sign requests with signerName \"{signer}\"")))
    }
}

/// CertificateSubjectRestriction: refuses requests for the group system:masters. NodeRestriction checks the requests
/// of nodes.
pub struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn validate(&self, attributes: &Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        if !attributes.is(GROUP, PLURAL) {
            return Ok(());
        }
        let signer = text(&attributes.object, "/spec/signerName");
        let bytes = attributes.object.pointer("/spec/request").cloned().unwrap_or_default();
        let pem = serde_json::from_value::<ByteString>(bytes).unwrap_or_default();
        let parse = || {
            let parsed = CertificateRequest::parse(&pem.0);
            parsed.map_err(|e| attributes.forbidden(&format!("failed to parse CSR: {e}")))
        };
        match signer {
            signers::KUBE_APISERVER_CLIENT => {
                let request = parse()?;
                let why = if request.organizations.iter().any(|o| o == MASTERS) {
                    format!("use of {signer} signer with {MASTERS} group is not allowed")
                } else if request.common_names.iter().any(|name| name == KUBELET_CLIENT) {
                    format!("use of {signer} signer with the name {KUBELET_CLIENT} is not allowed")
                } else {
                    return Ok(());
                };
                Err(attributes.forbidden(&why))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_address_is_the_connections() {
        let key = signers::SOURCE_ADDRESS;
        let after = |signer: &str, peer: Option<&str>| {
            let mut spec = json!({"signerName": signer, "extra": {key: ["10.0.0.9"], "other": ["x"]}});
            record_source(spec.as_object_mut().unwrap(), peer.map(|p| p.parse().unwrap()));
            spec["extra"].take()
        };
        assert_eq!(after(signers::KUBELET_SERVING, None), json!({"other": ["x"]}));
        let mapped = after(signers::KUBELET_SERVING, Some("::ffff:192.0.2.1"));
        assert_eq!(mapped, json!({"other": ["x"], key: ["192.0.2.1"]}));
        assert_eq!(after(signers::KUBE_APISERVER_CLIENT, Some("192.0.2.1")), json!({"other": ["x"]}));
    }

    #[test]
    fn times_are_filled_in_and_kept() {
        let old = json!({"status": {"conditions": [
            {"type": "A", "status": "True", "lastUpdateTime": "u", "lastTransitionTime": "t"}]}});
        let mut new = json!({"status": {"conditions": [
            {"type": "A", "status": "True"}, {"type": "B", "status": "True", "lastUpdateTime": null},
            {"type": "C", "status": "True", "lastUpdateTime": "x", "lastTransitionTime": "y"}]}});
        fill_times(&mut new, Some(&old), "now");
        let times: Vec<_> = new["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (c["lastUpdateTime"].as_str().unwrap(), c["lastTransitionTime"].as_str().unwrap()))
            .collect();
        assert_eq!(times, [("now", "t"), ("now", "now"), ("x", "y")]);
        fill_times(&mut json!({"status": {"conditions": [3]}}), None, "now");
    }
}
