//! The protobuf format: bodies, responses, lists and watches.

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::BodyExt;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::schema::protobuf::{self, MEDIA_TYPE};
use knarr_apimachinery::schema::{Struct, for_kind};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, PODS, User, config_map, default_account, pod};
use crate::tls;

const TABLE: &str = "as=Table;v=v1;g=meta.k8s.io";

fn schema(group: &str, version: &str, kind: &str) -> &'static Struct {
    for_kind(&GroupVersionKind::new(group, version, kind)).unwrap()
}

/// Decodes a protobuf response.
fn read(body: &[u8]) -> Value {
    let unknown = protobuf::open(body).unwrap();
    let gvk = GroupVersionKind::from_api_version(&unknown.api_version, &unknown.kind);
    let mut value = protobuf::decode(unknown.raw, for_kind(&gvk).unwrap()).unwrap();
    value["apiVersion"] = unknown.api_version.into();
    value["kind"] = unknown.kind.into();
    value
}

fn content_type(headers: &HeaderMap) -> &str {
    headers.get("content-type").unwrap().to_str().unwrap()
}

/// Sends a protobuf body and decodes the protobuf response.
async fn ask(user: &User, method: Method, uri: &str, body: Option<&Value>) -> Value {
    let bytes = body.map(|b| protobuf::encode_object(b).unwrap()).unwrap_or_default();
    let request = http::Request::builder().method(method).uri(uri).header("accept", MEDIA_TYPE);
    let request = request.header("content-type", MEDIA_TYPE).body(Bytes::from(bytes)).unwrap();
    let response = user.0.send(request).await.unwrap();
    assert_eq!(content_type(response.headers()), MEDIA_TYPE);
    read(response.body())
}

#[tokio::test]
async fn objects_live_a_life_in_protobuf() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    let created = ask(&u, Method::POST, PODS, Some(&pod("a"))).await;
    assert_eq!(created["kind"], "Pod");
    assert_eq!(created["spec"]["containers"][0]["imagePullPolicy"], "Always");
    let uri = format!("{PODS}/a");
    // The object is the same in both formats.
    let plain = u.get(&uri).await.expect(200);
    let message = protobuf::encode(&plain, schema("", "v1", "Pod")).unwrap();
    assert_eq!(protobuf::encode(&created, schema("", "v1", "Pod")).unwrap(), message);

    let mut changed = ask(&u, Method::GET, &uri, None).await;
    changed["metadata"]["labels"]["x"] = "y".into();
    let updated = ask(&u, Method::PUT, &uri, Some(&changed)).await;
    assert_eq!(updated["metadata"]["labels"]["x"], "y");

    let list = ask(&u, Method::GET, PODS, None).await;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("PodList"), &json!("v1")));
    assert_eq!(list["items"][0]["metadata"]["labels"], json!({"app": "a", "x": "y"}));
    assert!(list["metadata"]["resourceVersion"].as_str().is_some_and(|v| !v.is_empty()));

    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    ask(&u, Method::DELETE, &uri, Some(&options)).await;
    u.get(&uri).await.expect(404);
}

#[tokio::test]
async fn subresources_take_it_too() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let answer =
        ask(&u, Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", Some(&review)).await;
    assert_eq!(answer["status"]["allowed"], true);
    let wanted = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"expirationSeconds": 600}});
    let uri = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let answer = ask(&u, Method::POST, uri, Some(&wanted)).await;
    assert!(answer["status"]["token"].as_str().is_some_and(|t| t.matches('.').count() == 2));
    let groups = ask(&u, Method::GET, "/apis/apps/v1", None).await;
    assert_eq!(groups["kind"], "APIResourceList");
    assert!(groups["resources"].as_array().is_some_and(|r| r.iter().any(|r| r["name"] == "deployments")));
}

#[tokio::test]
async fn the_client_gets_what_can_be_had() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let uri = format!("{CONFIG_MAPS}/a");
    let meta = "as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let metas = "as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    for (uri, accept, type_, kind) in [
        (uri.as_str(), format!("{MEDIA_TYPE};{TABLE},application/json;{TABLE}"), "application/json", "Table"),
        (&uri, format!("{MEDIA_TYPE};{meta}"), MEDIA_TYPE, "PartialObjectMetadata"),
        (CONFIG_MAPS, format!("{MEDIA_TYPE};{metas}"), MEDIA_TYPE, "PartialObjectMetadataList"),
    ] {
        let request = http::Request::builder().uri(uri).header("accept", accept);
        let response = u.0.send(request.body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!(content_type(response.headers()), type_, "{uri}");
        let value = match type_ {
            MEDIA_TYPE => read(response.body()),
            _ => serde_json::from_slice(response.body()).unwrap(),
        };
        assert_eq!(value["kind"].as_str().unwrap_or(""), kind);
    }
    u.get_as(&uri, &format!("{MEDIA_TYPE};{TABLE}")).await.expect(406);
    u.get_as("/version", MEDIA_TYPE).await.expect(406);
}

