//! AppArmor profiles in their deprecated form, one annotation per container.

use k8s_openapi::api::core::v1::AppArmorProfile;
use serde_json::{Value, json};

use crate::defaults::{child, items, text};
use crate::prepare;

/// The prefix of the annotation; the container's name follows.
pub const ANNOTATION_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Returns the profile that the annotation stands for; `None` if it is malformed.
pub fn profile(annotation: &str) -> Option<AppArmorProfile> {
    let (type_, localhost) = match annotation {
        "unconfined" => ("Unconfined", None),
        "runtime/default" => ("RuntimeDefault", None),
        other => ("Localhost", Some(other.strip_prefix("localhost/").filter(|p| !p.is_empty())?)),
    };
    Some(AppArmorProfile { type_: type_.to_owned(), localhost_profile: localhost.map(str::to_owned) })
}

/// The longest name of a profile on the node.
const NAME_MAX: usize = 4095;

/// Sets the profile of a container from its annotation, if the container has none.
pub fn fields_from_annotations(pod: &mut Value) {
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object).cloned();
    let Some(annotations) = annotations else { return };
    if !annotations.keys().any(|k| k.starts_with(ANNOTATION_PREFIX))
        || pod.pointer("/spec/os/name").is_some_and(|os| os == "windows")
    {
        return;
    }
    let of_pod = pod.pointer("/spec/securityContext/appArmorProfile").cloned();
    let spec = child(prepare::object(pod), "spec");
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items(spec, list) {
            let key = format!("{ANNOTATION_PREFIX}{}", text(container, "name"));
            let annotation = annotations.get(&key).and_then(Value::as_str);
            let Some(meant) = annotation.and_then(profile) else { continue };
            let name = meant.localhost_profile.as_deref().unwrap_or("");
            if name.len() > NAME_MAX || name.trim() != name {
                continue;
            }
            let meant = crate::validate::shown(&meant);
            let has_own = container.get("securityContext").and_then(|c| c.get("appArmorProfile")).is_some();
            if !has_own && of_pod.as_ref() != Some(&meant) {
                child(container, "securityContext").insert("appArmorProfile".to_owned(), json!(meant));
            }
        }
    }
}
