//! A custom resource through its hooks: defaults, status, scale, columns, warnings.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::resource::CellContext;

fn definition() -> Value {
    json!({
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "kind": "CronTab"},
            "versions": [
                {"name": "v1beta1", "served": true, "deprecated": true},
                {"name": "v1", "served": true, "storage": true,
                 "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
                 "selectableFields": [{"jsonPath": ".spec.color"}],
                 "additionalPrinterColumns": [
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "priority": 1}],
                 "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "replicas": {"type": "integer", "default": 2, "minimum": 0},
                        "color": {"type": "string"}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}},
                 }}}},
            ],
        },
        "status": {"acceptedNames": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab",
            "listKind": "CronTabList", "shortNames": ["ct"]}},
    })
}

fn custom(version: &str) -> CustomResource {
    let definition = Arc::new(Definition::parse(&definition()));
    let version = definition.version(version).unwrap();
    CustomResource::new(&definition, version).unwrap()
}

fn held(value: &Value) -> Object {
    Object::new(Bytes::from(value.to_string()), &["spec.color"]).unwrap()
}
use crate::object::Object;

#[test]
fn names_come_from_the_definition() {
    let custom = custom("v1");
    let types = custom.resource.types;
    assert_eq!((types.group, types.version, types.kind), ("stable.example.com", "v1", "CronTab"));
    assert_eq!(custom.resource.list_kind, "CronTabList");
    assert_eq!(custom.resource.short_names, ["ct"]);
    assert_eq!(custom.resource.selectable, ["spec.color"]);
    assert!(
        custom.resource.subresource("status").is_some() && custom.resource.subresource("scale").is_some()
    );
    assert_eq!(custom.deprecation, None);
    assert_eq!(
        self::custom("v1beta1").deprecation.as_deref(),
        Some("stable.example.com/v1beta1 CronTab is deprecated; use stable.example.com/v1 CronTab")
    );
}

#[test]
fn writes_keep_to_their_part() {
    let custom = custom("v1");
    let mut object = json!({"metadata": {"name": "a"}, "spec": {"color": "red"}, "status": {"replicas": 1}});
    custom.default(&mut object);
    custom.prepare_for_create(&mut object);
    assert_eq!(
        object,
        json!({"metadata": {"name": "a", "generation": 1}, "spec": {"color": "red", "replicas": 2}})
    );
    let mut with_status = object.clone();
    with_status["status"] = json!({"replicas": 2});
    with_status["spec"] = json!({});
    with_status["metadata"]["labels"] = json!({"a": "b"});
    let mut status = with_status.clone();
    custom.prepare_for_update(&mut status, &object, Some("status"));
    assert_eq!(status["spec"], object["spec"]);
    assert_eq!(status["metadata"], object["metadata"]);
    assert_eq!(status["status"], json!({"replicas": 2}));
    let mut main = with_status;
    custom.prepare_for_update(&mut main, &status, None);
    assert_eq!(main["status"], json!({"replicas": 2}));
    assert_eq!(main["metadata"], json!({"name": "a", "generation": 2, "labels": {"a": "b"}}));
    let errors = custom.validate_update(&held(&json!({"spec": {"replicas": -1}})), &held(&object), None);
    assert_eq!(
        errors.to_string(),
        "[spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0, \
         .spec.replicas: Invalid value: -1: should be a non-negative integer]"
    );
    let wrong = json!({"spec": {"replicas": 2}, "status": {"replicas": "x"}});
    let errors = custom.validate_update(&held(&wrong), &held(&object), Some("status"));
    assert!(
        errors.to_string().starts_with(
            "[status.replicas: Invalid value: \"string\": replicas in body must be of type integer: \"string\""
        ),
        "{errors}"
    );
}

#[test]
fn scales_at_the_paths_of_the_definition() {
    let custom = custom("v1");
    let mut object = json!({"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"replicas": 3},
        "status": {"replicas": 2, "selector": "app=a"}});
    let mut scale = custom.scale_of(&object).unwrap();
    assert_eq!(scale["spec"], json!({"replicas": 3}));
    assert_eq!(scale["status"], json!({"replicas": 2, "selector": "app=a"}));
    scale["spec"]["replicas"] = json!(5);
    custom.apply_scale(&mut object, &scale);
    assert_eq!(object["spec"]["replicas"], 5);
    assert_eq!(
        custom.scale_of(&json!({"spec": {}})).unwrap_err(),
        "the spec replicas field \".spec.replicas\" does not exist"
    );
}

#[test]
fn columns_show_what_their_paths_find() {
    let custom = custom("v1");
    let object = json!({"metadata": {"name": "a", "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"replicas": 3}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let now = "2024-01-01T00:05:00Z".parse().unwrap();
    assert_eq!(
        custom.columns.cells(&held(&object), &CellContext { now }),
        [json!("a"), json!(3), json!("True"), json!("5m")]
    );
    assert_eq!(custom.columns.definitions()[3]["priority"], 1);
    assert_eq!(self::custom("v1beta1").columns.definitions()[1]["name"], "Age");
}

#[test]
fn finalizers_without_a_domain_are_warned_about() {
    let object = held(&json!({"metadata": {"finalizers": ["plain", "a.b", "a.b/c"]}}));
    let warnings = custom("v1").warnings(&object, None);
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].contains("\"a.b\": prefer a domain-qualified finalizer name including a path (/)"));
}
