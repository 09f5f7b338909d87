//! Tests of the documents: references resolve, and clients find what they look for.

use serde_json::json;

use super::*;
use crate::schema::kinds;

const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

fn apps() -> Value {
    let subresources = [
        Subresource {
            name: "scale",
            kind: ("autoscaling", "v1", "Scale"),
            verbs: &["get", "patch", "update"],
        },
        Subresource {
            name: "status",
            kind: ("apps", "v1", "Deployment"),
            verbs: &["get", "patch", "update"],
        },
    ];
    let deployments = Resource {
        plural: "deployments",
        kind: "Deployment",
        namespaced: true,
        verbs: ALL,
        subresources: &subresources,
    };
    document("apps", "v1", &[deployments], &|name| {
        (name == "io.k8s.api.apps.v1.DeploymentSpec").then(
            || json!({"description": "A spec.", "properties": {"replicas": {"description": "How many."}}}),
        )
    })
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("$ref", Value::String(target)) => found.push(target.clone()),
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[track_caller]
fn check_references(document: &Value) {
    let mut found = Vec::new();
    references(document, &mut found);
    assert!(!found.is_empty());
    for target in found {
        assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target} does not resolve");
    }
}

#[test]
fn every_reference_resolves() {
    check_references(&apps());
    let mut versions: Vec<_> = kinds().iter().map(|k| (k.group, k.version)).collect();
    versions.dedup();
    for (group, version) in versions {
        let resources: Vec<Resource<'_>> = kinds()
            .iter()
            .filter(|k| (k.group, k.version) == (group, version) && !k.kind.ends_with("List"))
            .map(|k| Resource {
                plural: k.kind,
                kind: k.kind,
                namespaced: true,
                verbs: ALL,
                subresources: &[],
            })
            .collect();
        check_references(&document(group, version, &resources, &|_| None));
    }
}

#[test]
fn clients_find_what_they_look_for() {
    let document = apps();
    let at = |pointer: &str| document.pointer(pointer).unwrap_or_else(|| panic!("no {pointer}"));
    let object = "/paths/~1apis~1apps~1v1~1namespaces~1{namespace}~1deployments~1{name}";
    // kubectl asks whether the server validates fields before it sends an object unchecked.
    let patch = at(&format!("{object}/patch"));
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "apps", "version": "v1", "kind": "Deployment"})
    );
    let names: Vec<&str> =
        patch["parameters"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    assert_eq!(
        at(&format!("{object}~1scale/get/x-kubernetes-group-version-kind")),
        &json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
    );
    assert_eq!(at(&format!("{object}/get/operationId")), "readAppsV1NamespacedDeployment");
    assert_eq!(
        at("/paths/~1apis~1apps~1v1~1deployments/get/operationId"),
        "listAppsV1DeploymentForAllNamespaces"
    );
}

#[test]
fn schemas_carry_the_facts() {
    let document = apps();
    let schemas = &document["components"]["schemas"];
    let spec = &schemas["io.k8s.api.apps.v1.DeploymentSpec"];
    assert_eq!(spec["required"], json!(["selector", "template"]));
    assert_eq!(spec["description"], "A spec.");
    assert_eq!(
        spec["properties"]["replicas"],
        json!({"type": "integer", "format": "int32", "description": "How many."})
    );
    assert_eq!(
        spec["properties"]["strategy"],
        json!({"allOf": [{"$ref": "#/components/schemas/io.k8s.api.apps.v1.DeploymentStrategy"}],
               "default": {}, "x-kubernetes-patch-strategy": "retainKeys"})
    );
    let ports = &schemas["io.k8s.api.core.v1.Container"]["properties"]["ports"];
    assert_eq!(
        ports,
        &json!({"type": "array", "items": {"$ref": "#/components/schemas/io.k8s.api.core.v1.ContainerPort"},
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
                "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "containerPort"})
    );
    let protocol = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"];
    assert_eq!(protocol, &json!({"type": "string", "default": "TCP", "enum": ["SCTP", "TCP", "UDP"]}));
    assert_eq!(
        schemas["io.k8s.api.apps.v1.Deployment"]["x-kubernetes-group-version-kind"],
        json!([{"group": "apps", "version": "v1", "kind": "Deployment"}])
    );
}

#[test]
fn index_names_documents_by_content() {
    let got = index([("api/v1", hash(b"a").as_str()), ("apis/apps/v1", "X")]);
    assert_eq!(got["paths"]["apis/apps/v1"]["serverRelativeURL"], "/openapi/v3/apis/apps/v1?hash=X");
    assert_ne!(hash(b"a"), hash(b"b"));
    assert_eq!(hash(b""), "6C62272E07BB014262B821756295C58D");
}
