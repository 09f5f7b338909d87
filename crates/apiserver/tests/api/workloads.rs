//! What the server adds to objects: service addresses, pod admission, bootstrap objects, discovery.

use serde_json::{Value, json};

use crate::harness::{APPLY, Harness, PODS, default_account, pod};

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, spec: Value) -> Value {
    let mut body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    for (key, value) in spec.as_object().unwrap() {
        body["spec"][key] = value.clone();
    }
    body
}

#[tokio::test]
async fn services_get_addresses_and_ports() {
    let h = Harness::new().await;
    let u = h.admin();
    let kubernetes = u.get(&format!("{SERVICES}/kubernetes")).await.expect(200);
    assert_eq!(kubernetes["spec"]["clusterIP"], "10.96.0.1");
    let a = u.post(SERVICES, &service("a", json!({}))).await.expect(201);
    let ip = a["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(ip.starts_with("10."), "{ip}");
    assert_eq!(a["spec"]["clusterIPs"], json!([ip]));
    assert_eq!(
        (a["spec"]["ipFamilies"][0].as_str(), a["spec"]["ipFamilyPolicy"].as_str()),
        (Some("IPv4"), Some("SingleStack"))
    );
    let taken = u.post(SERVICES, &service("b", json!({"clusterIP": ip}))).await;
    assert_eq!(taken.code, 422);
    assert_eq!(
        taken.message(),
        format!(
            "Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"{ip}\"]: failed to allocate IP {ip}: provided IP is already allocated"
        )
    );
    let outside = u.post(SERVICES, &service("b", json!({"clusterIP": "192.168.1.1"}))).await;
    assert_eq!(outside.code, 422);
    let headless = u.post(SERVICES, &service("h", json!({"clusterIP": "None"}))).await.expect(201);
    assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
    let node = u.post(SERVICES, &service("n", json!({"type": "NodePort"}))).await.expect(201);
    let port = node["spec"]["ports"][0]["nodePort"].as_i64().unwrap();
    assert!((30000..=32767).contains(&port));
    let same = service("m", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}));
    let taken = u.post(SERVICES, &same).await;
    assert_eq!(
        taken.message(),
        format!(
            "Service \"m\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: provided port is already allocated"
        )
    );
    // A released address can be allocated again.
    u.delete(&format!("{SERVICES}/n")).await.expect(200);
    u.post(SERVICES, &same).await.expect(201);
    u.delete(&format!("{SERVICES}/a")).await.expect(200);
    u.post(SERVICES, &service("b", json!({"clusterIP": ip}))).await.expect(201);
    let external = json!({"spec": {"type": "ExternalName", "externalName": "example.com", "clusterIP": null, "clusterIPs": null, "ports": null}});
    let changed = u.patch(&format!("{SERVICES}/b"), "merge-patch+json", &external).await.expect(200);
    assert_eq!(changed["spec"].get("clusterIP"), None);
    u.post(SERVICES, &service("c", json!({"clusterIP": ip}))).await.expect(201);
}

