//! Tests of the documents: references resolve, and clients find what they need.

use serde_json::{Value, json};

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

fn pods() -> Value {
    let sub = |name, kind: &'static str, verbs| Subresource { name, kind: ("", "v1", kind), verbs };
    let subresources = [
        sub("exec", "PodExecOptions", &["create", "get"]),
        sub("log", "Pod", &["get"]),
        sub("proxy", "PodProxyOptions", &["create", "delete", "get", "patch", "update"]),
    ];
    let pods =
        Resource { plural: "pods", kind: "Pod", namespaced: true, verbs: ALL, subresources: &subresources };
    built_in_document("", "v1", &[pods], &|_| None)
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
    // kubectl checks whether the server validates fields before it sends an object without client-side validation.
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

/// Compares operation ids, actions and tags with upstream's api/openapi-spec.
#[test]
fn operations_are_named_as_upstream_names_them() {
    let document = pods();
    check_references(&document);
    let pod = "/api/v1/namespaces/{namespace}/pods/{name}";
    let proxy = format!("{pod}/proxy");
    let below = format!("{proxy}/{{path}}");
    for (path, method, id, action) in [
        (format!("{pod}/exec"), "get", "connectCoreV1GetNamespacedPodExec", "connect"),
        (format!("{pod}/exec"), "post", "connectCoreV1PostNamespacedPodExec", "connect"),
        (proxy.clone(), "head", "connectCoreV1HeadNamespacedPodProxy", "connect"),
        (proxy.clone(), "put", "connectCoreV1PutNamespacedPodProxy", "connect"),
        (below.clone(), "options", "connectCoreV1OptionsNamespacedPodProxyWithPath", "connect"),
        (format!("{pod}/log"), "get", "readCoreV1NamespacedPodLog", "get"),
        ("/api/v1/watch/pods".into(), "get", "watchCoreV1PodListForAllNamespaces", "watchlist"),
        (
            "/api/v1/watch/namespaces/{namespace}/pods".into(),
            "get",
            "watchCoreV1NamespacedPodList",
            "watchlist",
        ),
        (
            "/api/v1/watch/namespaces/{namespace}/pods/{name}".into(),
            "get",
            "watchCoreV1NamespacedPod",
            "watch",
        ),
    ] {
        let operation = &document["paths"][&path][method];
        assert_eq!(operation["operationId"], id, "{method} {path}");
        assert_eq!(operation["x-kubernetes-action"], action, "{method} {path}");
        assert_eq!(operation["tags"], json!(["core_v1"]));
    }
    assert_eq!(document["paths"]["/api/v1/"]["get"]["operationId"], "getCoreV1APIResources");
    let exec = &document["paths"][format!("{pod}/exec")];
    assert!(exec.get("head").is_none(), "streams are opened by GET and POST");
    assert!(exec["post"].get("requestBody").is_none());
    let codes: Vec<_> = exec["post"]["responses"].as_object().unwrap().keys().collect();
    assert_eq!(codes, ["200", "401"]);
    let names = |path: &str| -> Vec<String> {
        let list = document["paths"][path]["parameters"].as_array().unwrap();
        list.iter()
            .map(|p| format!("{} {}", p["in"].as_str().unwrap(), p["name"].as_str().unwrap()))
            .collect()
    };
    assert_eq!(names(&below), ["path name", "path namespace", "path path", "query path"]);
    assert!(names(&format!("{pod}/exec")).contains(&"query command".to_owned()));
    assert!(document.pointer("/components/schemas/io.k8s.api.core.v1.PodExecOptions").is_none());
    let words = paths::group_version_words("flowcontrol.apiserver.k8s.io", "v1");
    assert_eq!(
        (words.tag.as_str(), words.id.as_str()),
        ("flowcontrolApiserver_v1", "FlowcontrolApiserverV1")
    );
}

#[test]
fn paths_without_resources_have_documents() {
    let all: std::collections::BTreeMap<String, Value> =
        general_documents(&["", "apps"], &|_| None).into_iter().collect();
    let paths: Vec<&str> = all.keys().map(String::as_str).collect();
    assert_eq!(
        paths,
        [".well-known/openid-configuration", "api", "apis", "apis/apps", "openid/v1/jwks", "version"]
    );
    let group = &all["apis/apps"];
    check_references(group);
    assert_eq!(group["paths"]["/apis/apps/"]["get"]["operationId"], "getAppsAPIGroup");
    assert!(group.pointer("/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.APIGroup").is_some());
    let keys = &all["openid/v1/jwks"]["paths"]["/openid/v1/jwks/"]["get"]["responses"]["200"]["content"];
    assert_eq!(keys, &json!({"application/jwk-set+json": {"schema": {"type": "string"}}}));
}

#[test]
fn lists_say_what_is_in_them() {
    let document = apps();
    let list = &document["components"]["schemas"]["io.k8s.api.apps.v1.DeploymentList"];
    assert_eq!(list["description"], "DeploymentList is a list of Deployment objects.");
    assert_eq!(list["properties"]["items"]["description"], "The Deployment objects.");
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
