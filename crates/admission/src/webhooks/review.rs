//! AdmissionReview: the request to a webhook, and the validation of its response.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use k8s_openapi::serde::de::DeserializeOwned;
use knarr_apimachinery::status::StatusError;
use serde_json::{Map, Value, json};

use crate::Attributes;
use crate::matching::Invocation;

/// The supported versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V1Beta1,
}

impl Version {
    /// Returns the first version that both sides support.
    pub fn choose(accepted: &[String]) -> Option<Self> {
        accepted.iter().find_map(|version| match version.as_str() {
            "v1" => Some(Self::V1),
            "v1beta1" => Some(Self::V1Beta1),
            _ => None,
        })
    }

    fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "admission.k8s.io/v1",
            Self::V1Beta1 => "admission.k8s.io/v1beta1",
        }
    }
}

/// Returns the body of the request.
pub fn request(
    version: Version,
    uid: &str,
    attributes: &Attributes<'_>,
    invocation: &Invocation,
    object: Value,
    old: Value,
) -> Value {
    let kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let resource = |group: &str, version: &str, plural: &str| json!({"group": group, "version": version, "resource": plural});
    let own = attributes.kind();
    let types = attributes.resource;
    let mut request = Map::new();
    let mut put = |field: &str, value: Value| drop(request.insert(field.to_owned(), value));
    put("uid", uid.into());
    put("kind", kind(&invocation.kind.group, &invocation.kind.version, &invocation.kind.kind));
    put("resource", resource(&invocation.group, &invocation.version, &invocation.plural));
    put("requestKind", kind(&own.group, &own.version, &own.kind));
    put("requestResource", resource(types.group, types.version, types.plural));
    for (field, text) in [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", named(attributes)),
        ("namespace", attributes.in_namespace()),
    ] {
        if !text.is_empty() {
            put(field, text.into());
        }
    }
    put("operation", attributes.operation.as_str().into());
    put("userInfo", attributes.user.to_value());
    put("object", object);
    put("oldObject", old);
    put("dryRun", attributes.dry_run.into());
    put("options", attributes.options.clone());
    json!({"kind": "AdmissionReview", "apiVersion": version.api_version(), "request": request})
}

/// Returns the name of the object; empty if it has none yet.
fn named<'a>(attributes: &'a Attributes<'_>) -> &'a str {
    attributes.own_name()
}

/// The response of a webhook.
struct Response {
    uid: String,
    allowed: bool,
    status: Option<Status>,
    patch: Option<String>,
    patch_type: Option<String>,
    annotations: BTreeMap<String, String>,
    warnings: Vec<String>,
}

impl Response {
    fn read(value: &Value) -> Result<Self, serde_json::Error> {
        fn field<T: DeserializeOwned + Default>(value: &Value, name: &str) -> Result<T, serde_json::Error> {
            match &value[name] {
                Value::Null => Ok(T::default()),
                given => serde_json::from_value(given.clone()),
            }
        }
        Ok(Self {
            uid: field(value, "uid")?,
            allowed: field(value, "allowed")?,
            status: field(value, "status")?,
            patch: field(value, "patch")?,
            patch_type: field(value, "patchType")?,
            annotations: field(value, "auditAnnotations")?,
            warnings: field(value, "warnings")?,
        })
    }
}

/// A valid response.
#[derive(Debug, Default)]
pub struct Verdict {
    pub allowed: bool,
    pub status: Option<Status>,
    pub patch: Vec<u8>,
    pub patch_type: String,
    pub annotations: BTreeMap<String, String>,
    pub warnings: Vec<String>,
}

/// Parses a response. The error follows `received invalid webhook response: `.
pub fn verdict(version: Version, uid: &str, mutating: bool, review: &Value) -> Result<Verdict, String> {
    let response = &review["response"];
    if response.is_null() {
        return Err("webhook response was absent".into());
    }
    let response = Response::read(response).map_err(|e| e.to_string())?;
    let patch = response.patch.as_deref().unwrap_or("");
    let mut patch_type = response.patch_type.clone().unwrap_or_default();
    match version {
        Version::V1 => check(uid, mutating, review, &response)?,
        // Upstream does not check the patch type in this version.
        Version::V1Beta1 if patch.is_empty() || !mutating => patch_type.clear(),
        Version::V1Beta1 => patch_type = "JSONPatch".into(),
    }
    let patch = if mutating { STANDARD.decode(patch).map_err(|e| e.to_string())? } else { Vec::new() };
    Ok(Verdict {
        allowed: response.allowed,
        status: response.status,
        patch,
        patch_type,
        annotations: response.annotations,
        warnings: response.warnings,
    })
}

fn check(uid: &str, mutating: bool, review: &Value, response: &Response) -> Result<(), String> {
    if response.uid != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", response.uid));
    }
    let own = |field: &str| review[field].as_str().unwrap_or("");
    let (api_version, kind) = (own("apiVersion"), own("kind"));
    if (api_version, kind) != (Version::V1.api_version(), "AdmissionReview") {
        let expected = Version::V1.api_version();
        return Err(format!(
            "expected webhook response of {expected}, Kind=AdmissionReview, got {api_version}, Kind={kind}"
        ));
    }
    let patch = response.patch.as_deref().is_some_and(|p| !p.is_empty());
    match (mutating, patch, response.patch_type.as_deref()) {
        (true, true, None) => Err("webhook returned response.patch but not response.patchType".into()),
        (true, false, Some(_)) => Err("webhook returned response.patchType but not response.patch".into()),
        (true, _, Some("")) => Err("webhook returned invalid response.patchType of \"\"".into()),
        (false, true, _) => Err("validating webhook may not return response.patch".into()),
        (false, _, Some(_)) => Err("validating webhook may not return response.patchType".into()),
        _ => Ok(()),
    }
}

/// Returns the refusal that the client gets.
pub fn denied(webhook: &str, status: Option<Status>) -> StatusError {
    let mut status = status.unwrap_or_default();
    let by = format!("admission webhook \"{webhook}\" denied the request");
    if status.code.unwrap_or(0) < 400 {
        status.code = Some(400);
    }
    if matches!(status.status.as_deref(), None | Some("" | "Success")) {
        status.status = Some("Failure".into());
    }
    let filled = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    status.message = Some(match filled(&status.message).or_else(|| filled(&status.reason)) {
        Some(why) => format!("{by}: {why}"),
        None => format!("{by} without explanation"),
    });
    StatusError(Box::new(status))
}
