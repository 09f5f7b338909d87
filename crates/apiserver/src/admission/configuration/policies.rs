//! ValidatingAdmissionPolicyConfiguration and MutatingAdmissionPolicyConfiguration: policies of files, which are refused.

use serde::Deserialize;
use serde_json::Value;

use super::strict::{self, Shape};
use crate::admission::AdmissionConfig;

const VERSION: &str = "apiserver.config.k8s.io/v1";
const SHAPE: Shape = Shape::Object(&[("staticManifestsDir", Shape::Any)]);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    static_manifests_dir: String,
}

pub fn load_mutating(value: Option<&Value>, _: &mut AdmissionConfig) -> Result<(), String> {
    check(value, "MutatingAdmissionPolicyConfiguration")
}

pub fn load_validating(value: Option<&Value>, _: &mut AdmissionConfig) -> Result<(), String> {
    check(value, "ValidatingAdmissionPolicyConfiguration")
}

fn check(value: Option<&Value>, kind: &str) -> Result<(), String> {
    let Some(value) = value else { return Ok(()) };
    let file: File = strict::decode(value, &[(VERSION, kind)], &SHAPE)?;
    if file.static_manifests_dir.is_empty() { Ok(()) } else { Err(super::no_manifests()) }
}
