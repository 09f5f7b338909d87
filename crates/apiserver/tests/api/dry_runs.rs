//! Dry runs of every kind of write: answered as the write would be, while nothing is stored, allocated or charged.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{
    APPLY, CONFIG_MAPS, Harness, JSON, MERGE, PODS, STRATEGIC, User, config_map, default_account, pod,
};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {
        "type": "NodePort", "ports": [{"port": 80, "nodePort": 30123}], "clusterIP": "10.96.7.7"}})
}

/// Creates the objects that the dry runs start from.
async fn prepare(admin: &User) {
    default_account(admin).await;
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    admin.post(DEPLOYMENTS, &deployment()).await.expect(201);
    admin.post(PODS, &pod("p")).await.expect(201);
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["example.com/f"]);
    admin.post(CONFIG_MAPS, &held).await.expect(201);
}

#[tokio::test]
async fn nothing_is_stored() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    prepare(&admin).await;
    let map = format!("{CONFIG_MAPS}/a");
    let changed = json!({"data": {"k": "w"}});
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d", "namespace": "default"}, "spec": {"replicas": 5}});
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}});
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "reason": "r"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
    let plain = "application/json".to_owned();
    let patch = |kind: &str| format!("application/{kind}");
    let mut updated = config_map("a");
    updated["data"]["k"] = "w".into();
    let mut generated = config_map("");
    generated["metadata"] = json!({"generateName": "g-"});
    let operations = json!([{"op": "replace", "path": "/data/k", "value": "w"}]);
    let status = json!({"status": {"replicas": 3}});
    let cases: Vec<(Method, String, String, Value, u16)> = vec![
        (Method::POST, CONFIG_MAPS.into(), plain.clone(), config_map("b"), 201),
        (Method::POST, CONFIG_MAPS.into(), plain.clone(), generated, 201),
        (Method::POST, CONFIG_MAPS.into(), plain.clone(), config_map("a"), 409),
        (Method::POST, "/api/v1/namespaces".into(), plain.clone(), namespace, 201),
        (Method::POST, SERVICES.into(), plain.clone(), service("s"), 201),
        (Method::POST, PODS.into(), plain.clone(), pod("q"), 201),
        (Method::POST, "/api/v1/namespaces/default/events".into(), plain.clone(), event, 201),
        (Method::PUT, map.clone(), plain.clone(), updated, 200),
        (
            Method::PUT,
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/l".into(),
            plain.clone(),
            lease,
            201,
        ),
        (Method::PATCH, map.clone(), patch(MERGE), changed.clone(), 200),
        (Method::PATCH, map.clone(), patch(STRATEGIC), changed.clone(), 200),
        (Method::PATCH, map.clone(), patch(JSON), operations, 200),
        (Method::PATCH, format!("{map}?fieldManager=m&force=true"), patch(APPLY), config_map("a"), 200),
        (Method::PATCH, format!("{CONFIG_MAPS}/new?fieldManager=m"), patch(APPLY), config_map("new"), 201),
        (Method::PATCH, format!("{DEPLOYMENTS}/d/status"), patch(MERGE), status, 200),
        (Method::PUT, format!("{DEPLOYMENTS}/d/scale"), plain.clone(), scale, 200),
        (
            Method::PATCH,
            format!("{DEPLOYMENTS}/d/scale"),
            patch(MERGE),
            json!({"spec": {"replicas": 4}}),
            200,
        ),
        (Method::POST, format!("{PODS}/p/binding"), plain.clone(), binding, 201),
        (Method::POST, format!("{PODS}/p/eviction"), plain.clone(), eviction, 201),
        (Method::DELETE, map, plain.clone(), json!({}), 200),
        (Method::DELETE, format!("{CONFIG_MAPS}/held"), plain.clone(), json!({}), 200),
        (Method::DELETE, format!("{PODS}/p"), plain.clone(), json!({}), 200),
        (Method::DELETE, CONFIG_MAPS.into(), plain, json!({}), 200),
    ];
    for (method, uri, kind, mut body, code) in cases {
        let before = settled(&harness).await;
        let dry = if uri.contains('?') { format!("{uri}&dryRun=All") } else { format!("{uri}?dryRun=All") };
        if method == Method::DELETE {
            body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]});
        }
        let reply = admin.raw(method.clone(), &dry, &kind, body.to_string()).await;
        assert_eq!(reply.code, code, "{method} {uri}: {}", reply.body);
        let after = harness.store.current_revision().await.unwrap();
        assert_eq!(after, before, "{method} {uri} wrote something");
    }
}

/// Returns the store's revision once the server's own work after its start has ended.
async fn settled(harness: &Harness) -> u64 {
    let (mut revision, mut quiet) = (0, 0);
    while quiet < 5 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let now = harness.store.current_revision().await.unwrap();
        (revision, quiet) = if now == revision { (revision, quiet + 1) } else { (now, 0) };
    }
    revision
}

#[tokio::test]
async fn nothing_is_allocated() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    for name in ["a", "b"] {
        admin.post(&format!("{SERVICES}?dryRun=All"), &service(name)).await.expect(201);
    }
    // The address and the port of the dry run are free.
    let created = admin.post(SERVICES, &service("c")).await.expect(201);
    assert_eq!(created["spec"]["clusterIP"], "10.96.7.7");
    admin.delete(&format!("{SERVICES}/c?dryRun=All")).await.expect(200);
    // Those of an object whose deletion was a dry run are not.
    let reply = admin.post(SERVICES, &service("d")).await;
    assert_eq!(reply.code, 422, "{}", reply.body);
}

#[tokio::test]
async fn a_rehearsal_is_answered_as_the_write_would_be() {
    let harness = Harness::new().await;
    let admin = harness.admin();
    prepare(&admin).await;
    let answer = admin.post(&format!("{PODS}?dryRun=All"), &pod("q")).await.expect(201);
    assert_eq!(answer["status"]["phase"], "Pending");
    assert!(answer["metadata"]["uid"].is_string());
    admin.get(&format!("{PODS}/q")).await.expect(404);
    let patched = admin
        .patch(&format!("{CONFIG_MAPS}/a?dryRun=All"), MERGE, &json!({"data": {"k": "w"}}))
        .await
        .expect(200);
    assert_eq!(patched["data"]["k"], "w");
    assert_eq!(admin.get(&format!("{CONFIG_MAPS}/a")).await.expect(200)["data"]["k"], "v");
    // Invalid writes are refused.
    let mut wrong = pod("w");
    wrong["spec"]["restartPolicy"] = "Sometimes".into();
    admin.post(&format!("{PODS}?dryRun=All"), &wrong).await.expect(422);
    let reply = admin.post(&format!("{PODS}?dryRun=Some"), &pod("w")).await;
    assert_eq!(reply.code, 422);
}