#[tokio::test]
async fn what_is_not_stored_has_no_table() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    let group = "/apis/authorization.k8s.io/v1";
    for (uri, kind) in [
        (format!("{group}/selfsubjectaccessreviews"), "SelfSubjectAccessReview"),
        ("/api/v1/namespaces/default/serviceaccounts/default/token".to_owned(), "TokenRequest"),
    ] {
        let body = json!({"kind": kind, "spec": {}}).to_string();
        let request = http::Request::builder().method(Method::POST).uri(&uri);
        let request = request.header("accept", format!("application/json;{TABLE}"));
        let request = request.header("content-type", "application/json");
        let error = u.0.send(request.body(body.into()).unwrap()).await.map(drop).unwrap_err();
        assert_eq!(error.status().map(|s| s.code()), Some(406), "{uri}");
    }
    u.get_as("/api/v1/componentstatuses", &format!("application/json;{TABLE}")).await.expect(200);
}

#[tokio::test]
async fn bad_bodies_are_explained() {
    let h = Harness::new().await;
    let u = h.admin();
    let reply = u.raw(Method::POST, CONFIG_MAPS, MEDIA_TYPE, "{}").await;
    assert_eq!(reply.code, 400);
    assert_eq!(
        reply.message(),
        "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a protobuf message, expected prefix [107 56 115 0] ({})"
    );
    let pod = protobuf::encode_object(&pod("a")).unwrap();
    let reply = u.raw(Method::POST, CONFIG_MAPS, MEDIA_TYPE, pod).await;
    assert_eq!(reply.code, 400);
}

/// The frames of a watch, as they arrive.
struct Frames {
    body: hyper::body::Incoming,
    held: Vec<u8>,
}

impl Frames {
    async fn next(&mut self) -> (String, Value) {
        loop {
            if let Some((length, rest)) = self.held.split_first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if let Some(message) = rest.get(..length) {
                    let event = protobuf::decode(message, schema("", "v1", "WatchEvent"));
                    // The inner object is a message in its envelope, not JSON.
                    assert!(event.is_err());
                    let start = message.windows(4).position(|w| w == protobuf::MAGIC).unwrap();
                    let kind = String::from_utf8_lossy(&message[2..2 + usize::from(message[1])]).into_owned();
                    let object = read(&message[start..]);
                    self.held.drain(..4 + length);
                    return (kind, object);
                }
            }
            let frame = self.body.frame().await.unwrap().unwrap();
            self.held.extend_from_slice(&frame.into_data().unwrap());
        }
    }
}

#[tokio::test]
async fn watches_are_frames() {
    let s = tls::serve().await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    let json = config_map("a").to_string();
    let create = tls::get1(CONFIG_MAPS).method(Method::POST).header("content-type", "application/json");
    assert_eq!(s.open(Some(&admin), false, create, &json).await.status(), 201);
    let watch = |accept: &str, query: &str| {
        let uri = format!("{CONFIG_MAPS}?watch=1{query}");
        tls::get1(&uri).header("accept", accept)
    };
    let response = s.open(Some(&admin), false, watch(MEDIA_TYPE, ""), "").await;
    assert_eq!(content_type(response.headers()), "application/vnd.kubernetes.protobuf;stream=watch");
    let mut frames = Frames { body: response.into_body(), held: Vec::new() };
    let (kind, object) = frames.next().await;
    assert_eq!((kind.as_str(), &object["data"]), ("ADDED", &json!({"k": "v"})));
    let delete = tls::get1(&format!("{CONFIG_MAPS}/a")).method(Method::DELETE);
    assert_eq!(s.open(Some(&admin), false, delete, "").await.status(), 200);
    let (kind, object) = frames.next().await;
    assert_eq!((kind.as_str(), &object["metadata"]["name"]), ("DELETED", &json!("a")));

    let accept = format!("{MEDIA_TYPE};as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let response = s.open(Some(&admin), false, watch(&accept, query), "").await;
    let mut frames = Frames { body: response.into_body(), held: Vec::new() };
    let (kind, object) = frames.next().await;
    assert_eq!((kind.as_str(), &object["kind"]), ("BOOKMARK", &json!("PartialObjectMetadata")));
    assert_eq!(object["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
}
