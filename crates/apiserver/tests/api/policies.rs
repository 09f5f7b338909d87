//! Admission policies: expressions that refuse and change writes, with bindings and parameters.

use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, PODS, User, config_map, default_account, pod};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

/// Creates an object and waits until the server's caches contain it.
async fn put(user: &User, uri: &str, object: &Value) {
    let created = user.post(uri, object).await.expect(201);
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let fresh = format!("{uri}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    user.get(&fresh).await.expect(200);
}

fn rules(resource: &str) -> Value {
    json!({"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
        "resources": [resource]}]})
}

/// Creates a policy for a resource and its binding, both with further fields.
async fn policy(user: &User, sort: &str, name: &str, resource: &str, spec: Value, binding: Value) {
    let mut policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{sort}AdmissionPolicy"),
        "metadata": {"name": name}, "spec": {"matchConstraints": rules(resource)}});
    let mut bound = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": format!("{sort}AdmissionPolicyBinding"), "metadata": {"name": format!("{name}-binding")},
        "spec": {"policyName": name}});
    for (object, more) in [(&mut policy, spec), (&mut bound, binding)] {
        for (field, value) in more.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
    }
    let plural = format!("{}admissionpolic", sort.to_lowercase());
    put(user, &format!("{GROUP}/{plural}ies"), &policy).await;
    put(user, &format!("{GROUP}/{plural}ybindings"), &bound).await;
}

async fn validating(user: &User, name: &str, spec: Value, binding: Value) {
    policy(user, "Validating", name, "configmaps", spec, binding).await;
}

fn with_data(name: &str, key: &str, value: &str) -> Value {
    let mut map = config_map(name);
    map["data"][key] = value.into();
    map
}

#[tokio::test]
async fn validations_refuse_with_their_messages() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let spec = json!({
        "matchConditions": [{"name": "not-exempt", "expression": "!object.metadata.name.startsWith('exempt')"}],
        "variables": [
            {"name": "keys", "expression": "has(object.data) ? object.data.size() : 0"},
            {"name": "limit", "expression": "variables.keys + 1 - variables.keys + 1"},
        ],
        "validations": [
            {"expression": "variables.keys <= variables.limit", "reason": "Forbidden",
                "messageExpression": "'too many: ' + string(variables.keys) + ' of ' + request.operation"},
            {"expression": "object.data.k == 'v'", "message": "k must be v"},
            {"expression": "object.data.k != 'never'"},
        ],
    });
    validating(&admin, "maps", spec, json!({"validationActions": ["Deny"]})).await;
    admin.post(CONFIG_MAPS, &config_map("fine")).await.expect(201);

    let mut many = with_data("many", "a", "1");
    many["data"]["b"] = "2".into();
    let reply = admin.post(CONFIG_MAPS, &many).await;
    assert_eq!(reply.code, 403);
    let message = "configmaps \"many\" is forbidden: ValidatingAdmissionPolicy 'maps' with binding 'maps-binding' \
                   denied request: too many: 3 of CREATE";
    assert_eq!((reply.message(), &reply.body["reason"]), (message, &json!("Forbidden")));

    let reply = admin.post(CONFIG_MAPS, &with_data("wrong", "k", "w")).await;
    assert_eq!((reply.code, &reply.body["reason"]), (422, &json!("Invalid")));
    assert!(reply.message().ends_with("denied request: k must be v"), "{}", reply.message());
    let cause = &reply.body["details"]["causes"][0]["message"];
    let wanted = "ValidatingAdmissionPolicy 'maps' with binding 'maps-binding' denied request: k must be v";
    assert_eq!(cause, wanted);
    admin.post(CONFIG_MAPS, &with_data("exempt", "k", "w")).await.expect(201);

    let none = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "none"}});
    let reply = admin.post(CONFIG_MAPS, &none).await;
    let wanted = "expression 'object.data.k == 'v'' resulted in error: no such key: data";
    assert!(reply.message().ends_with(wanted), "{}", reply.message());
}

