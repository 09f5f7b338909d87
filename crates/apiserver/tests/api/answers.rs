//! Answers that once differed from upstream's, compared request by request.

use std::sync::Arc;

use http::Method;
use knarr_storage::{Embedded, Options};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, Reply, User, config_map};

const MERGE: &str = "merge-patch+json";
const STRATEGIC: &str = "strategic-merge-patch+json";
const APPLY: &str = "apply-patch+yaml";

fn said(reply: &Reply) -> (u16, &str) {
    (reply.code, reply.message())
}

/// Returns the fields and messages of the causes of a Status.
fn causes(reply: &Reply) -> Vec<(&str, &str)> {
    reply.body["details"]["causes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|c| (c["field"].as_str().unwrap_or(""), c["message"].as_str().unwrap_or("")))
        .collect()
}

async fn with_one() -> (Harness, User) {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    (h, u)
}

#[tokio::test]
async fn all_that_is_wrong_is_said_at_once() {
    let (_h, u) = with_one().await;
    let owner = json!([{}]);
    let body = json!({"metadata": {"name": "-", "ownerReferences": owner}, "webhooks": [{"name": "x"}]});
    let uri = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let reply = u.post(uri, &body).await;
    let causes = causes(&reply);
    for field in ["metadata.name", "metadata.ownerReferences[0].uid", "webhooks[0].clientConfig"] {
        assert!(causes.iter().any(|(f, _)| *f == field), "{field}: {causes:?}");
    }
    assert!(causes.contains(&("metadata.ownerReferences[0].kind", "Required value: must not be empty")));
    // Only some kinds check finalizers without a domain.
    let held = |name: &str| json!({"metadata": {"name": name, "finalizers": ["x"]}});
    assert_eq!(u.post("/apis/coordination.k8s.io/v1/namespaces/default/leases", &held("l")).await.code, 201);
    assert_eq!(u.post(CONFIG_MAPS, &held("c")).await.code, 422);
    // A name that is no path segment is only reported if the object has no other error.
    let reply = u.post(CONFIG_MAPS, &json!({"metadata": {"name": "a/b"}})).await;
    assert_eq!(reply.body["details"]["causes"].as_array().map(Vec::len), Some(1), "{}", reply.body);
}

#[tokio::test]
async fn what_is_missing_gets_its_defaults() {
    let (_h, u) = with_one().await;
    let reply =
        u.post("/apis/apps/v1/namespaces/default/deployments", &json!({"metadata": {"name": "d"}})).await;
    let fields: Vec<&str> = causes(&reply).into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["spec.selector", "spec.template.metadata.labels", "spec.template.spec.containers"]);
    let uri = "/api/v1/namespaces/default/limitranges";
    let named = u.post(uri, &json!({"metadata": {}, "spec": {"limits": []}})).await.expect(201);
    assert_eq!(named["metadata"]["name"].as_str().map(str::len), Some(36));
    // A namespace in the metadata is ignored for a cluster-scoped kind.
    let node = json!({"metadata": {"name": "n", "namespace": "other"}});
    let node = u.post("/api/v1/nodes", &node).await.expect(201);
    assert_eq!(node["metadata"].get("namespace"), None);
}

#[tokio::test]
async fn versions_and_uids_of_writes() {
    let (_h, u) = with_one().await;
    let mut versioned = config_map("b");
    versioned["metadata"]["resourceVersion"] = "1".into();
    let refused = u.post(CONFIG_MAPS, &versioned).await;
    assert_eq!(said(&refused), (500, "resourceVersion should not be set on objects to be created"));
    u.post(&format!("{CONFIG_MAPS}?dryRun=All"), &versioned).await.expect(201);
    let one = format!("{CONFIG_MAPS}/a");
    let other = u.patch(&one, MERGE, &json!({"metadata": {"uid": "x"}})).await;
    assert_eq!(
        said(&other),
        (422, "ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"x\": field is immutable")
    );
    let ending = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let ending = u.patch(&one, MERGE, &ending).await;
    assert_eq!(causes(&ending)[0].0, "metadata.deletionTimestamp");
    let disowned = u.patch(&one, MERGE, &json!({"metadata": {"managedFields": []}})).await.expect(200);
    assert_eq!(disowned["metadata"].get("managedFields"), None);
}

