//! Admission webhooks: a real HTTPS server that inspects, changes and refuses writes.

use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_testing::hook_server::{HookServer, Received, Reply};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, User, config_map};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";

/// Returns a response to the request of this review.
fn answer(request: &Received, mut response: Value) -> Reply {
    response["uid"] = request.body["request"]["uid"].clone();
    let api_version = request.body["apiVersion"].clone();
    Reply::Json(json!({"apiVersion": api_version, "kind": "AdmissionReview", "response": response}))
}

fn patch(request: &Received, operations: Value) -> Reply {
    let patch = STANDARD.encode(operations.to_string());
    answer(request, json!({"allowed": true, "patch": patch, "patchType": "JSONPatch"}))
}

/// Returns a webhook of this server for config maps, with further fields.
fn webhook(server: &HookServer, path: &str, more: Value) -> Value {
    let mut webhook = json!({
        "name": "hook.example.com",
        "clientConfig": {"url": server.url(path), "caBundle": STANDARD.encode(&server.ca_pem)},
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"],
    });
    for (field, value) in more.as_object().unwrap() {
        webhook[field] = value.clone();
    }
    webhook
}

/// Registers webhooks and waits until the server uses them.
async fn register(user: &User, kind: &str, webhooks: Value) {
    let plural = format!("{}configurations", kind.to_lowercase());
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}Configuration"),
        "metadata": {"name": "test"}, "webhooks": webhooks});
    let created = user.post(&format!("{GROUP}/{plural}"), &configuration).await.expect(201);
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let fresh = format!("{GROUP}/{plural}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    user.get(&fresh).await.expect(200);
}

