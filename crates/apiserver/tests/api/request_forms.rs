//! No form of a request acts on more than the request was authorized for.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Harness, Reply, User, config_map};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// Grants jane these rules in the default namespace.
async fn grant(admin: &User, rules: Value) {
    let role = json!({"metadata": {"name": "granted"}, "rules": rules});
    admin.post(&format!("{RBAC}/namespaces/default/roles"), &role).await.expect(201);
    let group = "rbac.authorization.k8s.io";
    let binding = json!({"metadata": {"name": "granted"}, "roleRef": {"apiGroup": group, "kind": "Role", "name": "granted"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "jane"}]});
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    // A list is answered once the caches contain every earlier write, and the authorizer reads the caches.
    admin.get(&format!("{RBAC}/rolebindings")).await.expect(200);
}

/// Starts a server where jane may read the secret `allowed`, but not `hidden`.
async fn with_one_secret() -> (Harness, User) {
    let h = Harness::new().await;
    let admin = h.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "elsewhere"}})).await.expect(201);
    for (uri, name) in
        [(SECRETS, "allowed"), (SECRETS, "hidden"), ("/api/v1/namespaces/elsewhere/secrets", "allowed")]
    {
        let secret = json!({"metadata": {"name": name, "annotations": {"at": format!("{uri}/{name}")}}});
        admin.post(uri, &secret).await.expect(201);
    }
    let verbs = ["get", "list", "watch", "deletecollection"];
    grant(
        &admin,
        json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["allowed"], "verbs": verbs}]),
    )
    .await;
    let jane = h.user("jane", &[]);
    (h, jane)
}

/// Returns the code and message of a refusal; of a success, which of the secrets it contains.
fn shown(reply: &Reply) -> String {
    if reply.code != 200 {
        return format!("{} {}", reply.code, reply.message());
    }
    let text = reply.body.to_string();
    let places = [
        ("default/secrets/allowed", "allowed"),
        ("default/secrets/hidden", "hidden"),
        ("elsewhere/secrets/allowed", "elsewhere"),
    ];
    let found: Vec<&str> = places.iter().filter(|(at, _)| text.contains(at)).map(|(_, name)| *name).collect();
    found.join(" ")
}

#[tokio::test]
async fn a_name_restricts_what_is_read() {
    let (_h, jane) = with_one_secret().await;
    let watch = "/api/v1/watch/namespaces/default/secrets";
    let mismatch = "400 fieldSelector metadata.name doesn't match requested name";
    for (uri, expected) in [
        (format!("{SECRETS}/allowed"), "allowed"),
        (format!("{SECRETS}?fieldSelector=metadata.name%3Dallowed"), "allowed"),
        (format!("{SECRETS}?fieldSelector=metadata.name%3D%3Dallowed%2Ctype%3DOpaque"), "allowed"),
        (format!("{SECRETS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dallowed"), "allowed"),
        (format!("{watch}/allowed?timeoutSeconds=1"), "allowed"),
        (format!("{watch}/allowed?timeoutSeconds=1&fieldSelector="), "allowed"),
        (format!("{watch}/allowed?timeoutSeconds=1&fieldSelector=%2C"), "allowed"),
        (format!("{watch}/allowed?timeoutSeconds=1&fieldSelector=metadata.name%3Dallowed"), "allowed"),
        (format!("{watch}/allowed?timeoutSeconds=1&fieldSelector=type%21%3Dx"), mismatch),
        (format!("{watch}/allowed?timeoutSeconds=1&fieldSelector=metadata.name%3Dhidden"), mismatch),
        (format!("{watch}/allowed?timeoutSeconds=1&fieldSelector=metadata.name%21%3Dallowed"), mismatch),
        // If a parameter occurs several times, the first one counts for authorization and for the handler.
        (
            format!("{SECRETS}?fieldSelector=metadata.name%3Dallowed&fieldSelector=metadata.name%3Dhidden"),
            "allowed",
        ),
    ] {
        assert_eq!(shown(&jane.get(&uri).await), expected, "{uri}");
    }
}