#[tokio::test]
async fn names_are_in_the_body() {
    let (_h, u) = with_one().await;
    let nameless = "the name of the object (b based on URL) was undeterminable: name must be provided";
    let put = u.put(&format!("{CONFIG_MAPS}/b"), &json!({"data": {}})).await;
    assert_eq!(said(&put), (400, nameless));
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let uri = format!("{CONFIG_MAPS}/b?fieldManager=m");
    assert_eq!(said(&u.patch(&uri, APPLY, &applied).await), (400, nameless));
    let uri = format!("{CONFIG_MAPS}/a?fieldManager=m");
    u.patch(&uri, APPLY, &applied).await.expect(200);
}

#[tokio::test]
async fn patches_that_cannot_be_read() {
    let (_h, u) = with_one().await;
    let one = format!("{CONFIG_MAPS}/a");
    for kind in [MERGE, STRATEGIC] {
        let broken = u.raw(Method::PATCH, &one, &format!("application/{kind}"), "{").await;
        assert_eq!(said(&broken), (400, "invalid JSON patch"), "{kind}");
    }
    let strict = format!("{one}?fieldValidation=Strict");
    let unknown = u.patch(&strict, STRATEGIC, &json!({"data": {"k": "w"}, "nope": 1})).await;
    let why = " \"\" is invalid: patch: Invalid value: \"map[data:map[k:w] nope:1]\": strict decoding error: unknown \
               field \"nope\"";
    assert_eq!(said(&unknown), (422, why));
    let wrong = u.patch(&one, MERGE, &json!({"data": {"k": 1}})).await;
    let (field, message) = causes(&wrong)[0];
    assert_eq!(field, "patch");
    assert!(
        message.starts_with("Invalid value: \"{\\\"apiVersion\\\":\\\"v1\\\",\\\"data\\\":{\\\"k\\\":1}"),
        "{message}"
    );
}

#[tokio::test]
async fn deletions_listen_to_body_or_query() {
    let (_h, u) = with_one().await;
    let one = format!("{CONFIG_MAPS}/a");
    let wrong = u.delete_with(&one, &json!({"kind": "ConfigMap", "apiVersion": "v1"})).await;
    assert_eq!(
        said(&wrong),
        (
            400,
            "no kind \"ConfigMap\" is registered for version \"v1\" in scheme \"pkg/runtime/scheme.go:111\""
        )
    );
    let list = u.delete_with(&one, &json!([])).await;
    assert!(list.message().starts_with("couldn't get version/kind; json parse error"), "{}", list.message());
    u.delete_with(&one, &json!({"dryRun": ["All"]})).await.expect(200);
    u.get(&one).await.expect(200);
    // With a body, the query is ignored.
    u.delete_with(&format!("{one}?dryRun=All"), &json!({})).await.expect(200);
    assert_eq!(u.get(&one).await.code, 404);
}

