//! Garbage collection and namespace deletion for resources that another API server serves, through the real server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use knarr_api::kind::ResourceType;
use knarr_apimachinery::clock::Clock;
use knarr_apiserver::{ApiServer, Config, UserInfo};
use knarr_client::clock::SystemClock;
use knarr_client::{Client, Error, Patch, Supervisor};
use knarr_controllers::{ClientOf, Options, Settings};
use knarr_storage::Embedded;
use knarr_testing::{ExtensionServer, FakeApi};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const SHIPS: ResourceType = ResourceType {
    group: "harbour.example.com",
    version: "v1",
    kind: "Ship",
    plural: "ships",
    namespaced: true,
};
const SHIPS_HERE: &str = "/apis/harbour.example.com/v1/namespaces/default/ships";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const NAMESPACES: &str = "/api/v1/namespaces";

struct World {
    admin: Client,
    harbour: ExtensionServer,
    server: ApiServer,
    stop: CancellationToken,
}

fn client(server: &ApiServer, user: &str, groups: &[&str]) -> Client {
    Client::new(server.transport(UserInfo::new(user, groups)), Arc::new(SystemClock), "test")
}

/// Starts an API server with an aggregated one behind it, the garbage collector and the namespace controller.
async fn world() -> World {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let store = Arc::new(Embedded::memory(knarr_storage::Options::default()));
    let mut config = Config::new(store, Arc::clone(&clock), knarr_api::resources::all().to_vec());
    config.service_accounts.key_pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    config.advertise = "10.0.0.1:6443".parse().unwrap();
    let server = ApiServer::new(config).await.unwrap();
    let api = FakeApi::new(Arc::clone(&clock), &[SHIPS]);
    let harbour = ExtensionServer::start(&["harbour.default.svc"], 0, SHIPS, api, None).await.unwrap();
    let admin = client(&server, "admin", &["system:masters"]);
    let stop = CancellationToken::new();
    let world = World { admin, harbour, server, stop };
    world.start_controllers();
    world.register().await;
    world
}

impl World {
    fn start_controllers(&self) {
        let of_server = self.server.clone();
        let client_of: ClientOf = Arc::new(move |name| {
            let user = format!("system:serviceaccount:kube-system:{name}");
            client(&of_server, &user, &["system:serviceaccounts", "system:serviceaccounts:kube-system"])
        });
        let options = Options {
            cluster_cidr: "10.42.0.0/16".into(),
            node_cidr_mask_size: 24,
            service_cidr: None,
            root_ca: String::new(),
            certificate_signer: None,
            token_signer: None,
            settings: Settings::default(),
        };
        let shared = client(&self.server, "system:kube-controller-manager", &[]);
        let chosen = |name: &str| matches!(name, "garbage-collector-controller" | "namespace-controller");
        let stop = self.stop.clone();
        tokio::spawn(async move {
            let supervisor = Supervisor::new(Arc::new(SystemClock));
            knarr_controllers::run_chosen(&chosen, client_of, shared, supervisor, options, stop).await;
        });
    }

    async fn register(&self) {
        use base64::Engine;
        let service = json!({"metadata": {"name": "harbour"},
            "spec": {"type": "ExternalName", "externalName": "localhost"}});
        self.post("/api/v1/namespaces/default/services", &service).await;
        let bundle = base64::engine::general_purpose::STANDARD.encode(&self.harbour.ca_pem);
        let api_service = json!({
            "metadata": {"name": "v1.harbour.example.com"},
            "spec": {"group": "harbour.example.com", "version": "v1", "groupPriorityMinimum": 1000,
                "versionPriority": 15, "caBundle": bundle,
                "service": {"namespace": "default", "name": "harbour", "port": self.harbour.address.port()}},
        });
        self.post(API_SERVICES, &api_service).await;
        self.api_service("Passed").await;
        // Requests are routed a moment after the condition is written.
        self.until(SHIPS_HERE, |found| found.is_some()).await;
    }

    async fn api_service(&self, reason: &str) {
        let uri = format!("{API_SERVICES}/v1.harbour.example.com");
        self.until(&uri, |found| found.is_some_and(|a| a["status"]["conditions"][0]["reason"] == reason))
            .await;
    }

