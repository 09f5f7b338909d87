//! A nearly full store: how clients see its quota and the limit on namespaces, and which writes still succeed.

use std::sync::Arc;

use knarr_apiserver::storage_options;
use knarr_storage::{Embedded, Options, Precondition, Store};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, MERGE, User, config_map};

fn large(name: &str, bytes: usize) -> Value {
    let mut object = config_map(name);
    object["data"] = json!({"a": "x".repeat(bytes)});
    object
}

async fn text(user: &User, uri: &str) -> (u16, String) {
    let reply = user.get(uri).await;
    let text = reply.body.as_str().unwrap_or(reply.message()).to_owned();
    (reply.code, text)
}

#[tokio::test]
async fn a_full_namespace_is_refused_alone_and_can_be_emptied() {
    let store = Arc::new(Embedded::memory(storage_options(-1, 100_000)));
    let h = Harness::on(store, |_| ()).await;
    let user = h.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    user.post("/api/v1/namespaces", &namespace).await.expect(201);
    user.post(CONFIG_MAPS, &large("a", 60_000)).await.expect(201);
    let refused = user.post(CONFIG_MAPS, &large("b", 60_000)).await;
    let message = refused.message().to_owned();
    let body = refused.expect(403);
    assert_eq!(body["reason"], "Forbidden");
    let start = "configmaps \"b\" is forbidden: exceeded storage limit of namespace default, requested: 60";
    assert!(message.starts_with(start), "{message}");
    assert!(message.contains("limited: 100000 bytes: delete objects of the namespace"), "{message}");
    let grown = json!({"data": {"a": "x".repeat(110_000)}});
    user.patch(&format!("{CONFIG_MAPS}/a"), MERGE, &grown).await.expect(403);
    for namespace in ["other", "kube-system"] {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        user.post(&path, &large("b", 60_000)).await.expect(201);
    }
    user.post("/api/v1/namespaces/kube-system/configmaps", &large("c", 60_000)).await.expect(201);
    user.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    user.post(CONFIG_MAPS, &large("b", 60_000)).await.expect(201);
}

#[tokio::test]
async fn a_used_up_quota_is_shown_and_leaves_heartbeats() {
    // The size of an empty cluster, plus a margin.
    let empty = {
        let store: Arc<dyn Store> = Arc::new(Embedded::memory(Options::default()));
        Harness::on(Arc::clone(&store), |_| ()).await;
        store.status().await.unwrap().live_bytes
    };
    let quota = i64::try_from(empty).unwrap() + 1_000_000;
    let store: Arc<dyn Store> = Arc::new(Embedded::memory(storage_options(quota, -1)));
    let h = Harness::on(Arc::clone(&store), |_| ()).await;
    let user = h.admin();
    user.until_ready().await;
    for uri in ["/readyz/storage-space", "/livez/storage-space"] {
        user.get(uri).await.expect(200);
    }
    let mut count = 0;
    let refused = loop {
        let reply = user.post(CONFIG_MAPS, &large(&format!("m{count}"), 100_000)).await;
        if reply.code != 201 {
            break reply;
        }
        count += 1;
    };
    assert!(count >= 8, "{count}");
    while user.post(CONFIG_MAPS, &large(&format!("s{count}"), 1000)).await.code == 201 {
        count += 1;
    }
    assert_eq!(refused.message(), "etcdserver: mvcc: database space exceeded");
    assert_eq!(refused.expect(500).get("reason"), None);
    let (code, why) = text(&user, "/readyz/storage-space").await;
    assert_eq!(code, 500);
    assert!(why.contains("--quota-backend-bytes"), "{why}");
    for endpoint in ["/readyz", "/livez"] {
        let (code, lines) = text(&user, &format!("{endpoint}?verbose")).await;
        assert_eq!(code, 200, "reads and deletions go on: {lines}");
        assert!(lines.contains("[-]storage-space failed"), "{lines}");
    }
    let metrics = text(&user, "/metrics").await.1;
    assert!(metrics.contains("knarr_storage_no_space{reason=\"quota\"} 1"), "{metrics}");
    assert!(metrics.contains(&format!("etcd_server_quota_backend_bytes {quota}")));
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n"},
        "spec": {"holderIdentity": "n"}});
    for namespace in ["kube-node-lease", "kube-system"] {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        user.post(&path, &lease).await.expect(201);
        let renewed = json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
        user.patch(&format!("{path}/n"), MERGE, &renewed).await.expect(200);
    }
    user.get(CONFIG_MAPS).await.expect(200);
    for key in 0..3 {
        user.delete(&format!("{CONFIG_MAPS}/m{key}")).await.expect(200);
    }
    assert_eq!(text(&user, "/readyz/storage-space").await.0, 200);
    user.post(CONFIG_MAPS, &large("again", 100_000)).await.expect(201);
    store.put("k".into(), "v".into(), Precondition::Any, None).await.unwrap();
}
