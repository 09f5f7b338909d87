//! The `scale` subresource: the Scale of a workload, and what writing a Scale changes.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::selector::Selector;
use serde_json::{Map, Value, json};

use crate::prepare::{self, object};

/// Returns the Scale (autoscaling/v1) of a Deployment, ReplicaSet, StatefulSet or ReplicationController.
pub fn of(workload: &Value) -> Value {
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(v) = workload.pointer("/metadata").and_then(|m| m.get(field)) {
            metadata.insert(field.to_owned(), v.clone());
        }
    }
    let number = |pointer| workload.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let mut scale = json!({
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": metadata,
        "spec": {},
        "status": {"replicas": number("/status/replicas")},
    });
    if number("/spec/replicas") != 0 {
        scale["spec"]["replicas"] = Value::from(number("/spec/replicas"));
    }
    if let Some(text) = selector_text(workload.pointer("/spec/selector")) {
        scale["status"]["selector"] = Value::from(text);
    }
    scale
}

/// Returns the text form of a selector: a label selector, or the plain map of a ReplicationController.
fn selector_text(selector: Option<&Value>) -> Option<String> {
    let selector = selector?.as_object()?;
    let typed = if selector.contains_key("matchLabels") || selector.contains_key("matchExpressions") {
        let selector = serde_json::from_value(Value::Object(selector.clone())).ok()?;
        Selector::from_label_selector(Some(&selector)).ok()?
    } else {
        let labels = serde_json::from_value(Value::Object(selector.clone())).ok()?;
        Selector::from_labels(&labels)
    };
    Some(typed.to_string()).filter(|text| !text.is_empty())
}

/// Writes the replicas of the Scale into the workload; a resourceVersion in the Scale becomes the workload's
/// precondition.
///
/// The changed workload passes `prepare_for_update` and `validate_update` like any other update.
pub fn apply(workload: &mut Value, scale: &Value) {
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    let spec = object(workload).entry("spec").or_insert(Value::Null);
    object(spec).insert("replicas".to_owned(), Value::from(replicas));
    let version = scale.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or("");
    if !version.is_empty() {
        prepare::metadata(workload).insert("resourceVersion".to_owned(), Value::from(version));
    }
}

/// Validates a Scale.
pub fn validate(scale: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    if replicas < 0 {
        let path = Path::new("spec").child("replicas");
        errors.push(Error::invalid(&path, replicas, "must be greater than or equal to 0"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_and_applies() {
        let mut workload = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "5", "labels": {"x": "y"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"b": "2", "a": "1"}}},
            "status": {"replicas": 2},
        });
        let mut scale = of(&workload);
        assert_eq!(
            scale,
            json!({
                "apiVersion": "autoscaling/v1", "kind": "Scale",
                "metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "5"},
                "spec": {"replicas": 3},
                "status": {"replicas": 2, "selector": "a=1,b=2"},
            })
        );
        scale["spec"]["replicas"] = json!(7);
        scale["metadata"]["resourceVersion"] = json!("4");
        apply(&mut workload, &scale);
        assert_eq!(workload.pointer("/spec/replicas"), Some(&json!(7)));
        assert_eq!(workload.pointer("/metadata/resourceVersion"), Some(&json!("4")));
        let plain = json!({"spec": {"selector": {"app": "x"}}});
        assert_eq!(of(&plain).pointer("/status/selector"), Some(&json!("app=x")));
    }

    #[test]
    fn refuses_negative() {
        let errors = validate(&json!({"spec": {"replicas": -1}}));
        assert_eq!(
            errors.to_string(),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
    }
}