#[tokio::test]
async fn actions_and_failure_policies_are_followed() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let never = json!([{"expression": "object.metadata.name != 'bad'", "message": "bad name"}]);
    let warn = json!({"validationActions": ["Warn", "Audit"]});
    validating(&admin, "soft", json!({"validations": never}), warn).await;
    let reply = admin.post(CONFIG_MAPS, &config_map("bad")).await;
    let warning = "299 - \"Validation failed for ValidatingAdmissionPolicy 'soft' with binding 'soft-binding': bad name\"";
    assert_eq!(reply.warnings, [warning]);
    reply.expect(201);

    let broken = json!({"failurePolicy": "Ignore", "validations": [{"expression": "object.nope.nope == 1"}]});
    validating(&admin, "ignored", broken, json!({"validationActions": ["Deny"]})).await;
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);

    let wrong = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "wrong"},
        "spec": {"matchConstraints": rules("pods"), "validations": [{"expression": "object.a +"}]}});
    let reply = admin.post(&format!("{GROUP}/validatingadmissionpolicies"), &wrong).await;
    assert_eq!(reply.code, 422);
    let start = "ValidatingAdmissionPolicy.admissionregistration.k8s.io \"wrong\" is invalid: \
                 spec.validations[0].expression: Invalid value: \"object.a +\": compilation failed: ERROR: \
                 <input>:1:11: Syntax error: mismatched input '<EOF>' expecting";
    assert!(reply.message().starts_with(start), "{}", reply.message());
}

#[tokio::test]
async fn parameters_decide() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let limits = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "limits", "labels": {"a": "b"}},
        "stringData": {"word": "x"}});
    put(&admin, "/api/v1/namespaces/default/secrets", &limits).await;
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "Secret"},
        "validations": [{"expression": "object.data.k != params.data.word", "message": "the word"}],
    });
    let binding = json!({"validationActions": ["Deny"],
        "paramRef": {"selector": {"matchLabels": {"a": "b"}}, "parameterNotFoundAction": "Deny"}});
    validating(&admin, "words", spec, binding).await;
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    // `x` in base64.
    let reply = admin.post(CONFIG_MAPS, &with_data("b", "k", "eA==")).await;
    assert!(reply.message().ends_with("the word"), "{}", reply.message());
    put(
        &admin,
        "/api/v1/namespaces",
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}}),
    )
    .await;
    let reply = admin.post("/api/v1/namespaces/other/configmaps", &config_map("c")).await;
    let wanted =
        "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    assert!(reply.message().ends_with(wanted), "{}", reply.message());
}

#[tokio::test]
async fn the_authorizer_answers_and_namespaces_are_seen() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let spec = json!({"validations": [
        {"expression": "authorizer.group('').resource('configmaps').namespace('default').check('frobnicate').allowed()",
            "message": "not allowed"},
        {"expression": "namespaceObject.metadata.name == request.namespace"},
        {"expression": "authorizer.requestResource.check('create').allowed()"},
    ]});
    validating(&admin, "authz", spec, json!({"validationActions": ["Deny"]})).await;
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
}

#[tokio::test]
async fn mutations_apply_and_patch() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    default_account(&admin).await;
    let spec = json!({"reinvocationPolicy": "Never", "mutations": [
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression":
            "Object{metadata: Object.metadata{labels: {'added': 'yes'}}, spec: Object.spec{containers: [\
             Object.spec.containers{name: 'side', image: 'busybox'}]}}"}},
        {"patchType": "JSONPatch", "jsonPatch": {"expression":
            "[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'plain': 'patch'}},\
             JSONPatch{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('a/b'), value: 'c'},\
             JSONPatch{op: 'test', path: '/metadata/labels/added', value: 'yes'}]"}},
    ]});
    policy(&admin, "Mutating", "sidecars", "pods", spec, json!({})).await;
    let created = admin.post(PODS, &pod("p")).await.expect(201);
    assert_eq!(created["metadata"]["labels"], json!({"app": "p", "added": "yes"}));
    assert_eq!(created["metadata"]["annotations"], json!({"plain": "patch", "a/b": "c"}));
    let names: Vec<_> =
        created["spec"]["containers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, [&json!("c"), &json!("side")]);
    assert_eq!(created["spec"]["containers"][1]["imagePullPolicy"], "Always");
}

#[tokio::test]
async fn mutations_that_fail_are_refusals() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let spec = json!({"reinvocationPolicy": "Never", "mutations": [{"patchType": "JSONPatch", "jsonPatch":
        {"expression": "[JSONPatch{op: 'remove', path: '/nope'}]"}}]});
    policy(&admin, "Mutating", "broken", "configmaps", spec, json!({})).await;
    let reply = admin.post(CONFIG_MAPS, &config_map("a")).await;
    assert_eq!((reply.code, &reply.body["reason"]), (403, &json!("Invalid")));
    let start = "policy 'broken' with binding 'broken-binding' denied request: JSON Patch: ";
    assert!(reply.message().starts_with(start), "{}", reply.message());
}
