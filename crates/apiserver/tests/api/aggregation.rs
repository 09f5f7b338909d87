//! Aggregated APIs: registered by an APIService, reached through this server.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use knarr_api::kind::ResourceType;
use knarr_apiserver::RequestHeader;
use knarr_client::clock::SystemClock;
use knarr_testing::{ExtensionServer, FakeApi};
use serde_json::{Value, json};

use crate::harness::{MERGE, User};
use crate::tls::{Authority, Served, get1, serve_with};

const SHIPS: ResourceType = ResourceType {
    group: "harbour.example.com",
    version: "v1",
    kind: "Ship",
    plural: "ships",
    namespaced: true,
};
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.harbour.example.com";
const SHIPS_HERE: &str = "/apis/harbour.example.com/v1/namespaces/default/ships";

struct World {
    served: Served,
    harbour: ExtensionServer,
    front: Authority,
    admin: User,
}

fn name_of_server() -> [&'static str; 1] {
    ["harbour.default.svc"]
}

async fn harbour(port: u16, front: &Authority) -> ExtensionServer {
    let api = FakeApi::new(Arc::new(SystemClock), &[SHIPS]);
    ExtensionServer::start(&name_of_server(), port, SHIPS, api, Some(&front.pem)).await.unwrap()
}

fn api_service(ca_pem: &str, port: u16) -> Value {
    use base64::Engine;
    let bundle = base64::engine::general_purpose::STANDARD.encode(ca_pem);
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1.harbour.example.com"},
        "spec": {"group": "harbour.example.com", "version": "v1", "groupPriorityMinimum": 1000,
            "versionPriority": 15, "caBundle": bundle,
            "service": {"namespace": "default", "name": "harbour", "port": port}},
    })
}

/// Returns a Service with an external name for the server, because a Service cannot have a loopback address.
fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "harbour"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}})
}

