//! Custom resources: definitions accepted and served; objects pruned, defaulted, refused, scaled, watched, cleaned
//! up.

use std::time::Duration;

use futures_util::StreamExt;
use http::Method;
use knarr_api::kind::ResourceType;
use knarr_client::transport::{ListOptions, WatchEvent};
use serde_json::{Value, json};

use crate::harness::{APPLY, Harness, JSON, MERGE, STRATEGIC, User};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRON_TABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";

fn schema() -> Value {
    let steps = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"}, "run": {"type": "string"}}}});
    let spec = json!({"type": "object", "required": ["cronSpec"], "properties": {
        "cronSpec": {"type": "string", "pattern": "^\\S+( \\S+){4}$"},
        "replicas": {"type": "integer", "default": 1, "minimum": 0, "maximum": 10},
        "color": {"type": "string", "enum": ["red", "blue"]},
        "port": {"x-kubernetes-int-or-string": true},
        "steps": steps,
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        "x-kubernetes-validations": [{"rule": "self.replicas != 7", "message": "seven is unlucky"}]});
    let status = json!({"type": "object", "properties": {
        "replicas": {"type": "integer"}, "selector": {"type": "string"}}});
    json!({"type": "object", "properties": {"spec": spec, "status": status}})
}

fn definition() -> Value {
    let version = json!({
        "name": "v1", "served": true, "storage": true,
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
        "selectableFields": [{"jsonPath": ".spec.color"}],
        "additionalPrinterColumns": [
            {"name": "Spec", "type": "string", "jsonPath": ".spec.cronSpec"},
            {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas", "priority": 1}],
        "schema": {"openAPIV3Schema": schema()},
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"], "categories": ["all"]},
            "versions": [version],
        },
    })
}

fn cron_tab(name: &str) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name},
        "spec": {"cronSpec": "* * * * *"}})
}

