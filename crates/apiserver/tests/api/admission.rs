//! Built-in admission plugins, tested by requests.

use std::sync::Arc;

use knarr_apiserver::{ApiServer, UserInfo};
use knarr_storage::{Embedded, Options, Store};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, MERGE, PODS, User, config, config_map, default_account, pod};

/// Creates an object and waits until the server's caches contain it.
async fn put_in_cache(user: &User, uri: &str, object: &Value) -> Value {
    let created = user.post(uri, object).await.expect(201);
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let fresh = format!("{uri}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    user.get(&fresh).await.expect(200);
    created
}

/// Starts a server with these plugins in addition to the default ones.
async fn with_plugins(names: &[&str]) -> Harness {
    let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let mut config = config(Arc::clone(&store));
    config.admission.enabled = names.iter().map(|n| (*n).to_owned()).collect();
    Harness { server: ApiServer::new(config).await.unwrap(), store }
}

fn asking(name: &str, requests: Value) -> Value {
    let mut pod = pod(name);
    pod["spec"]["containers"][0]["resources"] = json!({"requests": requests});
    pod
}

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

async fn quota(user: &User, hard: Value, spec: Value) {
    let mut quota =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": spec});
    quota["spec"]["hard"] = hard.clone();
    put_in_cache(user, QUOTAS, &quota).await;
    let used: serde_json::Map<String, Value> =
        hard.as_object().unwrap().keys().map(|k| (k.clone(), "0".into())).collect();
    let status = json!({"status": {"hard": hard, "used": used}});
    let patched = user.patch(&format!("{QUOTAS}/q/status"), MERGE, &status).await.expect(200);
    let version = patched["metadata"]["resourceVersion"].as_str().unwrap();
    user.get(&format!("{QUOTAS}?resourceVersion={version}")).await.expect(200);
}

async fn used(user: &User) -> Value {
    user.get(&format!("{QUOTAS}/q")).await.expect(200)["status"]["used"].clone()
}

#[tokio::test]
async fn quotas_are_charged_and_enforced() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    default_account(&admin).await;
    quota(&admin, json!({"requests.cpu": "1", "pods": "3", "count/configmaps": "1"}), json!({})).await;
    admin.post(PODS, &asking("a", json!({"cpu": "600m"}))).await.expect(201);
    assert_eq!(used(&admin).await, json!({"requests.cpu": "600m", "pods": "1", "count/configmaps": "0"}));
    let reply = admin.post(PODS, &asking("b", json!({"cpu": "600m"}))).await;
    assert_eq!(reply.code, 403);
    assert_eq!(
        reply.message(),
        "pods \"b\" is forbidden: exceeded quota: q, requested: requests.cpu=600m, used: requests.cpu=600m, limited: requests.cpu=1"
    );
    let reply = admin.post(PODS, &pod("c")).await;
    assert_eq!(reply.message(), "pods \"c\" is forbidden: failed quota: q: must specify requests.cpu for: c");
    // A dry run is refused as well, and charges nothing.
    let dry = format!("{PODS}?dryRun=All");
    admin.post(&dry, &asking("d", json!({"cpu": "100m"}))).await.expect(201);
    admin.post(&dry, &asking("d", json!({"cpu": "500m"}))).await.expect(403);
    assert_eq!(used(&admin).await["requests.cpu"], "600m");
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    admin.post(CONFIG_MAPS, &config_map("b")).await.expect(403);
    assert_eq!(used(&admin).await["count/configmaps"], "1");
}

#[tokio::test]
async fn of_many_at_once_only_as_many_as_there_is_quota_for() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    quota(&admin, json!({"count/configmaps": "3"}), json!({})).await;
    let writes = (0..10).map(|i| {
        let admin = admin.clone();
        async move { admin.post(CONFIG_MAPS, &config_map(&format!("c{i}"))).await.code }
    });
    let codes = futures_util::future::join_all(writes).await;
    assert_eq!(codes.iter().filter(|c| **c == 201).count(), 3, "{codes:?}");
    assert_eq!(codes.iter().filter(|c| **c == 403).count(), 7, "{codes:?}");
    assert_eq!(used(&admin).await["count/configmaps"], "3");
}