    async fn ask(&self, method: Method, uri: &str, body: &Value) -> Result<Value, Error> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let body = self.admin.call(method, uri.to_owned(), Some("application/json"), body).await?;
        Ok(serde_json::from_slice(&body).unwrap())
    }

    /// Creates an object and returns its uid.
    async fn post(&self, uri: &str, object: &Value) -> String {
        let made = self.ask(Method::POST, uri, object).await.unwrap();
        made["metadata"]["uid"].as_str().unwrap_or("").to_owned()
    }

    /// Creates an object with an owner, and waits until the collector has observed it: it removes a second owner
    /// reference, to an object that never existed. An owner that is deleted before that is deleted at once, as if it
    /// had no dependents.
    async fn post_and_show(&self, uri: &str, mut object: Value) {
        let never = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "never"});
        object["metadata"]["ownerReferences"].as_array_mut().unwrap().push(never);
        self.post(uri, &object).await;
        let uri = format!("{uri}/{}", object["metadata"]["name"].as_str().unwrap());
        self.until(&uri, |found| owners(found) == Some(1)).await;
    }

    async fn delete(&self, uri: &str, policy: &str) {
        self.ask(Method::DELETE, uri, &json!({"propagationPolicy": policy})).await.unwrap();
    }

    /// Returns the object, if it exists.
    async fn find(&self, uri: &str) -> Option<Value> {
        self.ask(Method::GET, uri, &Value::Null).await.ok()
    }

    async fn until(&self, uri: &str, good: impl Fn(Option<&Value>) -> bool) {
        for _ in 0..1500 {
            if good(self.find(uri).await.as_ref()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{uri} is not as wanted: {:?}", self.find(uri).await);
    }

    async fn gone(&self, uri: &str) {
        self.until(uri, |found| found.is_none()).await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
        self.server.stop();
    }
}

/// Returns how many owners an object has; `None` if it does not exist.
fn owners(found: Option<&Value>) -> Option<usize> {
    Some(found?["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len))
}

fn object(name: &str, owner: Option<(&str, &str, &str, &str)>) -> Value {
    let mut object = json!({"metadata": {"name": name}});
    if let Some((api_version, kind, name, uid)) = owner {
        object["metadata"]["ownerReferences"] = json!([{"apiVersion": api_version, "kind": kind, "name": name,
            "uid": uid, "blockOwnerDeletion": true}]);
    }
    object
}

fn ship(name: &str, owner: Option<(&str, &str, &str, &str)>) -> Value {
    let mut ship = object(name, owner);
    ship["apiVersion"] = "harbour.example.com/v1".into();
    ship["kind"] = "Ship".into();
    ship
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_collected_across_servers() {
    let world = world().await;
    let at = |place: &str, name: &str| format!("{place}/{name}");
    // The owner is on the aggregated server, the dependent on this one.
    let uid = world.post(SHIPS_HERE, &ship("flag", None)).await;
    world.post(MAPS, &object("log", Some(("harbour.example.com/v1", "Ship", "flag", &uid)))).await;
    world.delete(&at(SHIPS_HERE, "flag"), "Background").await;
    world.gone(&at(MAPS, "log")).await;
    // The owner is on this server, the dependents on the aggregated one.
    let uid = world.post(MAPS, &object("fleet", None)).await;
    for name in ["one", "two"] {
        world.post(SHIPS_HERE, &ship(name, Some(("v1", "ConfigMap", "fleet", &uid)))).await;
    }
    world.delete(&at(MAPS, "fleet"), "Background").await;
    world.gone(&at(SHIPS_HERE, "one")).await;
    world.gone(&at(SHIPS_HERE, "two")).await;
    // In foreground deletion the owner waits for dependents on the aggregated server.
    let uid = world.post(MAPS, &object("fleet", None)).await;
    let mut held = ship("held", Some(("v1", "ConfigMap", "fleet", &uid)));
    held["metadata"]["finalizers"] = json!(["example.com/anchor"]);
    world.post_and_show(SHIPS_HERE, held).await;
    world.delete(&at(MAPS, "fleet"), "Foreground").await;
    let leaving =
        |found: Option<&Value>| found.is_some_and(|o| !o["metadata"]["deletionTimestamp"].is_null());
    world.until(&at(SHIPS_HERE, "held"), leaving).await;
    assert!(leaving(world.find(&at(MAPS, "fleet")).await.as_ref()));
    let free = Patch::Merge(json!({"metadata": {"finalizers": []}}));
    world.admin.patch_path(at(SHIPS_HERE, "held"), &free).await.unwrap();
    world.gone(&at(MAPS, "fleet")).await;
    assert!(world.find(&at(SHIPS_HERE, "held")).await.is_none());
    // Orphans stay, and lose their owner reference.
    let uid = world.post(MAPS, &object("fleet", None)).await;
    world.post_and_show(SHIPS_HERE, ship("free", Some(("v1", "ConfigMap", "fleet", &uid)))).await;
    world.delete(&at(MAPS, "fleet"), "Orphan").await;
    world.gone(&at(MAPS, "fleet")).await;
    world.until(&at(SHIPS_HERE, "free"), |found| owners(found) == Some(0)).await;

    let seen = world.harbour.seen();
    let by = |user: &str, method: Method, part: &str| {
        seen.iter().any(|s| s.method == method && s.uri.contains(part) && s.header("x-remote-user") == [user])
    };
    assert!(by("system:kube-controller-manager", Method::GET, "/ships?watch=true"));
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    assert!(by(collector, Method::DELETE, "/ships/one"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_with_what_is_elsewhere() {
    let world = world().await;
    world.post(NAMESPACES, &object("bay", None)).await;
    let ships = "/apis/harbour.example.com/v1/namespaces/bay/ships";
    world.post(ships, &ship("knarr", None)).await;
    world.post(SHIPS_HERE, &ship("elsewhere", None)).await;
    world.delete(&format!("{NAMESPACES}/bay"), "Background").await;
    world.gone(&format!("{NAMESPACES}/bay")).await;
    assert!(world.find(&format!("{ships}/knarr")).await.is_none());
    assert!(world.find(&format!("{SHIPS_HERE}/elsewhere")).await.is_some());
    let seen = world.harbour.seen();
    let deleted = seen.iter().find(|s| s.method == Method::DELETE && s.uri.starts_with(ships)).unwrap();
    assert_eq!(deleted.header("x-remote-user"), ["system:serviceaccount:kube-system:namespace-controller"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_waits_for_who_is_away() {
    let mut world = world().await;
    let bay = format!("{NAMESPACES}/bay");
    world.post(NAMESPACES, &object("bay", None)).await;
    world.post("/api/v1/namespaces/bay/configmaps", &object("a", None)).await;
    let port = world.harbour.address.port();
    let api = Arc::clone(&world.harbour.api);
    let gone = std::mem::replace(
        &mut world.harbour,
        ExtensionServer::start(&["harbour.default.svc"], 0, SHIPS, api, None).await.unwrap(),
    );
    assert_eq!(gone.address.port(), port);
    gone.stop().await;
    let touch = Patch::Merge(json!({"metadata": {"annotations": {"touched": "yes"}}}));
    world.admin.patch_path("/api/v1/namespaces/default/services/harbour".into(), &touch).await.unwrap();
    world.api_service("FailedDiscoveryCheck").await;
    world.delete(&bay, "Background").await;
    let condition = |namespace: &Value, type_: &str| {
        let all = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == type_).unwrap_or_default()
    };
    let failing = "NamespaceDeletionDiscoveryFailure";
    world.until(&bay, |n| n.is_some_and(|n| condition(n, failing)["status"] == "True")).await;
    let namespace = world.find(&bay).await.unwrap();
    assert_eq!(condition(&namespace, failing)["reason"], "DiscoveryFailed");
    assert_eq!(
        condition(&namespace, failing)["message"],
        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: \
         harbour.example.com/v1: stale GroupVersion discovery: harbour.example.com/v1"
    );
    // Everything that can be deleted is deleted.
    world.gone("/api/v1/namespaces/bay/configmaps/a").await;
    assert_eq!(condition(&namespace, "NamespaceDeletionContentFailure")["status"], "False");
    // Without the APIService nothing serves the group any more, so it does not block the namespace.
    world.delete(&format!("{API_SERVICES}/v1.harbour.example.com"), "Background").await;
    world.gone(&bay).await;
}