const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Starts both servers, and registers the API until it is available.
async fn world() -> World {
    let front = Authority::new();
    let (header, proxy) = (front.pem.clone(), front.sign("front-proxy-client", &[], &[], false));
    let served = serve_with(move |config, _| {
        config.authentication.request_header =
            RequestHeader::usual(header, vec!["front-proxy-client".into()]);
        config.proxy_client = Some(proxy);
    })
    .await;
    let harbour = harbour(0, &front).await;
    let admin = User(served.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    admin.post(SERVICES, &service()).await.expect(201);
    let registration = api_service(&harbour.ca_pem, harbour.address.port());
    admin.post("/apis/apiregistration.k8s.io/v1/apiservices", &registration).await.expect(201);
    let world = World { served, harbour, front, admin };
    world.condition("Passed").await;
    // Routing reads the condition from the cache, a moment after it is written.
    until(&world.admin, SHIPS_HERE, |code, _| code == 200).await;
    world
}

impl World {
    /// Waits until the condition has this reason, and returns the condition.
    async fn condition(&self, reason: &str) -> Value {
        until(&self.admin, API_SERVICE, |_, body| body["status"]["conditions"][0]["reason"] == reason).await
            ["status"]["conditions"][0]
            .clone()
    }

    /// Changes the Service, which triggers a new check of the aggregated server.
    async fn touch(&self) {
        let now =
            json!({"metadata": {"annotations": {"touched": format!("{:?}", std::time::Instant::now())}}});
        self.admin.patch(&format!("{SERVICES}/harbour"), MERGE, &now).await.expect(200);
    }
}

/// Repeats the request until `good` accepts the response.
async fn until(user: &User, uri: &str, good: impl Fn(u16, &Value) -> bool) -> Value {
    for _ in 0..1000 {
        let reply = user.get(uri).await;
        if good(reply.code, &reply.body) {
            return reply.body;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{uri} is not as wanted: {}", user.get(uri).await.body);
}

fn ship(name: &str) -> Value {
    json!({"apiVersion": "harbour.example.com/v1", "kind": "Ship", "metadata": {"name": name}})
}

#[tokio::test]
async fn requests_are_passed_on_with_their_user() {
    let world = world().await;
    let admin = &world.admin;
    let condition = world.condition("Passed").await;
    assert_eq!((&condition["status"], &condition["message"]), (&json!("True"), &json!("all checks passed")));
    let made = admin.post(&format!("{SHIPS_HERE}?fieldManager=me"), &ship("knarr")).await.expect(200);
    assert_eq!(made["metadata"]["namespace"], "default");
    let labels = json!({"metadata": {"labels": {"sail": "square"}}});
    admin.patch(&format!("{SHIPS_HERE}/knarr"), MERGE, &labels).await.expect(200);
    let list = admin.get(SHIPS_HERE).await.expect(200);
    assert_eq!(list["items"][0]["metadata"]["labels"]["sail"], "square");
    let missing = admin.get(&format!("{SHIPS_HERE}/skiff")).await;
    assert_eq!(missing.message(), "ships.harbour.example.com \"skiff\" not found");
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let table = admin.get_as(SHIPS_HERE, table).await.expect(200);
    assert_eq!(table["rows"][0]["cells"][0], "the good ship knarr");
    admin.delete(&format!("{SHIPS_HERE}/knarr")).await.expect(200);

    let seen = world.harbour.seen();
    let post = seen.iter().find(|s| s.method == http::Method::POST).unwrap();
    assert!(post.certified && post.uri.ends_with("/ships?fieldManager=me"), "{}", post.uri);
    assert_eq!(post.header("x-remote-user"), ["admin"]);
    assert_eq!(post.header("x-remote-group"), ["system:masters", "system:authenticated"]);
    assert_eq!(post.header("x-remote-uid"), [""; 0]);
    assert_eq!(post.header("x-forwarded-uri"), [SHIPS_HERE]);
    assert_eq!(post.header("x-forwarded-host"), [format!("localhost:{}", world.harbour.address.port())]);
    assert_eq!(post.header("audit-id").len(), 1);
    let asked = seen.iter().find(|s| s.uri == "/apis/harbour.example.com/v1").unwrap();
    assert_eq!(asked.header("x-remote-user"), ["system:kube-aggregator"]);

    // The same over the network. User headers and credentials of the client are not forwarded.
    let client = world.served.authority.sign("ann", &["system:masters"], &[], false);
    let forged = get1(SHIPS_HERE).header("x-remote-user", "root").header("x-remote-extra-scope", "all");
    let (code, _) = world.served.ask(Some(&client), false, forged, "").await;
    assert_eq!(code, 200);
    let seen = world.harbour.seen();
    let last = seen.last().unwrap();
    assert_eq!(last.header("x-remote-user"), ["ann"]);
    assert_eq!(last.header("x-remote-extra-scope"), [""; 0]);
    // An unauthorized user is refused by this server.
    let bob = world.served.authority.sign("bob", &[], &[], false);
    let (code, refused) = world.served.ask(Some(&bob), false, get1(SHIPS_HERE), "").await;
    assert_eq!(code, 403, "{refused}");
    assert_eq!(world.harbour.seen().len(), seen.len());
}

#[tokio::test]
async fn the_other_server_learns_whom_to_trust() {
    let world = world().await;
    let map = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let data = world.admin.get(map).await.expect(200)["data"].clone();
    assert_eq!(data["requestheader-client-ca-file"], world.front.pem.as_str());
    assert_eq!(data["client-ca-file"], world.served.authority.pem.as_str());
    for (key, value) in [
        ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ] {
        assert_eq!(data[key], value, "{key}");
    }
}

#[tokio::test]
async fn watches_are_passed_on() {
    let world = world().await;
    let client = world.served.authority.sign("ann", &["system:masters"], &[], false);
    let uri = format!("{SHIPS_HERE}?watch=true&resourceVersion=0");
    let mut body = world
        .served
        .open(Some(&client), true, get1(&format!("https://127.0.0.1{uri}")), "")
        .await
        .into_body();
    world.admin.post(SHIPS_HERE, &ship("knarr")).await.expect(200);
    let mut next = async || {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        serde_json::from_slice::<Value>(&frame).unwrap()
    };
    let event = next().await;
    assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("knarr")));
    world.admin.delete(&format!("{SHIPS_HERE}/knarr")).await.expect(200);
    // The object is first marked as being deleted.
    assert_eq!(next().await["type"], "MODIFIED");
    assert_eq!(next().await["type"], "DELETED");
}

#[tokio::test]
async fn documents_are_merged() {
    let world = world().await;
    let admin = &world.admin;
    let groups = admin.get("/apis").await.expect(200);
    let harbour = groups["groups"].as_array().unwrap().iter().find(|g| g["name"] == "harbour.example.com");
    assert_eq!(harbour.unwrap()["preferredVersion"]["groupVersion"], "harbour.example.com/v1");
    let resources = admin.get("/apis/harbour.example.com/v1").await.expect(200);
    assert_eq!(resources["resources"][0]["name"], "ships");
    assert_eq!(freshness(admin).await, ("Current".into(), 1));
    let index = admin.get("/openapi/v3").await.expect(200);
    let url = index["paths"]["apis/harbour.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(url, "/openapi/v3/apis/harbour.example.com/v1?hash=ABC");
    let document = admin.get(url).await.expect(200);
    assert!(document["components"]["schemas"]["com.example.v1.Ship"].is_object(), "{document}");
    let document = admin.get("/openapi/v2").await.expect(200);
    assert!(document["definitions"]["com.example.v1.Ship"].is_object());
    assert!(document["definitions"]["io.k8s.api.core.v1.Pod"].is_object());
    assert!(document["paths"]["/apis/harbour.example.com/v1/namespaces/{namespace}/ships"].is_object());

    admin.delete(API_SERVICE).await.expect(200);
    until(admin, "/apis", |_, body| !body.to_string().contains("harbour")).await;
    until(admin, "/openapi/v3", |_, body| !body.to_string().contains("harbour")).await;
    assert_eq!(admin.get(SHIPS_HERE).await.code, 404);
}

/// Returns the freshness in aggregated discovery, and the number of resources.
async fn freshness(user: &User) -> (String, usize) {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let all = user.get_as("/apis", accept).await.expect(200);
    let group =
        all["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "harbour.example.com");
    let version = &group.unwrap()["versions"][0];
    let count = version["resources"].as_array().map_or(0, Vec::len);
    (version["freshness"].as_str().unwrap().to_owned(), count)
}

#[tokio::test]
async fn who_is_away_is_unavailable_until_it_is_back() {
    let world = world().await;
    world.admin.post(SHIPS_HERE, &ship("knarr")).await.expect(200);
    let World { served, harbour, front, admin } = world;
    let (port, ca_pem) = (harbour.address.port(), harbour.ca_pem.clone());
    harbour.stop().await;
    // Before the next check.
    let reply = admin.get(SHIPS_HERE).await;
    assert_eq!(reply.code, 503);
    let said = reply.body["message"].as_str().unwrap().to_owned();
    assert_eq!(
        said,
        format!("error trying to reach service: dial tcp 127.0.0.1:{port}: connect: connection refused")
    );
    let harbour = crate::aggregation::harbour(port, &front).await;
    let world = World { served, harbour, front, admin };
    world.touch().await;
    // Its certificate is now signed by another CA.
    assert_ne!(world.harbour.ca_pem, ca_pem);
    let condition = world.condition("FailedDiscoveryCheck").await;
    assert_eq!(condition["status"], "False");
    let url = format!("https://localhost:{port}/apis/harbour.example.com/v1");
    assert_eq!(
        condition["message"],
        format!(
            "failing or missing response from {url}: Get \"{url}\": tls: failed to verify certificate: x509: \
             certificate signed by unknown authority"
        )
    );
    let refused = until(&world.admin, SHIPS_HERE, |code, body| {
        code == 503 && !body["message"].as_str().unwrap().contains("trying")
    });
    assert_eq!(refused.await["message"], "service unavailable");
    assert_eq!(freshness(&world.admin).await, ("Stale".into(), 1));
    let metrics = world.admin.get("/metrics").await.body.to_string();
    let name = "{name=\\\"v1.harbour.example.com\\\"";
    assert!(metrics.contains(&format!("aggregator_unavailable_apiservice{name}}} 1")));
    let became =
        format!("aggregator_unavailable_apiservice_total{name},reason=\\\"FailedDiscoveryCheck\\\"}} 1");
    assert!(metrics.contains(&became), "{metrics}");

    let spec = api_service(&world.harbour.ca_pem, port)["spec"].clone();
    world.admin.patch(API_SERVICE, MERGE, &json!({"spec": spec})).await.expect(200);
    world.condition("Passed").await;
    assert_eq!(freshness(&world.admin).await, ("Current".into(), 1));
    until(&world.admin, SHIPS_HERE, |code, body| code == 200 && body["items"] == json!([])).await;

    world.admin.delete(&format!("{SERVICES}/harbour")).await.expect(200);
    let condition = world.condition("ServiceNotFound").await;
    assert_eq!(condition["message"], "service/harbour in \"default\" is not present");
}

#[tokio::test]
async fn who_was_never_seen_is_stale_and_empty() {
    let front = Authority::new();
    let served = serve_with(|_, _| {}).await;
    let admin = User(served.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    admin.post("/apis/apiregistration.k8s.io/v1/apiservices", &api_service(&front.pem, 1)).await.expect(201);
    until(&admin, API_SERVICE, |_, b| b["status"]["conditions"][0]["reason"] == "ServiceNotFound").await;
    assert_eq!(freshness(&admin).await, ("Stale".into(), 0));
    // In-process clients get the same answer.
    let listed = admin.0.list(&SHIPS, None, &knarr_client::ListOptions::default()).await;
    let error = listed.unwrap_err();
    assert_eq!(error.status().map(|s| s.code()), Some(503), "{error}");
}

#[tokio::test]
async fn components_of_the_process_see_the_other_server() {
    use futures_util::StreamExt;
    use knarr_client::{ListOptions, WatchEvent};
    let world = world().await;
    let own = world.served.server.transport(knarr_apiserver::UserInfo::new("gc", &["system:masters"]));
    world.admin.post(SHIPS_HERE, &ship("knarr")).await.expect(200);
    let list = own.list(&SHIPS, Some("default"), &ListOptions::default()).await.unwrap();
    assert_eq!(list.items[0].name(), "knarr");
    let options = ListOptions { resource_version: Some(list.resource_version), ..ListOptions::default() };
    let mut watch = own.watch(&SHIPS, None, &options).await.unwrap();
    world.admin.delete(&format!("{SHIPS_HERE}/knarr")).await.expect(200);
    // The object is first marked as being deleted.
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Modified(_)))));
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Deleted(o))) if o.name() == "knarr"));
    let seen = world.harbour.seen();
    let watched = seen.iter().rfind(|s| s.uri.contains("watch=true")).unwrap();
    assert_eq!(watched.header("x-remote-user"), ["gc"]);
    // The watch ends with this server.
    world.served.server.stop();
    assert!(watch.next().await.is_none());
}
