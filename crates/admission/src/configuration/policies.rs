//! ValidatingAdmissionPolicyConfiguration and MutatingAdmissionPolicyConfiguration: the directories of policies from
//! files.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::manifests_folder;
use super::strict::{self, Shape};
use crate::AdmissionConfig;

const VERSION: &str = "apiserver.config.k8s.io/v1";
const SHAPE: Shape = Shape::Object(&[("staticManifestsDir", Shape::Any)]);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    static_manifests_dir: String,
}

pub fn load_mutating(value: Option<&Value>, settings: &mut AdmissionConfig) -> Result<(), String> {
    settings.manifests.mutating_policies = folder(value, "MutatingAdmissionPolicyConfiguration")?;
    Ok(())
}

pub fn load_validating(value: Option<&Value>, settings: &mut AdmissionConfig) -> Result<(), String> {
    settings.manifests.validating_policies = folder(value, "ValidatingAdmissionPolicyConfiguration")?;
    Ok(())
}

fn folder(value: Option<&Value>, kind: &str) -> Result<Option<PathBuf>, String> {
    let Some(value) = value else { return Ok(None) };
    let file: File = strict::decode(value, &[(VERSION, kind)], &SHAPE)?;
    manifests_folder(&file.static_manifests_dir)
}
