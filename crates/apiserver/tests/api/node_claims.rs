//! Claims of a node about itself that other components would trust.

use serde_json::{Value, json};

use crate::harness::{Harness, MERGE};

const NODES: &str = "/api/v1/nodes";

fn status(ip: &str) -> Value {
    json!({"status": {"addresses": [{"type": "InternalIP", "address": ip}],
        "conditions": [{"type": "Ready", "status": "True"}]}})
}

#[tokio::test]
async fn a_node_does_not_take_the_addresses_of_another() {
    let h = Harness::new().await;
    let (admin, node) = (h.admin(), h.user("system:node:n1", &["system:nodes"]));
    admin.post(NODES, &json!({"metadata": {"name": "n2"}})).await.expect(201);
    admin.patch(&format!("{NODES}/n2/status"), MERGE, &status("192.0.2.2")).await.expect(200);
    node.post(NODES, &json!({"metadata": {"name": "n1"}})).await.expect(201);
    let (own, own_status) = (format!("{NODES}/n1"), format!("{NODES}/n1/status"));
    node.patch(&own_status, MERGE, &status("192.0.2.1")).await.expect(200);
    // Waits until the cache that admission reads contains the writes.
    admin.get(NODES).await.expect(200);
    let refused = node.patch(&own_status, MERGE, &status("192.0.2.2")).await.expect(403);
    assert_eq!(
        refused["message"],
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to claim the address 192.0.2.2 of node \"n2\""
    );
    let mark = json!({"metadata": {"annotations": {"knarr.dev/serving-addresses": "10.43.0.1"}}});
    for path in [&own, &own_status] {
        assert_eq!(node.patch(path, MERGE, &mark).await.code, 403, "{path}");
    }
    admin.patch(&own, MERGE, &mark).await.expect(200);
    node.patch(&own_status, MERGE, &status("192.0.2.1")).await.expect(200);
}

#[tokio::test]
async fn a_node_does_not_choose_its_pod_addresses() {
    let h = Harness::new().await;
    let (admin, node) = (h.admin(), h.user("system:node:n1", &["system:nodes"]));
    let with_cidr =
        |cidr: &str| json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]}});
    let refused = node.post(NODES, &with_cidr("0.0.0.0/0")).await.expect(403);
    assert_eq!(
        refused["message"],
        "nodes \"n1\" is forbidden: node \"n1\" is not allowed to set its pod CIDRs"
    );
    node.post(NODES, &json!({"metadata": {"name": "n1"}})).await.expect(201);
    let own = format!("{NODES}/n1");
    assert_eq!(node.patch(&own, MERGE, &with_cidr("10.42.7.0/24")).await.code, 403);
    admin.patch(&own, MERGE, &with_cidr("10.42.7.0/24")).await.expect(200);
    node.patch(&own, MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
}