#[tokio::test]
async fn paths_that_are_not_there() {
    let (_h, u) = with_one().await;
    let nothing = "the server could not find the requested resource";
    for uri in [
        "/api/v1/namespaces/default/bindings/x",
        "/api/v1/bindings",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews/x",
        "/apis/authorization.k8s.io/v1/localsubjectaccessreviews",
    ] {
        assert_eq!(said(&u.get(uri).await), (404, nothing), "{uri}");
    }
    // The deprecated watch paths only allow reads.
    let old = u.delete("/api/v1/watch/namespaces/default/configmaps").await;
    assert_eq!(old.code, 405);
    u.get(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    let attach = u.get("/api/v1/namespaces/default/pods/x/attach").await;
    assert_eq!(said(&attach), (404, "pods \"x\" not found"));
    let export = u.get(&format!("{CONFIG_MAPS}/a?export=true")).await;
    assert_eq!(export.code, 400);
    assert_eq!(u.raw(Method::HEAD, "/", "", "").await.code, 200);
    // Only tables support includeObject.
    u.get(&format!("{CONFIG_MAPS}?includeObject=x")).await.expect(200);
    let table = u
        .get_as(&format!("{CONFIG_MAPS}?includeObject=x"), "application/json;as=Table;v=v1;g=meta.k8s.io")
        .await;
    assert_eq!(table.code, 400);
}

#[tokio::test]
async fn statuses_and_reviews() {
    let (_h, u) = with_one().await;
    let none = u.get("/api/v1/componentstatuses?fieldSelector=metadata.name%3Dx").await.expect(200);
    assert_eq!((&none["items"], none["metadata"].get("resourceVersion")), (&json!([]), None));
    assert_eq!(u.get("/api/v1/componentstatuses?fieldSelector=a%3Db").await.code, 400);
    let accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let empty = u.get_as("/api/v1/namespaces/default/secrets?labelSelector=no", accept).await.expect(200);
    assert_eq!(empty["items"], Value::Null);
    let base = "/apis/authorization.k8s.io/v1";
    let wanted = json!({"metadata": {"name": "x"}, "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let named = u.post(&format!("{base}/selfsubjectaccessreviews"), &wanted).await;
    assert_eq!(causes(&named), [("metadata", "Invalid value: {\"name\":\"x\"}: must be empty")]);
    let rules = json!({"spec": {"namespace": "default"}});
    let rules = u.post(&format!("{base}/selfsubjectrulesreviews"), &rules).await.expect(201);
    let everything = rules["status"]["nonResourceRules"].as_array().unwrap().iter();
    assert_eq!(everything.filter(|r| r["nonResourceURLs"] == json!(["*"])).count(), 1);
    let bound = u.post("/api/v1/namespaces/default/bindings", &json!({"metadata": {"name": "p"}})).await;
    assert_eq!(said(&bound), (500, "target.name: Required value"));
}

#[tokio::test]
async fn the_server_shows_its_flags_and_its_state() {
    let flags = vec![("port".to_owned(), "6443".to_owned()), ("bind-address".to_owned(), "::".to_owned())];
    let h = Harness::on(Arc::new(Embedded::memory(Options::default())), |config| config.flags = flags).await;
    let u = h.admin();
    let flags = u.get_as("/flagz", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io").await.expect(200);
    assert_eq!(flags["flags"], json!({"port": "6443", "bind-address": "::"}));
    let state =
        u.get_as("/statusz", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io").await.expect(200);
    assert_eq!(state["kind"], "Statusz");
    assert!(state["paths"].as_array().is_some_and(|p| p.contains(&json!("/livez"))), "{state}");
}

#[tokio::test]
async fn discovery_tells_the_stored_version() {
    let (_h, u) = with_one().await;
    for (uri, name, hash) in [
        ("/api/v1", "pods", "xPOwRZ+Yhw8="),
        ("/apis/apps/v1", "deployments", "8aSe+NMegvE="),
        ("/apis/autoscaling/v1", "horizontalpodautoscalers", "qwQve8ut294="),
        ("/apis/events.k8s.io/v1", "events", "r2yiGXH7wu8="),
    ] {
        let list = u.get(uri).await.expect(200);
        let found = list["resources"].as_array().unwrap().iter().find(|r| r["name"] == name).unwrap();
        assert_eq!(found["storageVersionHash"], hash, "{uri}");
    }
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let core = u.get_as("/api", accept).await.expect(200);
    let resources = core["items"][0]["versions"][0]["resources"].as_array().unwrap();
    let names: Vec<&str> = resources.iter().filter_map(|r| r["resource"].as_str()).collect();
    assert!(names.is_sorted(), "{names:?}");
    assert_eq!(resources[0]["responseKind"], json!({"group": "", "version": "", "kind": "Binding"}));
}