#[tokio::test]
async fn limit_ranges_fill_in_and_bound() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    default_account(&admin).await;
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [
        {"type": "Container", "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "1"}}]}});
    put_in_cache(&admin, "/api/v1/namespaces/default/limitranges", &range).await;
    let created = admin.post(PODS, &pod("a")).await.expect(201);
    assert_eq!(
        created["spec"]["containers"][0]["resources"],
        json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}})
    );
    assert_eq!(created["status"]["qosClass"], "Burstable");
    assert_eq!(
        created["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    let mut big = pod("b");
    big["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "2"}});
    let reply = admin.post(PODS, &big).await;
    assert_eq!(
        reply.message(),
        "pods \"b\" is forbidden: maximum cpu usage per Container is 1, but limit is 2"
    );
}

fn namespace(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

#[tokio::test]
async fn pod_security_follows_the_namespaces_labels() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    let labels = json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"});
    put_in_cache(&admin, "/api/v1/namespaces", &namespace("n", labels)).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    admin.post("/api/v1/namespaces/n/serviceaccounts", &account).await.expect(201);
    let pods = "/api/v1/namespaces/n/pods";
    let mut host = pod("a");
    host["spec"]["hostNetwork"] = true.into();
    let reply = admin.post(pods, &host).await;
    assert_eq!(reply.code, 403);
    assert_eq!(
        reply.message(),
        "pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
    let reply = admin.post(pods, &pod("b")).await;
    assert_eq!(reply.code, 201, "{}", reply.body);
    assert!(
        reply.warnings[0].starts_with(
            "299 - \"would violate PodSecurity \\\"restricted:latest\\\": allowPrivilegeEscalation != false"
        ),
        "{:?}",
        reply.warnings
    );
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}}, "spec": host["spec"]}}});
    let reply = admin.post("/apis/apps/v1/namespaces/n/deployments", &deployment).await;
    assert_eq!((reply.code, reply.warnings.len()), (201, 1));
    let version = admin.get(pods).await.expect(200)["metadata"]["resourceVersion"].clone();
    admin.get(&format!("{pods}?resourceVersion={}", version.as_str().unwrap())).await.expect(200);
    // A stricter namespace label warns about existing pods that violate it.
    let stricter = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let reply = admin.patch("/api/v1/namespaces/n", MERGE, &stricter).await;
    assert_eq!(reply.code, 200);
    assert_eq!(
        reply.warnings[0],
        "299 - \"existing pods in namespace \\\"n\\\" violate the new PodSecurity enforce level \\\"restricted:latest\\\"\""
    );
    let wrong = namespace("w", json!({"pod-security.kubernetes.io/enforce": "strict"}));
    let reply = admin.post("/api/v1/namespaces", &wrong).await;
    assert_eq!(reply.code, 422);
}

#[tokio::test]
async fn classes_finalizers_and_topology_are_filled_in() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    default_account(&admin).await;
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "p",
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
    put_in_cache(&admin, "/apis/storage.k8s.io/v1/storageclasses", &class).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let created = admin.post(claims, &claim).await.expect(201);
    assert_eq!(created["spec"]["storageClassName"], "fast");
    assert_eq!(created["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let zone = json!({"topology.kubernetes.io/zone": "z", "other": "o"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": zone}});
    admin.post("/api/v1/nodes", &node).await.expect(201);
    admin.post(PODS, &pod("p")).await.expect(201);
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    admin.post(&format!("{PODS}/p/binding"), &binding).await.expect(201);
    let bound = admin.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(bound["metadata"]["labels"], json!({"app": "p", "topology.kubernetes.io/zone": "z"}));
}

#[tokio::test]
async fn plugins_can_be_switched_on_and_off() {
    let plugins = [
        "AlwaysPullImages",
        "DenyServiceExternalIPs",
        "NamespaceAutoProvision",
        "ExtendedResourceToleration",
    ];
    let harness = with_plugins(&plugins).await;
    let admin = harness.admin();
    default_account(&admin).await;
    let created = admin.post(PODS, &asking("a", json!({"example.com/gpu": "1"}))).await;
    let mut wanted = asking("b", json!({}));
    wanted["spec"]["containers"][0]["resources"] =
        json!({"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "1"}});
    assert_eq!(created.code, 422, "{}", created.body);
    let created = admin.post(PODS, &wanted).await.expect(201);
    assert_eq!(created["spec"]["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(created["spec"]["tolerations"][2]["key"], "example.com/gpu");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {
        "ports": [{"port": 80}], "externalIPs": ["1.2.3.4"]}});
    let reply = admin.post("/api/v1/namespaces/default/services", &service).await;
    assert_eq!(
        reply.message(),
        "services \"s\" is forbidden: Use of external IPs is denied by admission control"
    );
    admin.post("/api/v1/namespaces/fresh/configmaps", &config_map("a")).await.expect(201);
    admin.get("/api/v1/namespaces/fresh").await.expect(200);

    let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
    let mut config = config(store);
    config.admission.disabled = vec!["DefaultTolerationSeconds".into()];
    let server = ApiServer::new(config.clone()).await.unwrap();
    let admin = User(server.transport(UserInfo::new("admin", &["system:masters"])));
    default_account(&admin).await;
    let created = admin.post(PODS, &pod("a")).await.expect(201);
    assert_eq!(created["spec"].get("tolerations"), None);
    config.admission.enabled = vec!["Nonsense".into()];
    let error = ApiServer::new(config).await.err().map(|e| e.to_string());
    assert_eq!(error.as_deref(), Some("admission: enable-admission-plugins plugin \"Nonsense\" is unknown"));
}
