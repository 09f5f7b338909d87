//! Taints of devices, and tolerations of requests.

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::validate;

const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "None"];
const OPERATORS: [&str; 2] = ["Equal", "Exists"];

fn label_value(errors: &mut ErrorList, path: &Path, value: &str) {
    validate::problems(errors, path, value, names::label_value(value));
}

/// Validates a taint. `old` is the taint before an update: an unchanged effect is not validated again.
pub fn validate_taint(
    errors: &mut ErrorList,
    path: &Path,
    taint: &api::DeviceTaint,
    old: Option<&api::DeviceTaint>,
) {
    validate::label_key(errors, &path.child("key"), &taint.key);
    if let Some(value) = taint.value.as_deref().filter(|v| !v.is_empty()) {
        label_value(errors, &path.child("value"), value);
    }
    if old.is_none_or(|old| old.effect != taint.effect) {
        validate::one_of(errors, &path.child("effect"), &taint.effect, &EFFECTS);
    }
}

pub fn validate_toleration(errors: &mut ErrorList, path: &Path, toleration: &api::DeviceToleration) {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let (key, value) = (text(&toleration.key), text(&toleration.value));
    if !key.is_empty() {
        validate::label_key(errors, &path.child("key"), &key);
    }
    let operator = text(&toleration.operator);
    match operator.as_str() {
        "Exists" => {
            if !value.is_empty() {
                let problem = "must be empty for operator `Exists`";
                errors.push(Error::invalid(&path.child("value"), value, problem));
            }
        }
        "Equal" => label_value(errors, &path.child("value"), &value),
        _ => validate::one_of(errors, &path.child("operator"), &operator, &OPERATORS),
    }
    let effect = text(&toleration.effect);
    if !effect.is_empty() {
        validate::supported_value(errors, &path.child("effect"), &effect, &EFFECTS);
    }
}