#[tokio::test]
async fn objects_are_changed_and_refused() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let server = HookServer::start(&["127.0.0.1"], |r| match r.path.split('?').next() {
        Some("/mutate") => patch(r, json!([{"op": "add", "path": "/data/added", "value": "yes"}])),
        _ if r.body["request"]["object"]["data"]["bad"] == "yes" => answer(
            r,
            json!({"allowed": false, "status": {"message": "bad data", "code": 403, "reason": "Forbidden"}}),
        ),
        _ => answer(r, json!({"allowed": true, "warnings": ["looked at"]})),
    });
    let server = server.await.unwrap();
    register(&admin, "MutatingWebhook", json!([webhook(&server, "/mutate", json!({}))])).await;
    register(&admin, "ValidatingWebhook", json!([webhook(&server, "/validate", json!({}))])).await;

    let reply = admin.post(CONFIG_MAPS, &config_map("a")).await;
    assert_eq!(reply.warnings, ["299 - \"looked at\""]);
    let created = reply.expect(201);
    assert_eq!(created["data"], json!({"k": "v", "added": "yes"}));
    assert!(!created["metadata"]["managedFields"].to_string().contains("f:added"));

    let mut bad = config_map("b");
    bad["data"]["bad"] = "yes".into();
    let reply = admin.post(CONFIG_MAPS, &bad).await;
    assert_eq!(reply.code, 403);
    assert_eq!(reply.message(), "admission webhook \"hook.example.com\" denied the request: bad data");
    admin.get(&format!("{CONFIG_MAPS}/b")).await.expect(404);

    let received = server.received();
    let first = &received[0].body["request"];
    assert_eq!(received[0].path, "/mutate?timeout=10s");
    assert_eq!(first["operation"], "CREATE");
    assert_eq!(first["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(first["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    assert_eq!(first["requestResource"], first["resource"]);
    assert_eq!((&first["name"], &first["namespace"]), (&json!("a"), &json!("default")));
    assert_eq!(first["userInfo"]["username"], "admin");
    assert_eq!(first["object"]["kind"], "ConfigMap");
    assert_eq!((&first["oldObject"], &first["dryRun"]), (&Value::Null, &json!(false)));
    assert_eq!(first["options"]["kind"], "CreateOptions");
    assert_eq!(received[1].body["request"]["object"]["data"]["added"], "yes");

    // A deletion has no object that a patch could change.
    let reply = admin.delete(&format!("{CONFIG_MAPS}/a")).await;
    assert_eq!(
        reply.message(),
        "Internal error occurred: admission webhook \"hook.example.com\" attempted to modify the object, which is not supported for this operation"
    );
}

/// The token that the kubeconfig has for the webhook's host is sent to this host only.
#[tokio::test]
async fn webhooks_are_sent_the_credentials_of_their_host() {
    let folder = std::env::temp_dir().join(format!("webhooks-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(&folder).unwrap();
    let server = HookServer::start(&["127.0.0.1"], |r| answer(r, json!({"allowed": true}))).await.unwrap();
    let (users, file) = (folder.join("kubeconfig"), folder.join("admission.json"));
    let port = server.address.port();
    let text = format!(
        "users: [{{name: '127.0.0.1:{port}', user: {{token: secret}}}}, {{name: 'a:1', user: {{token: other}}}}]"
    );
    std::fs::write(&users, text).unwrap();
    let kind = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration", "kubeConfigFile": users});
    let plugins = json!([{"name": "ValidatingAdmissionWebhook", "configuration": kind}]);
    let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins});
    std::fs::write(&file, configuration.to_string()).unwrap();
    let store = std::sync::Arc::new(knarr_storage::Embedded::memory(knarr_storage::Options::default()));
    let harness = Harness::on(store, |config| config.admission.control_config_file = Some(file)).await;
    let admin = harness.admin();
    register(&admin, "ValidatingWebhook", json!([webhook(&server, "/validate", json!({}))])).await;
    register(&admin, "MutatingWebhook", json!([webhook(&server, "/mutate", json!({}))])).await;
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let received = server.received();
    let sent: Vec<_> =
        received.iter().map(|r| (r.path.split('?').next(), r.authorization.as_str())).collect();
    assert_eq!(sent, [(Some("/mutate"), ""), (Some("/validate"), "Bearer secret")]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn deletions_and_generated_names_are_shown() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let server = HookServer::start(&["127.0.0.1"], |r| answer(r, json!({"allowed": true}))).await.unwrap();
    register(&admin, "ValidatingWebhook", json!([webhook(&server, "/", json!({}))])).await;
    register(&admin, "MutatingWebhook", json!([webhook(&server, "/mutate", json!({}))])).await;
    let mut generated = config_map("");
    generated["metadata"] = json!({"generateName": "some-"});
    let created = admin.post(CONFIG_MAPS, &generated).await.expect(201);
    let name = created["metadata"]["name"].as_str().unwrap();
    admin.delete(&format!("{CONFIG_MAPS}/{name}")).await.expect(200);
    let all: Vec<Value> = server.received().into_iter().map(|r| r.body["request"].clone()).collect();
    let shown: Vec<_> = all.iter().map(|r| (r["operation"].as_str().unwrap(), r["name"].as_str())).collect();
    let (create, delete) = ("CREATE", "DELETE");
    assert_eq!(shown, [(create, None), (create, Some(name)), (delete, Some(name)), (delete, Some(name))]);
    assert_eq!(all[3]["object"], Value::Null);
    assert_eq!(all[3]["oldObject"]["metadata"]["name"], name);
    assert_eq!(all[3]["options"]["kind"], "DeleteOptions");
}

#[tokio::test]
async fn failures_follow_the_policy() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let server = HookServer::start(&["127.0.0.1"], |_| Reply::Raw(500, b"down".to_vec())).await.unwrap();
    let open = webhook(&server, "/open", json!({"failurePolicy": "Ignore"}));
    register(&admin, "MutatingWebhook", json!([open])).await;
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let closed = webhook(&server, "/closed", json!({}));
    register(&admin, "ValidatingWebhook", json!([closed])).await;
    let reply = admin.post(CONFIG_MAPS, &config_map("b")).await;
    assert_eq!(reply.code, 500);
    assert_eq!(
        reply.message(),
        "Internal error occurred: failed calling webhook \"hook.example.com\": failed to call webhook: an error on the server (\"down\") has prevented the request from succeeding"
    );
    let metrics = admin.get("/metrics").await.body;
    let metrics = metrics.as_str().unwrap();
    for line in [
        "apiserver_admission_webhook_fail_open_count{name=\"hook.example.com\",type=\"admit\"} 2",
        "apiserver_admission_webhook_rejection_count{error_type=\"calling_webhook_error\",name=\"hook.example.com\",operation=\"CREATE\",rejection_code=\"500\",type=\"validating\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[tokio::test]
async fn only_what_is_selected_is_shown() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let server = HookServer::start(&["127.0.0.1"], |r| answer(r, json!({"allowed": true}))).await.unwrap();
    let labelled = json!({"matchLabels": {"hook": "yes"}});
    register(
        &admin,
        "ValidatingWebhook",
        json!([
            webhook(&server, "/object", json!({"name": "o.example.com", "objectSelector": labelled})),
            webhook(&server, "/namespace", json!({"name": "n.example.com", "namespaceSelector": labelled})),
        ]),
    )
    .await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": {"hook": "yes"}}});
    admin.post("/api/v1/namespaces", &namespace).await.expect(201);
    let mut labelled = config_map("l");
    labelled["metadata"]["labels"] = json!({"hook": "yes"});
    for (uri, object) in [
        (CONFIG_MAPS, &config_map("a")),
        (CONFIG_MAPS, &labelled),
        ("/api/v1/namespaces/n/configmaps", &config_map("b")),
    ] {
        admin.post(uri, object).await.expect(201);
    }
    let shown: Vec<String> = server
        .received()
        .iter()
        .map(|r| format!("{} {}", r.path, r.body["request"]["name"].as_str().unwrap()))
        .collect();
    assert_eq!(shown, ["/object?timeout=10s l", "/namespace?timeout=10s b"]);
}

#[tokio::test]
async fn dry_runs_need_webhooks_without_side_effects() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let server = HookServer::start(&["127.0.0.1"], |r| answer(r, json!({"allowed": true}))).await.unwrap();
    let dry = format!("{CONFIG_MAPS}?dryRun=All");
    register(&admin, "ValidatingWebhook", json!([webhook(&server, "/none", json!({}))])).await;
    admin.post(&dry, &config_map("a")).await.expect(201);
    assert_eq!(server.received()[0].body["request"]["dryRun"], true);
    admin.get(&format!("{CONFIG_MAPS}/a")).await.expect(404);
    let some = webhook(&server, "/some", json!({"sideEffects": "NoneOnDryRun"}));
    register(&admin, "MutatingWebhook", json!([some])).await;
    admin.post(&dry, &config_map("a")).await.expect(201);
    assert_eq!(server.received().len(), 3);
}

#[tokio::test]
async fn who_asks_for_it_is_called_again() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let calls = AtomicUsize::new(0);
    let server = HookServer::start(&["127.0.0.1"], move |r| match r.path.split('?').next() {
        Some("/first") => {
            let round = calls.fetch_add(1, Ordering::SeqCst);
            patch(r, json!([{"op": "add", "path": format!("/data/round{round}"), "value": "first"}]))
        }
        _ => patch(r, json!([{"op": "add", "path": "/data/second", "value": "second"}])),
    });
    let server = server.await.unwrap();
    let first = json!({"name": "a.example.com", "reinvocationPolicy": "IfNeeded"});
    let second = json!({"name": "b.example.com"});
    register(
        &admin,
        "MutatingWebhook",
        json!([webhook(&server, "/first", first), webhook(&server, "/second", second)]),
    )
    .await;
    let created = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let data = json!({"k": "v", "round0": "first", "second": "second", "round1": "first"});
    assert_eq!(created["data"], data);
    let paths: Vec<String> = server.received().into_iter().map(|r| r.path).collect();
    assert_eq!(paths, ["/first?timeout=10s", "/second?timeout=10s", "/first?timeout=10s"]);
}

