//! Create, get, update, patch, delete.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{
    APPLY, CONFIG_MAPS, Harness, JSON, MERGE, PODS, STRATEGIC, config_map, default_account, pod,
};

#[tokio::test]
async fn an_object_lives() {
    let h = Harness::new().await;
    let u = h.admin();
    let made = u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    assert_eq!(made["kind"], "ConfigMap");
    assert_eq!(made["apiVersion"], "v1");
    assert_eq!(made["metadata"]["namespace"], "default");
    assert!(made["metadata"]["uid"].as_str().unwrap().len() == 36);
    let version: u64 = made["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "test");
    let uri = format!("{CONFIG_MAPS}/a");
    assert_eq!(u.get(&uri).await.expect(200), made);

    let mut changed = made.clone();
    changed["data"]["k"] = "w".into();
    let after = u.put(&uri, &changed).await.expect(200);
    assert_eq!(after["data"]["k"], "w");
    let later: u64 = after["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(later > version);
    let stale = u.put(&uri, &changed).await;
    assert_eq!(stale.code, 409);
    assert_eq!(
        stale.message(),
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    // An unchanged object is not written.
    assert_eq!(
        u.put(&uri, &after).await.expect(200)["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );

    let gone = u.delete(&uri).await.expect(200);
    assert_eq!(gone["status"], "Success");
    assert_eq!(gone["details"]["uid"], made["metadata"]["uid"]);
    let missing = u.get(&uri).await;
    assert_eq!((missing.code, missing.message()), (404, "configmaps \"a\" not found"));
    assert_eq!(u.delete(&uri).await.code, 404);
}

#[tokio::test]
async fn creates_are_checked() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let again = u.post(CONFIG_MAPS, &config_map("a")).await;
    assert_eq!((again.code, again.message()), (409, "configmaps \"a\" already exists"));
    for (body, code, message) in [
        (
            config_map("A"),
            422,
            "ConfigMap \"A\" is invalid: metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain",
        ),
        (
            json!({"metadata": {}}),
            422,
            "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
        ),
        (
            json!({"metadata": {"name": "b", "namespace": "other"}}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "b"}}),
            400,
            "Pod in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion",
        ),
        (
            json!({"kind": "Nope", "apiVersion": "v1"}),
            400,
            "Nope in version \"v1\" cannot be handled as a ConfigMap: no kind \"Nope\" is registered for version \"v1\"",
        ),
        (
            json!({"metadata": {"name": "b"}, "data": {"k": 1}}),
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            json!({"metadata": {"name": "b", "resourceVersion": "5"}}),
            500,
            "resourceVersion should not be set on objects to be created",
        ),
    ] {
        let reply = u.post(CONFIG_MAPS, &body).await;
        assert_eq!(reply.code, code, "{}", reply.body);
        assert!(reply.message().starts_with(message), "{}", reply.message());
    }
    let missing = u.post("/api/v1/namespaces/none/configmaps", &config_map("a")).await;
    assert_eq!((missing.code, missing.message()), (404, "namespaces \"none\" not found"));
    let malformed = u.raw(Method::POST, CONFIG_MAPS, "application/json", "{").await;
    assert_eq!(malformed.code, 400);
    assert!(malformed.message().contains("unexpected end of JSON input"), "{}", malformed.message());
    let unknown = u.raw(Method::POST, CONFIG_MAPS, "text/html", "{}").await;
    assert_eq!(unknown.code, 415);
    let large = u.raw(Method::POST, CONFIG_MAPS, "application/json", vec![b' '; 3 * 1024 * 1024 + 1]).await;
    assert_eq!((large.code, large.message()), (413, "Request entity too large: limit is 3145728"));
}

#[tokio::test]
async fn yaml_goes_in_and_out() {
    let h = Harness::new().await;
    let u = h.admin();
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: of-yaml\ndata:\n  a: 'on'\n";
    u.raw(Method::POST, CONFIG_MAPS, "application/yaml", yaml).await.expect(201);
    let shown = u.get_as(&format!("{CONFIG_MAPS}/of-yaml"), "application/yaml").await.expect(200);
    assert!(shown.as_str().unwrap().contains("kind: ConfigMap"), "{shown}");
}

#[tokio::test]
async fn unknown_fields_are_ignored_warned_about_or_refused() {
    let h = Harness::new().await;
    let u = h.admin();
    let body = json!({"metadata": {"name": "a"}, "spec": {"x": 1}});
    let strict = u.post(&format!("{CONFIG_MAPS}?fieldValidation=Strict"), &body).await;
    assert_eq!(strict.code, 400);
    assert!(
        strict.message().ends_with("strict decoding error: unknown field \"spec\""),
        "{}",
        strict.message()
    );
    let warned = u.post(&format!("{CONFIG_MAPS}?fieldValidation=Warn&dryRun=All"), &body).await;
    assert_eq!(warned.warnings, ["299 - \"unknown field \\\"spec\\\"\""]);
    let ignored = u.post(&format!("{CONFIG_MAPS}?fieldValidation=Ignore"), &body).await;
    assert!(ignored.warnings.is_empty());
    assert_eq!(ignored.expect(201)["spec"], Value::Null);
}

#[tokio::test]
async fn generated_names_and_dry_runs() {
    let h = Harness::new().await;
    let u = h.admin();
    let body = json!({"metadata": {"generateName": "x-"}});
    let a = u.post(CONFIG_MAPS, &body).await.expect(201);
    let b = u.post(CONFIG_MAPS, &body).await.expect(201);
    let name = |v: &Value| v["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(name(&a).starts_with("x-") && name(&a).len() == 7 && name(&a) != name(&b));
    let dry = u.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("dry")).await.expect(201);
    assert!(dry["metadata"]["uid"].is_string());
    assert_eq!(u.get(&format!("{CONFIG_MAPS}/dry")).await.code, 404);
    u.delete(&format!("{CONFIG_MAPS}/{}?dryRun=All", name(&a))).await.expect(200);
    u.get(&format!("{CONFIG_MAPS}/{}", name(&a))).await.expect(200);
    let refused = u.post(&format!("{CONFIG_MAPS}?dryRun=Some"), &config_map("dry")).await;
    assert_eq!(refused.code, 422);
}

#[tokio::test]
async fn updates_name_what_they_mean() {
    let h = Harness::new().await;
    let u = h.admin();
    let made = u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let uri = format!("{CONFIG_MAPS}/a");
    let other = u.put(&uri, &config_map("b")).await;
    assert_eq!(
        (other.code, other.message()),
        (400, "the name of the object (b) does not match the name on the URL (a)")
    );
    let mut foreign = made.clone();
    foreign["metadata"]["uid"] = "x".into();
    assert_eq!(u.put(&uri, &foreign).await.code, 409);
    // Without a resourceVersion the last writer wins; the server's own metadata is kept.
    let mut bare = config_map("a");
    bare["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
    bare["data"]["k"] = "bare".into();
    let after = u.put(&uri, &bare).await.expect(200);
    assert_eq!(after["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
    assert_eq!(after["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(u.put(&format!("{CONFIG_MAPS}/none"), &config_map("none")).await.code, 404);
    // Leases may be created by PUT.
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}});
    u.put("/apis/coordination.k8s.io/v1/namespaces/default/leases/l", &lease).await.expect(201);
}

#[tokio::test]
async fn patches_of_all_kinds() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let uri = format!("{CONFIG_MAPS}/a");
    let merged = u.patch(&uri, MERGE, &json!({"data": {"k": null, "m": "1"}})).await.expect(200);
    assert_eq!(merged["data"], json!({"m": "1"}));
    let json =
        u.patch(&uri, JSON, &json!([{"op": "add", "path": "/data/j", "value": "2"}])).await.expect(200);
    assert_eq!(json["data"], json!({"m": "1", "j": "2"}));
    let failing = u.patch(&uri, JSON, &json!([{"op": "test", "path": "/data/j", "value": "3"}])).await;
    assert_eq!(failing.code, 422);
    let strategic = u.patch(&uri, STRATEGIC, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(strategic["metadata"]["labels"]["a"], "b");
    let stale = u.patch(&uri, MERGE, &json!({"metadata": {"resourceVersion": "1"}})).await;
    assert_eq!(stale.code, 409);
    let unknown = u.patch(&uri, "x-patch", &json!({})).await;
    assert_eq!(unknown.code, 415);
    assert_eq!(u.patch(&format!("{CONFIG_MAPS}/none"), MERGE, &json!({})).await.code, 404);
}

#[tokio::test]
async fn applies_merge_own_and_conflict() {
    let h = Harness::new().await;
    let u = h.admin();
    let uri = |manager: &str| format!("{CONFIG_MAPS}/a?fieldManager={manager}");
    let applied = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value}});
    u.patch(&uri("one"), APPLY, &applied("1")).await.expect(201);
    u.patch(&uri("one"), APPLY, &applied("2")).await.expect(200);
    let conflict = u.patch(&uri("two"), APPLY, &applied("3")).await;
    assert_eq!(conflict.code, 409);
    assert_eq!(conflict.message(), "Apply failed with 1 conflict: conflict with \"one\": .data.k");
    let forced = u.patch(&format!("{}&force=true", uri("two")), APPLY, &applied("3")).await.expect(200);
    assert_eq!(forced["data"]["k"], "3");
    let bare = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let without = u.patch(&uri("two"), APPLY, &bare).await.expect(200);
    assert_eq!(without.get("data"), None);
    let nobody = u.patch(&format!("{CONFIG_MAPS}/a"), APPLY, &applied("1")).await;
    assert_eq!(nobody.code, 422);
    assert!(nobody.message().contains("fieldManager: Required value: is required for apply patch"));
}

#[tokio::test]
async fn pods_end_gracefully() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    u.post(PODS, &pod("p")).await.expect(201);
    let binding = json!({"target": {"kind": "Node", "name": "n"}, "metadata": {"name": "p"}});
    u.post(&format!("{PODS}/p/binding"), &binding).await.expect(201);
    let uri = format!("{PODS}/p");
    let ending = u.delete(&uri).await.expect(200);
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(ending["metadata"]["deletionTimestamp"].is_string());
    // A grace period longer than the running one changes nothing; a shorter one does.
    let same = u.delete_with(&uri, &json!({"gracePeriodSeconds": 60})).await.expect(200);
    assert_eq!(same["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = u.delete_with(&uri, &json!({"gracePeriodSeconds": 5})).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    u.delete_with(&uri, &json!({"gracePeriodSeconds": 0})).await.expect(200);
    assert_eq!(u.get(&uri).await.code, 404);
}

#[tokio::test]
async fn finalizers_hold_objects_back() {
    let h = Harness::new().await;
    let u = h.admin();
    let mut body = config_map("a");
    body["metadata"]["finalizers"] = json!(["example.com/hold"]);
    u.post(CONFIG_MAPS, &body).await.expect(201);
    let uri = format!("{CONFIG_MAPS}/a");
    let marked = u.delete_with(&uri, &json!({"propagationPolicy": "Foreground"})).await.expect(200);
    assert_eq!(marked["metadata"]["finalizers"], json!(["example.com/hold", "foregroundDeletion"]));
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    let more =
        json!({"metadata": {"finalizers": ["example.com/hold", "foregroundDeletion", "example.com/new"]}});
    assert_eq!(u.patch(&uri, MERGE, &more).await.code, 422);
    u.patch(&uri, MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    assert_eq!(u.get(&uri).await.code, 404);
    let wrong = json!({"preconditions": {"uid": "x"}});
    u.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    assert_eq!(u.delete_with(&format!("{CONFIG_MAPS}/b"), &wrong).await.code, 409);
    // The query has the same effect as a body; an invalid name is 400, not 404.
    for (uri, code, message) in [
        ("b?uid=x", 409, "the UID in the precondition (x) does not match"),
        ("b?resourceVersion=0", 409, "the ResourceVersion in the precondition (0) does not match"),
        ("%2e%2e", 400, "Name parameter invalid: \"..\": may not be '..'"),
        ("a%25", 400, "Name parameter invalid: \"a%\": may not contain '%'"),
    ] {
        let refused = u.delete(&format!("{CONFIG_MAPS}/{uri}")).await;
        assert!(refused.code == code && refused.message().contains(message), "{uri}: {}", refused.body);
    }
    assert_eq!(u.get(&format!("{CONFIG_MAPS}/%2e")).await.code, 400);
    let orphaned =
        u.delete_with(&format!("{CONFIG_MAPS}/b"), &json!({"propagationPolicy": "Orphan"})).await.expect(200);
    assert_eq!(orphaned["metadata"]["finalizers"], json!(["orphan"]));
}

#[tokio::test]
async fn namespaces_end_when_they_are_empty() {
    let h = Harness::new().await;
    let u = h.admin();
    let ns = u.post("/api/v1/namespaces", &json!({"metadata": {"name": "x"}})).await.expect(201);
    assert_eq!(ns["status"]["phase"], "Active");
    assert_eq!(ns["metadata"]["labels"]["kubernetes.io/metadata.name"], "x");
    let marked = u.delete("/api/v1/namespaces/x").await.expect(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    let refused = u.post("/api/v1/namespaces/x/configmaps", &config_map("a")).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message(),
        "configmaps \"a\" is forbidden: unable to create new content in namespace x because it is being terminated"
    );
    let mut finalized = marked.clone();
    finalized["spec"]["finalizers"] = json!([]);
    u.put("/api/v1/namespaces/x/finalize", &finalized).await.expect(200);
    assert_eq!(u.get("/api/v1/namespaces/x").await.code, 404);
    let immortal = u.delete("/api/v1/namespaces/default").await;
    assert_eq!(immortal.code, 403);
    assert_eq!(immortal.message(), "namespaces \"default\" is forbidden: this namespace may not be deleted");
}

#[tokio::test]
async fn writers_at_the_same_time_lose_nothing() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let tasks: Vec<_> = (0..16)
        .map(|i| {
            let u = u.clone();
            tokio::spawn(async move {
                let key = format!("w{i}");
                u.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &json!({"data": {key: "1"}})).await.expect(200)
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let after = u.get(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    assert_eq!(after["data"].as_object().unwrap().len(), 17);
}

#[tokio::test]
async fn paths_that_lead_nowhere() {
    let h = Harness::new().await;
    let u = h.admin();
    for (uri, code, message) in [
        ("/api/v1/namespaces/default/nothings", 404, "the server could not find the requested resource"),
        (
            "/api/v1/namespaces/default/pods/p/nothing",
            404,
            "the server could not find the requested resource",
        ),
        ("/api/v1/namespaces/default/nodes", 404, "the server could not find the requested resource"),
    ] {
        let reply = u.get(uri).await;
        assert_eq!((reply.code, reply.message()), (code, message), "{uri}");
    }
    for uri in ["/nothing", "/apis/none.example.com/v1/things", "/apis/none.example.com"] {
        let reply = u.get(uri).await;
        assert_eq!((reply.code, reply.message()), (404, "404 page not found"), "{uri}");
    }
    let method = u.put(CONFIG_MAPS, &config_map("a")).await;
    assert_eq!(method.code, 405, "{}", method.body);
    let accept = u.get_as(CONFIG_MAPS, "application/xml").await;
    assert_eq!(accept.code, 406);
}