#[tokio::test]
async fn what_only_looks_like_one_name_is_forbidden() {
    let (_h, jane) = with_one_secret().await;
    for uri in [
        // An escaped comma is part of the value.
        format!("{SECRETS}?fieldSelector=type%21%3Dx%5C%2Cmetadata.name%3Dallowed"),
        format!("{SECRETS}?fieldSelector=type%21%3Dx%5C%2Cmetadata.name%5C%3Dallowed"),
        format!(
            "{SECRETS}?watch=true&timeoutSeconds=1&fieldSelector=type%21%3Dx%5C%2Cmetadata.name%5C%3Dallowed"
        ),
        format!("{SECRETS}?fieldSelector=metadata.name%21%3Dallowed"),
        format!("{SECRETS}?fieldSelector=&fieldSelector=metadata.name%3Dallowed"),
        "/api/v1/secrets?fieldSelector=metadata.name%3Dallowed".to_owned(),
        "/api/v1/watch/secrets/allowed?timeoutSeconds=1&fieldSelector=metadata.name%3Dallowed".to_owned(),
        "/api/v1/namespaces//secrets/allowed".to_owned(),
        // The deprecated watch paths are authorized by the name in the path only.
        "/api/v1/watch/namespaces/default/secrets?timeoutSeconds=1&fieldSelector=metadata.name%3Dallowed"
            .to_owned(),
    ] {
        let reply = jane.get(&uri).await;
        assert!(shown(&reply).starts_with("403 "), "{uri}: {}", shown(&reply));
    }
    // deletecollection is never authorized as a request for a single name.
    let all = format!("{SECRETS}?fieldSelector=metadata.name%3Dallowed");
    assert_eq!(jane.delete(&all).await.code, 403);
}

#[tokio::test]
async fn the_old_watch_path_of_one_object_needs_its_namespace() {
    let (h, _) = with_one_secret().await;
    let everything = h.admin();
    for uri in ["/api/v1/watch/secrets/allowed?fieldSelector=", "/api/v1/watch/secrets/allowed"] {
        let reply = everything
            .get(&format!("{uri}{}timeoutSeconds=1", if uri.contains('?') { '&' } else { '?' }))
            .await;
        assert_eq!(reply.code, 404, "{uri}: {}", reply.body);
    }
}

#[tokio::test]
async fn the_old_watch_path_of_a_namespace_shows_it() {
    let h = Harness::new().await;
    let reply = h.admin().get("/api/v1/watch/namespaces/default?timeoutSeconds=1").await;
    let text = reply.expect(200).to_string();
    assert!(text.contains("kubernetes.io/metadata.name") && !text.contains("kube-system"), "{text}");
}