#[tokio::test]
async fn webhooks_see_the_version_that_they_know() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let server = HookServer::start(&["127.0.0.1"], |r| answer(r, json!({"allowed": true}))).await.unwrap();
    let rules = json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"]}]);
    register(
        &admin,
        "ValidatingWebhook",
        json!([
            webhook(&server, "/equivalent", json!({"name": "e.example.com", "rules": rules})),
            webhook(
                &server,
                "/exact",
                json!({"name": "x.example.com", "rules": rules, "matchPolicy": "Exact"})
            ),
        ]),
    )
    .await;
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "a", "reason": "r", "type": "Normal",
        "reportingController": "c.example.com/c", "reportingInstance": "i",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}});
    admin.post("/apis/events.k8s.io/v1/namespaces/default/events", &event).await.expect(201);
    let received = server.received();
    assert_eq!(received.len(), 1, "{received:?}");
    let request = &received[0].body["request"];
    assert_eq!(received[0].path, "/equivalent?timeout=10s");
    assert_eq!(request["resource"]["group"], "");
    assert_eq!(request["requestResource"]["group"], "events.k8s.io");
    assert_eq!(request["object"]["involvedObject"]["name"], "p");
}

#[tokio::test]
async fn subresources_and_connects_are_shown() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let server = HookServer::start(&["127.0.0.1"], |r| {
        answer(r, json!({"allowed": false, "status": {"message": "no"}}))
    });
    let server = server.await.unwrap();
    crate::harness::default_account(&admin).await;
    admin.post(crate::harness::PODS, &crate::harness::pod("p")).await.expect(201);
    let rules = json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"],
        "resources": ["pods/*", "serviceaccounts/token"]}]);
    register(&admin, "ValidatingWebhook", json!([webhook(&server, "/", json!({"rules": rules}))])).await;
    let pod = format!("{}/p", crate::harness::PODS);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let account = "/api/v1/namespaces/default/serviceaccounts/default/token";
    for (uri, body) in [
        (format!("{pod}/binding"), &binding),
        (format!("{pod}/eviction"), &eviction),
        (account.to_owned(), &token),
        (format!("{pod}/proxy/x?y=z"), &json!({})),
    ] {
        let reply = admin.post(&uri, body).await;
        assert_eq!(
            (reply.code, reply.message()),
            (400, "admission webhook \"hook.example.com\" denied the request: no"),
            "{uri}"
        );
    }
    let shown: Vec<String> = server
        .received()
        .iter()
        .map(|r| {
            let request = &r.body["request"];
            let text = |v: &Value| v.as_str().unwrap_or("").to_owned();
            format!(
                "{} {} {}",
                text(&request["operation"]),
                text(&request["subResource"]),
                text(&request["object"]["kind"])
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "CREATE binding Binding",
            "CREATE eviction Eviction",
            "CREATE token TokenRequest",
            "CONNECT proxy PodProxyOptions"
        ]
    );
}