#[tokio::test]
async fn pods_are_admitted() {
    let h = Harness::new().await;
    let u = h.admin();
    default_account(&u).await;
    let mut body = pod("p");
    body["spec"]["automountServiceAccountToken"] = Value::Null;
    body["spec"]["priorityClassName"] = "system-node-critical".into();
    let p = u.post(PODS, &body).await.expect(201);
    assert_eq!(p["spec"]["serviceAccountName"], "default");
    let volume = &p["spec"]["volumes"][0];
    assert!(volume["name"].as_str().unwrap().starts_with("kube-api-access-"));
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3607);
    let mount = &p["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(p["spec"]["priority"], 2_000_001_000);
    let keys: Vec<&str> =
        p["spec"]["tolerations"].as_array().unwrap().iter().map(|t| t["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
    assert_eq!(p["status"]["phase"], "Pending");
    let mut unknown = pod("q");
    unknown["spec"]["priorityClassName"] = "none".into();
    let refused = u.post(PODS, &unknown).await;
    assert_eq!(
        (refused.code, refused.message()),
        (403, "pods \"q\" is forbidden: no PriorityClass with name none was found")
    );
    let mut stranger = pod("q");
    stranger["spec"]["serviceAccountName"] = "none".into();
    let refused = u.post(PODS, &stranger).await;
    assert_eq!(
        refused.message(),
        "pods \"q\" is forbidden: error looking up service account default/none: serviceaccount \"none\" not found"
    );
}

#[tokio::test]
async fn discovery_lists_the_table() {
    let h = Harness::new().await;
    let u = h.admin();
    let core = u.get("/api/v1").await.expect(200);
    let pods = core["resources"].as_array().unwrap().iter().find(|r| r["name"] == "pods").unwrap();
    assert_eq!((pods["kind"].as_str(), pods["shortNames"][0].as_str()), (Some("Pod"), Some("po")));
    let groups = u.get("/apis").await.expect(200);
    assert!(groups["groups"].as_array().unwrap().iter().any(|g| g["name"] == "apps"));
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let all = u.get_as("/apis", accept).await.expect(200);
    assert_eq!(all["kind"], "APIGroupDiscoveryList");
    let apps = all["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == "apps").unwrap();
    assert_eq!(apps["versions"][0]["resources"][0]["responseKind"]["kind"], "ControllerRevision");
    let version = u.get("/version").await.expect(200);
    assert_eq!((version["major"].as_str(), version["minor"].as_str()), (Some("1"), Some("37")));
    let index = u.get("/openapi/v3").await.expect(200);
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap();
    let document = u.get(url).await.expect(200);
    assert!(document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"].is_object());
    let group = index["paths"]["apis/apps"]["serverRelativeURL"].as_str().unwrap();
    let group = u.get(group).await.expect(200);
    assert_eq!(group["paths"]["/apis/apps/"]["get"]["operationId"], "getAppsAPIGroup");
    let whole = u.get("/openapi/v2").await.expect(200);
    let exec = &whole["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/exec"]["get"];
    assert_eq!(exec["operationId"], "connectCoreV1GetNamespacedPodExec");
    assert_eq!(exec["x-kubernetes-action"], "connect");
    u.until_ready().await;
    assert_eq!(u.get("/readyz").await.expect(200), "ok");
    assert!(u.get("/livez?verbose").await.expect(200).as_str().unwrap().ends_with("livez check passed\n"));
    assert!(u.get("/metrics").await.expect(200).as_str().unwrap().contains("apiserver_request_total"));
}

#[tokio::test]
async fn a_restart_finds_everything_again() {
    let h = Harness::new().await;
    let u = h.admin();
    u.post(SERVICES, &service("a", json!({}))).await.expect(201);
    let before = u.get("/api/v1/services").await.expect(200);
    h.server.stop();
    let again = knarr_apiserver::ApiServer::new(crate::harness::config(h.store.clone())).await.unwrap();
    let revision = h.store.current_revision().await.unwrap();
    let again = Harness { server: again, store: h.store.clone() };
    let after = again.admin().get("/api/v1/services").await.expect(200);
    assert_eq!(before["items"], after["items"]);
    // Nothing was missing, so nothing was written.
    assert_eq!(before["metadata"]["resourceVersion"], revision.to_string());
}

/// KEP-5311: the name of a Service, and of an Ingress backend, may begin with a digit.
#[tokio::test]
async fn names_of_services_may_begin_with_a_digit() {
    let u = Harness::new().await.admin();
    let created = u.post(SERVICES, &service("7-of-9", json!({"ports": [{"port": 80}]}))).await.expect(201);
    assert_eq!(created["metadata"]["name"], "7-of-9");
    let generated = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"generateName": "7-"},
        "spec": {"ports": [{"port": 80}]}});
    u.post(SERVICES, &generated).await.expect(201);
    let refused = u.post(SERVICES, &service("a.b", json!({"ports": [{"port": 80}]}))).await;
    assert_eq!(refused.code, 422, "{}", refused.message());

    let ingress = |backend: &str| {
        let service = json!({"name": backend, "port": {"number": 80}});
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"},
            "spec": {"defaultBackend": {"service": service}}})
    };
    let uri = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    u.post(uri, &ingress("7-of-9")).await.expect(201);
    let refused = u.post(uri, &ingress("a.b")).await;
    assert!(
        refused.message().contains("spec.defaultBackend.service.name: Invalid value"),
        "{}",
        refused.message()
    );
}

/// Source: the strategy of `k8s.io/kubernetes/pkg/registry/networking/servicecidr`.
#[tokio::test]
async fn the_status_of_a_range_of_addresses_is_written_apart() {
    let u = Harness::new().await.admin();
    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    let condition = |status: &str| {
        json!({"type": "Ready", "status": status, "reason": "r", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let range = |status: &str| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
            "spec": {"cidrs": ["10.200.0.0/24"]}, "status": {"conditions": [condition(status)]}})
    };
    let created = u.post(ranges, &range("True")).await.expect(201);
    assert!(created["status"]["conditions"].is_null(), "{created}");
    let one = format!("{ranges}/more");
    let stated = u.put(&format!("{one}/status"), &range("False")).await.expect(200);
    assert_eq!(stated["status"]["conditions"][0]["status"], "False");
    let updated = u.put(&one, &range("True")).await.expect(200);
    assert_eq!(updated["status"]["conditions"][0]["status"], "False");

    // A field manager does not own a status that it applies to the main resource.
    let apply = |uri: &str| format!("{uri}?fieldManager=tester&force=true");
    let applied = u.patch(&apply(&one), APPLY, &range("True")).await.expect(200);
    assert_eq!(applied["status"]["conditions"][0]["status"], "False");
    let managers = applied["metadata"]["managedFields"].as_array().unwrap();
    let own = managers.iter().find(|m| m["manager"] == "tester").unwrap();
    assert!(own["fieldsV1"]["f:status"].is_null() && own["fieldsV1"]["f:spec"].is_object(), "{own}");
}