/// Repeats the request until `good` accepts the response, which takes milliseconds.
async fn until(user: &User, uri: &str, good: impl Fn(u16, &Value) -> bool) -> Value {
    for _ in 0..400 {
        let reply = user.get(uri).await;
        if good(reply.code, &reply.body) {
            return reply.body;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{uri} is not as wanted: {}", user.get(uri).await.body);
}

fn has(body: &Value, ty: &str, status: &str) -> bool {
    body["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|c| c["type"] == ty && c["status"] == status)
}

async fn define(user: &User, definition: &Value) {
    user.post(DEFINITIONS, definition).await.expect(201);
    let uri = format!("{DEFINITIONS}/{}", definition["metadata"]["name"].as_str().unwrap());
    until(user, &uri, |_, body| has(body, "Established", "True")).await;
}

#[tokio::test]
async fn a_definition_is_established_and_discovered() {
    let harness = Harness::new().await;
    let user = harness.admin();
    user.get(CRON_TABS).await.expect(404);
    define(&user, &definition()).await;
    let body = user.get(&format!("{DEFINITIONS}/crontabs.stable.example.com")).await.expect(200);
    assert!(has(&body, "NamesAccepted", "True"));
    assert_eq!(body["status"]["acceptedNames"]["listKind"], "CronTabList");
    assert_eq!(body["status"]["storedVersions"], json!(["v1"]));
    let group = user.get("/apis/stable.example.com").await.expect(200);
    assert_eq!(group["preferredVersion"]["groupVersion"], "stable.example.com/v1");
    let resources = user.get("/apis/stable.example.com/v1").await.expect(200);
    let names: Vec<&str> =
        resources["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
    assert_eq!(names, ["crontabs", "crontabs/scale", "crontabs/status"]);
    assert_eq!(resources["resources"][0]["shortNames"], json!(["ct"]));
    let openapi = user.get("/openapi/v3/apis/stable.example.com/v1").await.expect(200);
    let schema = &openapi["components"]["schemas"]["com.example.stable.v1.CronTab"];
    assert_eq!(schema["properties"]["spec"]["required"], json!(["cronSpec"]));
}

#[tokio::test]
async fn taken_names_are_not_accepted_until_they_are_free() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    let mut other = definition();
    other["metadata"]["name"] = json!("others.stable.example.com");
    other["spec"]["names"] = json!({"plural": "others", "kind": "CronTab"});
    user.post(DEFINITIONS, &other).await.expect(201);
    let uri = format!("{DEFINITIONS}/others.stable.example.com");
    let body = until(&user, &uri, |_, body| has(body, "NamesAccepted", "False")).await;
    assert!(has(&body, "Established", "False"));
    user.delete(&format!("{DEFINITIONS}/crontabs.stable.example.com")).await.expect(200);
    until(&user, &uri, |_, body| has(body, "Established", "True")).await;
}

#[tokio::test]
async fn objects_are_pruned_defaulted_and_checked() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    let mut object = cron_tab("a");
    object["spec"]["unknown"] = json!(1);
    object["spec"]["free"] = json!({"any": ["thing"]});
    object["status"] = json!({"replicas": 3});
    let reply = user.post(CRON_TABS, &object).await;
    assert_eq!(reply.warnings, ["299 - \"unknown field \\\"spec.unknown\\\"\""]);
    let made = reply.expect(201);
    assert_eq!(made["spec"], json!({"cronSpec": "* * * * *", "free": {"any": ["thing"]}, "replicas": 1}));
    assert_eq!(made.get("status"), None);
    assert_eq!(made["metadata"]["generation"], 1);
    let strict = user.post(&format!("{CRON_TABS}?fieldValidation=Strict"), &object).await;
    assert_eq!(strict.code, 400);
    assert_eq!(
        strict.message(),
        "CronTab in version \"v1\" cannot be handled as a CronTab: strict decoding error: unknown field \"spec.unknown\""
    );
    for (spec, expected) in [
        (json!({}), "spec.cronSpec: Required value"),
        (
            json!({"cronSpec": 1}),
            "spec.cronSpec: Invalid value: \"integer\": spec.cronSpec in body must be of type string: \"integer\"",
        ),
        (
            json!({"cronSpec": "x"}),
            "spec.cronSpec: Invalid value: \"x\": spec.cronSpec in body should match '^\\S+( \\S+){4}$'",
        ),
        (
            json!({"cronSpec": "* * * * *", "color": "green"}),
            "spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\"",
        ),
        (json!({"cronSpec": "* * * * *", "replicas": 7}), "spec: Invalid value: seven is unlucky"),
        (json!({"cronSpec": "* * * * *", "tags": ["a", "a"]}), "spec.tags[1]: Duplicate value: \"a\""),
        (
            json!({"cronSpec": "* * * * *", "steps": [{"name": "a"}, {"name": "a"}]}),
            "spec.steps[1]: Duplicate value: {\"name\":\"a\"}",
        ),
    ] {
        let mut object = cron_tab("b");
        object["spec"] = spec;
        let reply = user.post(CRON_TABS, &object).await;
        assert_eq!(reply.code, 422, "{}", reply.body);
        // If an object is too invalid for its rules, a second error follows.
        let message = reply.message().replacen(": [", ": ", 1);
        let wanted = format!("CronTab.stable.example.com \"b\" is invalid: {expected}");
        assert!(message.starts_with(&wanted), "{message}");
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = user.get_as(CRON_TABS, table).await.expect(200);
    let names: Vec<&str> =
        table["columnDefinitions"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["Name", "Spec", "Replicas"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "* * * * *", 1]));
}

#[tokio::test]
async fn status_scale_and_patches_keep_to_their_part() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    user.post(CRON_TABS, &cron_tab("a")).await.expect(201);
    let uri = format!("{CRON_TABS}/a");
    let scale = user.get(&format!("{uri}/scale")).await.expect(200);
    assert_eq!((&scale["spec"], &scale["status"]), (&json!({"replicas": 1}), &json!({"replicas": 0})));
    user.patch(&format!("{uri}/scale"), MERGE, &json!({"spec": {"replicas": 4}})).await.expect(200);
    let scaled = user.get(&uri).await.expect(200);
    assert_eq!((&scaled["spec"]["replicas"], &scaled["metadata"]["generation"]), (&json!(4), &json!(2)));
    let status = json!({"status": {"replicas": 4, "selector": "app=a"}, "spec": {"replicas": 9}});
    let patched = user.patch(&format!("{uri}/status"), MERGE, &status).await.expect(200);
    assert_eq!(patched["status"], json!({"replicas": 4, "selector": "app=a"}));
    assert_eq!((&patched["spec"]["replicas"], &patched["metadata"]["generation"]), (&json!(4), &json!(2)));
    assert_eq!(user.get(&format!("{uri}/scale")).await.expect(200)["status"]["selector"], "app=a");
    let add = json!([{"op": "add", "path": "/spec/color", "value": "red"}]);
    user.patch(&uri, JSON, &add).await.expect(200);
    let refused = user.patch(&uri, STRATEGIC, &json!({"spec": {"color": "blue"}})).await;
    assert_eq!(refused.code, 415);
    assert_eq!(
        refused.message(),
        "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    );
    let no_version = user.put(&uri, &cron_tab("a")).await;
    assert_eq!(no_version.code, 422);
    assert!(
        no_version
            .message()
            .contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update")
    );
    let unknown = user.get(&format!("{uri}/nothing")).await;
    assert_eq!(unknown.code, 404);
}

#[tokio::test]
async fn applies_merge_by_the_schema() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    let uri = format!("{CRON_TABS}/a");
    let apply = |manager: &str, steps: Value| {
        let mut object = cron_tab("a");
        object["spec"]["steps"] = steps;
        (format!("{uri}?fieldManager={manager}"), object)
    };
    let (one, object) = apply("one", json!([{"name": "build", "run": "make"}]));
    user.patch(&one, APPLY, &object).await.expect(201);
    let (two, object) = apply("two", json!([{"name": "test", "run": "make test"}]));
    let both = user.patch(&two, APPLY, &object).await.expect(200);
    assert_eq!(
        both["spec"]["steps"],
        json!([{"name": "build", "run": "make"}, {"name": "test", "run": "make test"}])
    );
    let (two, object) = apply("two", json!([{"name": "build", "run": "other"}]));
    let conflict = user.patch(&two, APPLY, &object).await;
    assert_eq!(conflict.code, 409);
    assert_eq!(
        conflict.message(),
        "Apply failed with 1 conflict: conflict with \"one\": .spec.steps[name=\"build\"].run"
    );
    let (one, object) = apply("one", json!([]));
    let left = user.patch(&one, APPLY, &object).await.expect(200);
    assert_eq!(left["spec"]["steps"], json!([{"name": "test", "run": "make test"}]));
}

#[tokio::test]
async fn selectable_fields_select_in_lists_and_watches() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    let colored = |name: &str, color: &str| {
        let mut object = cron_tab(name);
        object["spec"]["color"] = json!(color);
        object
    };
    user.post(CRON_TABS, &colored("a", "red")).await.expect(201);
    user.post(CRON_TABS, &colored("b", "blue")).await.expect(201);
    let found = user.get(&format!("{CRON_TABS}?fieldSelector=spec.color%3Dred")).await.expect(200);
    let names = |list: &Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["metadata"]["name"].as_str().unwrap().into())
            .collect()
    };
    assert_eq!(names(&found), ["a"]);
    let unknown = user.get(&format!("{CRON_TABS}?fieldSelector=spec.replicas%3D1")).await;
    assert_eq!(unknown.code, 400);
    assert_eq!(unknown.message(), "field label not supported: spec.replicas");
    let types = ResourceType {
        group: "stable.example.com",
        version: "v1",
        kind: "CronTab",
        plural: "crontabs",
        namespaced: true,
    };
    let options = ListOptions { field_selector: Some("spec.color=red".into()), ..ListOptions::default() };
    let mut watch = user.0.watch(&types, Some("default"), &options).await.unwrap();
    let next = |event: Option<Result<WatchEvent, knarr_client::Error>>| match event.unwrap().unwrap() {
        WatchEvent::Added(o) => format!("+{}", o.name()),
        WatchEvent::Modified(o) => format!("~{}", o.name()),
        WatchEvent::Deleted(o) => format!("-{}", o.name()),
        other => format!("{other:?}"),
    };
    assert_eq!(next(watch.next().await), "+a");
    user.patch(&format!("{CRON_TABS}/b"), MERGE, &json!({"spec": {"color": "red"}})).await.expect(200);
    assert_eq!(next(watch.next().await), "+b");
    user.delete(&format!("{DEFINITIONS}/crontabs.stable.example.com")).await.expect(200);
    let (first, second) = (next(watch.next().await), next(watch.next().await));
    assert_eq!([first, second].map(|e| e[..1].to_owned()), ["-", "-"]);
    // The watch ends when the resource is no longer served.
    assert!(tokio::time::timeout(Duration::from_secs(5), watch.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_definition_goes_after_its_instances() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    let mut held = cron_tab("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    user.post(CRON_TABS, &held).await.expect(201);
    user.post(CRON_TABS, &cron_tab("free")).await.expect(201);
    let uri = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let deleted = user.delete(&uri).await.expect(200);
    assert_eq!(deleted["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    until(&user, &format!("{CRON_TABS}/free"), |code, _| code == 404).await;
    until(&user, &uri, |_, body| has(body, "Terminating", "True")).await;
    let refused = user.post(CRON_TABS, &cron_tab("late")).await;
    assert_eq!(refused.code, 403);
    assert!(refused.message().contains("create not allowed while custom resource definition is terminating"));
    let release = json!({"metadata": {"finalizers": null}});
    user.patch(&format!("{CRON_TABS}/held"), MERGE, &release).await.expect(200);
    until(&user, &uri, |code, _| code == 404).await;
    until(&user, CRON_TABS, |code, _| code == 404).await;
}

#[tokio::test]
async fn versions_are_converted_and_migrated() {
    let harness = Harness::new().await;
    let user = harness.admin();
    let mut two = definition();
    let mut old = two["spec"]["versions"][0].clone();
    old["name"] = json!("v1beta1");
    old["storage"] = json!(false);
    old["deprecated"] = json!(true);
    two["spec"]["versions"].as_array_mut().unwrap().push(old);
    define(&user, &two).await;
    let beta = CRON_TABS.replace("/v1/", "/v1beta1/");
    let mut object = cron_tab("a");
    object["apiVersion"] = json!("stable.example.com/v1beta1");
    let reply = user.post(&beta, &object).await;
    assert_eq!(
        reply.warnings,
        ["299 - \"stable.example.com/v1beta1 CronTab is deprecated; use stable.example.com/v1 CronTab\""]
    );
    assert_eq!(reply.expect(201)["apiVersion"], "stable.example.com/v1beta1");
    assert_eq!(user.get(&format!("{CRON_TABS}/a")).await.expect(200)["apiVersion"], "stable.example.com/v1");
    let list = user.get(&beta).await.expect(200);
    assert_eq!(list["apiVersion"], "stable.example.com/v1beta1");
    assert_eq!(list["items"][0]["apiVersion"], "stable.example.com/v1beta1");
    let group = user.get("/apis/stable.example.com").await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v1");
}

#[tokio::test]
async fn a_changed_schema_holds_for_what_is_stored() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    user.post(CRON_TABS, &cron_tab("a")).await.expect(201);
    let uri = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let pointer = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/added";
    let add = json!([{"op": "add", "path": pointer, "value": {"type": "string", "default": "new"}}]);
    user.patch(&uri, JSON, &add).await.expect(200);
    let body = until(&user, &format!("{CRON_TABS}/a"), |_, body| body["spec"]["added"] == "new").await;
    assert_eq!(body["metadata"]["generation"], 1);
    // Values that were too long before may stay, new ones may not.
    let tighten = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/cronSpec/maxLength", "value": 3}]);
    user.patch(&uri, JSON, &tighten).await.expect(200);
    until(&user, "/openapi/v3/apis/stable.example.com/v1", |_, body| body.to_string().contains("maxLength"))
        .await;
    user.patch(&format!("{CRON_TABS}/a"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .expect(200);
    user.post(CRON_TABS, &cron_tab("b")).await.expect(422);
}

#[tokio::test]
async fn definitions_survive_a_restart() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    user.post(CRON_TABS, &cron_tab("a")).await.expect(201);
    harness.server.stop();
    let again = knarr_apiserver::ApiServer::new(crate::harness::config(harness.store.clone())).await.unwrap();
    let user = User(again.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    user.get(&format!("{CRON_TABS}/a")).await.expect(200);
}

#[tokio::test]
async fn protobuf_cannot_hold_custom_resources() {
    let harness = Harness::new().await;
    let user = harness.admin();
    define(&user, &definition()).await;
    user.post(CRON_TABS, &cron_tab("a")).await.expect(201);
    let protobuf = "application/vnd.kubernetes.protobuf";
    let refused = user.get_as(&format!("{CRON_TABS}/a"), protobuf).await;
    assert_eq!(refused.code, 406);
    let body = user.raw(Method::POST, CRON_TABS, protobuf, "k8s\0").await;
    assert_eq!(body.code, 400);
}