#[tokio::test]
async fn cluster_scope_is_not_reached_through_a_namespace() {
    let h = Harness::new().await;
    let admin = h.admin();
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "elsewhere"}})).await.expect(201);
    admin.post("/api/v1/nodes", &json!({"metadata": {"name": "n1"}})).await.expect(201);
    let all = ["*"];
    grant(&admin, json!([{"apiGroups": all, "resources": all, "verbs": all}])).await;
    let jane = h.user("jane", &[]);
    jane.post("/api/v1/namespaces/default/configmaps", &config_map("own")).await.expect(201);
    let below = "/api/v1/namespaces/default";
    for (method, path) in [
        (Method::GET, "namespaces"),
        (Method::GET, "namespaces?watch=1&timeoutSeconds=1"),
        (Method::GET, "namespaces/elsewhere"),
        (Method::DELETE, "namespaces/elsewhere"),
        (Method::PUT, "namespaces/elsewhere/finalize"),
        (Method::PATCH, "namespaces/elsewhere/status"),
        (Method::POST, "namespaces"),
        (Method::GET, "nodes/n1"),
        (Method::GET, "nodes/n1/status"),
        (Method::PATCH, "nodes/n1/status"),
        (Method::GET, "nodes/n1/proxy/pods"),
        (Method::POST, "nodes/n1/proxy/run"),
    ] {
        let body = json!({"metadata": {"name": "elsewhere", "labels": {"changed": "yes"}}}).to_string();
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let reply = jane.raw(method.clone(), &format!("{below}/{path}"), kind, body).await;
        assert_eq!(reply.code, 404, "{method} {path}: {}", reply.body);
    }
    let kept = admin.get("/api/v1/namespaces/elsewhere").await.expect(200);
    assert_eq!(kept["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(admin.get("/api/v1/nodes/n1").await.expect(200)["metadata"]["labels"]["changed"], Value::Null);
}

#[tokio::test]
async fn segments_that_name_nothing_are_not_found() {
    let h = Harness::new().await;
    let admin = h.admin();
    admin.post("/api/v1/namespaces/default/configmaps", &config_map("a")).await.expect(201);
    for uri in [
        "//api/v1/namespaces",
        "/api//v1/namespaces",
        "/api/v1//namespaces",
        "/apis//v1/namespaces/default/configmaps",
        "/api/v1/namespaces//configmaps",
        "/api/v1/namespaces//default",
        "/api/v1/namespaces/default//configmaps",
        "/api/v1/namespaces/default/configmaps//a",
        "/api/v1/namespaces/default/pods//log",
    ] {
        let reply = admin.get(uri).await;
        assert_eq!(reply.code, 404, "{uri}: {}", reply.body);
    }
    // An escaped slash separates segments like any other, also for authorization.
    for uri in [
        "/api/v1/namespaces/default/configmaps/",
        "/api/v1/namespaces/default/%63onfigmaps/a/",
        "/api/v1/namespaces/default%2Fconfigmaps",
        "/api/v1/namespaces/default/configmaps%2Fa",
    ] {
        admin.get(uri).await.expect(200);
    }
}

#[tokio::test]
async fn the_old_watch_paths_only_watch() {
    let (_h, jane) = with_one_secret().await;
    for method in [Method::DELETE, Method::POST, Method::PUT, Method::PATCH] {
        let uri = "/api/v1/watch/namespaces/default/secrets/allowed";
        let reply = jane.raw(method.clone(), uri, "application/json", "{}").await;
        assert_eq!(reply.code, 405, "{method}: {}", reply.body);
    }
}

/// The response is the same for all users, because it is sent before authentication.
#[tokio::test]
async fn what_cannot_be_read_is_refused_before_all_else() {
    let h = Harness::new().await;
    for user in [h.admin(), h.user("nobody", &[])] {
        let unclear = |uri: &str| {
            format!(
                "Internal Server Error: {uri:?}: failed to create RequestInfo: unable to determine kind and \
                 namespace from url, {uri}"
            )
        };
        for (uri, code, text) in [
            ("/api/v1/watch", 500, unclear("/api/v1/watch")),
            ("/apis/apps/v1/proxy/?watch=1", 500, unclear("/apis/apps/v1/proxy/?watch=1")),
            ("/api/v1/pods%", 400, "400 Bad Request".to_owned()),
            ("/metrics%zz", 400, "400 Bad Request".to_owned()),
        ] {
            let reply = user.get(uri).await;
            assert_eq!((reply.code, reply.message()), (code, text.as_str()), "{uri}");
        }
    }
}

/// The timeout parameter of a request without a timeout is not parsed, so the authorizer answers.
#[tokio::test]
async fn what_may_take_long_has_no_limit_of_time() {
    let h = Harness::new().await;
    let nobody = h.user("nobody", &[]);
    for (uri, code) in [
        ("/api/v1/proxy/nodes/n?timeout=soon", 403),
        ("/api/v1/watch/nodes/n?timeout=soon", 403),
        ("/api/v1/nodes/n/proxy/x?timeout=soon", 403),
        ("/api/v1/namespaces/default/pods/p/log?timeout=soon", 403),
        ("/api/v1/nodes/n?timeout=soon", 400),
    ] {
        assert_eq!(nobody.get(uri).await.code, code, "{uri}");
    }
}

/// A parameter that the handler ignores is not authorized either, and vice versa.
#[tokio::test]
async fn parameters_are_read_once() {
    let (_h, jane) = with_one_secret().await;
    let name = "fieldSelector=metadata.name%3Dallowed";
    for (query, expected) in [
        (format!("fieldSelector=%zz&{name}"), "allowed"),
        (format!("fieldSelector=x;y&{name}"), "allowed"),
        (format!("{name}&limit=many"), "403"),
        (format!("{name}&limit="), "403"),
        (format!("{name}&timeoutSeconds=soon"), "403"),
        (format!("{name}&labelSelector=a+in"), "403"),
        (format!("{name};x"), "403"),
    ] {
        let found = shown(&jane.get(&format!("{SECRETS}?{query}")).await);
        assert_eq!(found.split(' ').next(), Some(expected), "{query}: {found}");
    }
}

/// A permission for one path does not cover another path that looks like it.
#[tokio::test]
async fn a_slash_at_the_end_is_part_of_the_path() {
    let h = Harness::new().await;
    let admin = h.admin();
    for (uri, code) in [
        ("/", 200),
        ("//", 404),
        ("/metrics", 200),
        ("/metrics/", 404),
        ("/metrics/slis/", 404),
        ("/healthz/", 404),
        ("/livez/ping", 200),
        ("/livez/ping/", 404),
        ("/openapi/v2/", 404),
        ("/version/", 200),
        ("/api/", 200),
        ("/apis/apps/v1/", 200),
    ] {
        assert_eq!(admin.get(uri).await.code, code, "{uri}");
    }
}
