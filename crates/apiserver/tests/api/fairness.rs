//! Priority and fairness over the API: default objects, headers, dangling flow schemas, dumps.

use serde_json::{Value, json};

use crate::harness::{Harness, MERGE};
use crate::tls::{get1, serve_with};

const GROUP: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

async fn condition(admin: &crate::harness::User, schema: &str, status: &str) -> Value {
    let mut found = Value::Null;
    for _ in 0..200 {
        let object = admin.get(&format!("{GROUP}/flowschemas/{schema}")).await.expect(200);
        found = object["status"]["conditions"][0].clone();
        if found["status"] == status {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    found
}

#[tokio::test]
async fn schemas_say_whether_their_level_is_there() {
    let h = Harness::new().await;
    let admin = h.admin();
    let levels = admin.get(&format!("{GROUP}/prioritylevelconfigurations")).await.expect(200);
    assert_eq!(levels["items"].as_array().unwrap().len(), 8);
    let schemas = admin.get(&format!("{GROUP}/flowschemas")).await.expect(200);
    assert_eq!(schemas["items"].as_array().unwrap().len(), 11);
    let found = condition(&admin, "system-nodes", "False").await;
    assert_eq!((found["type"].as_str(), found["reason"].as_str()), (Some("Dangling"), Some("Found")));
    let change = json!({"spec": {"priorityLevelConfiguration": {"name": "gone"}}});
    admin.patch(&format!("{GROUP}/flowschemas/service-accounts"), MERGE, &change).await.expect(200);
    let lost = condition(&admin, "service-accounts", "True").await;
    assert_eq!(lost["reason"], "NotFound");
    assert_eq!(
        lost["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"gone\" but there is no such object"
    );
    let dump = admin.get("/debug/api_priority_and_fairness/dump_priority_levels").await.expect(200);
    let dump = dump.as_str().unwrap().to_owned();
    assert!(dump.starts_with("PriorityLevelName,") && dump.contains("workload-high,"), "{dump}");
}

#[tokio::test]
async fn answers_name_their_flow() {
    let s = serve_with(|_, _| {}).await;
    let bob = s.authority.sign("bob", &[], &[], false);
    let admin =
        crate::harness::User(s.server.transport(knarr_apiserver::UserInfo::new("a", &["system:masters"])));
    let schema = admin.get(&format!("{GROUP}/flowschemas/global-default")).await.expect(200);
    let level = admin.get(&format!("{GROUP}/prioritylevelconfigurations/global-default")).await.expect(200);
    let mut response = s.open(Some(&bob), false, get1("/api/v1/pods"), "").await;
    // Until the caches contain the objects, requests match the catch-all schema.
    for _ in 0..100 {
        if response.headers().get("x-kubernetes-pf-flowschema-uid").is_some_and(|v| !v.is_empty()) {
            break;
        }
        response = s.open(Some(&bob), false, get1("/api/v1/pods"), "").await;
    }
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("x-kubernetes-pf-flowschema-uid"), schema["metadata"]["uid"].as_str().unwrap());
    assert_eq!(header("x-kubernetes-pf-prioritylevel-uid"), level["metadata"]["uid"].as_str().unwrap());
}

#[tokio::test]
async fn plain_limits_without_fairness() {
    let s = serve_with(|config, _| {
        config.priority_and_fairness = false;
        config.max_requests_inflight = 0;
    })
    .await;
    let bob = s.authority.sign("bob", &[], &[], false);
    let response = s.open(Some(&bob), false, get1("/api/v1/pods"), "").await;
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    assert_eq!(s.ask(Some(&admin), false, get1("/api/v1/pods"), "").await.0, 200);
}
