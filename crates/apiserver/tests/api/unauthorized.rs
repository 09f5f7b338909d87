//! Requests every resource, verb and subresource as a user without permissions: each is answered with 403.

use bytes::Bytes;
use http::Method;
use knarr_api::kind::ResourceType;

use crate::harness::{Harness, User};

/// Reviews about the user itself, which every authenticated user may create.
const OF_EVERYBODY: [&str; 3] = ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"];

/// Returns the method and URI of a verb, given the URIs of the collection and of one object.
fn asked(verb: &str, collection: &str, object: &str) -> (Method, String) {
    match verb {
        "create" => (Method::POST, collection.to_owned()),
        "get" => (Method::GET, object.to_owned()),
        "list" => (Method::GET, collection.to_owned()),
        "watch" => (Method::GET, format!("{collection}?watch=true")),
        "update" => (Method::PUT, object.to_owned()),
        "patch" => (Method::PATCH, object.to_owned()),
        "delete" => (Method::DELETE, object.to_owned()),
        "deletecollection" => (Method::DELETE, collection.to_owned()),
        other => panic!("an unknown verb: {other}"),
    }
}

async fn refused(user: &User, method: &Method, uri: &str, verb: &str, types: &ResourceType, part: &str) {
    let reply = user.raw(method.clone(), uri, "application/json", Bytes::from_static(b"{}")).await;
    assert_eq!(reply.code, 403, "{method} {uri}: {}", reply.body);
    let resource = if part.is_empty() { types.plural.to_owned() } else { format!("{}/{part}", types.plural) };
    let said =
        format!("User \"nobody\" cannot {verb} resource \"{resource}\" in API group \"{}\"", types.group);
    assert!(reply.message().contains(&said), "{method} {uri}: {}", reply.message());
    assert_eq!(reply.body["reason"], "Forbidden", "{method} {uri}");
}

#[tokio::test]
async fn nobody_may_do_anything() {
    let harness = Harness::new().await;
    let nobody = harness.user("nobody", &[]);
    let mut asked_for = 0;
    for resource in knarr_api::resources::all() {
        let types = &resource.types;
        let collection = types.path(Some("default"), None);
        let object = types.path(Some("default"), Some("x"));
        for verb in resource.verbs.iter().filter(|_| !OF_EVERYBODY.contains(&types.plural)) {
            let (method, uri) = asked(verb, &collection, &object);
            refused(&nobody, &method, &uri, verb, types, "").await;
            if types.namespaced && matches!(*verb, "list" | "watch") {
                let (method, uri) = asked(verb, &types.path(None, None), "");
                refused(&nobody, &method, &uri, verb, types, "").await;
            }
            asked_for += 1;
        }
        for part in resource.subresources {
            let uri = format!("{object}/{}", part.name);
            for verb in part.verbs {
                let (method, uri) = asked(verb, &uri, &uri);
                refused(&nobody, &method, &uri, verb, types, part.name).await;
                asked_for += 1;
            }
        }
    }
    assert!(asked_for > 300, "only {asked_for} questions");
}

/// The same for non-resource paths, except discovery, which every authenticated user may read.
#[tokio::test]
async fn nobody_may_see_the_rest() {
    let harness = Harness::new().await;
    let nobody = harness.user("nobody", &[]);
    let paths = [
        "/",
        "/metrics",
        "/metrics/slis",
        "/logs",
        "/statusz",
        "/flagz",
        "/debug/pprof",
        "/nope",
        "/debug/api_priority_and_fairness/dump_queues",
        "/openid/v1/jwks",
        "/.well-known/openid-configuration",
        "/apis/nobodys.example.com/v1/things",
        "/api/v2/pods",
    ];
    for path in paths {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let reply = nobody.raw(method.clone(), path, "application/json", Bytes::from_static(b"{}")).await;
            assert_eq!(reply.code, 403, "{method} {path}: {}", reply.body);
            assert_eq!(reply.body["reason"], "Forbidden", "{method} {path}");
        }
    }
}

#[tokio::test]
async fn what_everybody_may_ask_is_about_themselves() {
    let harness = Harness::new().await;
    let nobody = harness.user("nobody", &[]);
    for resource in knarr_api::resources::all().iter().filter(|r| OF_EVERYBODY.contains(&r.types.plural)) {
        let types = &resource.types;
        assert_eq!(resource.verbs, ["create"], "{types:?}");
        let body = serde_json::json!({"apiVersion": types.api_version(), "kind": types.kind,
            "spec": {"namespace": "default", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
        let uri = types.path(Some("default"), None);
        let reply = nobody.post(&format!("{uri}?fieldValidation=Ignore"), &body).await;
        assert_eq!(reply.code, 201, "{uri}: {}", reply.body);
    }
}