/// Reviews are answered and not stored: a webhook that is down must not prevent authentication.
#[tokio::test]
async fn reviews_are_shown_to_no_webhook() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let server = HookServer::start(&["127.0.0.1"], |_| Reply::Raw(500, b"down".to_vec())).await.unwrap();
    let everything =
        json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
    for kind in ["MutatingWebhook", "ValidatingWebhook"] {
        register(&admin, kind, json!([webhook(&server, "/all", json!({"rules": everything}))])).await;
    }
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(500);
    let shown = |group: &str| {
        let group_of = |r: &Received| r.body["request"]["resource"]["group"] == group;
        server.received().iter().any(group_of)
    };
    assert!(shown(""), "config maps are");

    let attributes = json!({"verb": "get", "resource": "pods", "namespace": "default"});
    let access = json!({"user": "ann", "resourceAttributes": attributes});
    let reviews = [
        ("authentication.k8s.io", "", "SelfSubjectReview", json!({})),
        ("authentication.k8s.io", "", "TokenReview", json!({"token": "t"})),
        ("authorization.k8s.io", "", "SubjectAccessReview", access.clone()),
        ("authorization.k8s.io", "namespaces/default/", "LocalSubjectAccessReview", access),
        ("authorization.k8s.io", "", "SelfSubjectAccessReview", json!({"resourceAttributes": attributes})),
        ("authorization.k8s.io", "", "SelfSubjectRulesReview", json!({"namespace": "default"})),
    ];
    let mut rules = Vec::new();
    for (group, namespace, kind, spec) in reviews {
        let plural = format!("{}s", kind.to_lowercase());
        let review = json!({"apiVersion": format!("{group}/v1"), "kind": kind, "spec": spec});
        let reply = admin.post(&format!("/apis/{group}/v1/{namespace}{plural}"), &review).await;
        assert_eq!(reply.code, 201, "{kind}: {}", reply.message());
        rules.push(
            json!({"operations": ["*"], "apiGroups": [group], "apiVersions": ["v1"], "resources": [plural]}),
        );
    }
    assert!(!shown("authentication.k8s.io") && !shown("authorization.k8s.io"));

    // A rule that names reviews causes a warning.
    for kind in ["MutatingWebhook", "ValidatingWebhook"] {
        let mut webhook = webhook(&server, "/reviews", json!({"rules": rules}));
        webhook["failurePolicy"] = "Ignore".into();
        let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}Configuration"),
            "metadata": {"name": "reviews"}, "webhooks": [webhook]});
        let uri = format!("{GROUP}/{}configurations", kind.to_lowercase());
        let warnings = admin.post(&uri, &configuration).await.warnings;
        assert_eq!(warnings.len(), 6, "{warnings:?}");
        assert_eq!(
            warnings[1],
            "299 - \"webhooks[0].rules[1]: tokenreviews.authentication.k8s.io is excluded from admission webhooks; \
             this rule will have no effect\""
        );
    }
}
