//! The audit log: what is written of whom, at which level and stage.

use std::collections::BTreeSet;

use knarr_apiserver::{Audit, AuditBatch, AuditLog};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, config_map};
use crate::tls::{get1, serve_with};

const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  resources: [{group: "", resources: ["secrets"]}]
- level: RequestResponse
  users: ["ann"]
  omitManagedFields: true
- level: Metadata
  verbs: ["watch"]
- level: Metadata
  nonResourceURLs: ["/livez"]
  omitStages: [RequestReceived]
"#;

#[tokio::test]
async fn requests_are_written_down_as_the_policy_says() {
    let folder = std::env::temp_dir().join(format!("audit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (policy, log) = (folder.join("policy.yaml"), folder.join("audit.log"));
    std::fs::write(&policy, POLICY).unwrap();
    let path = log.clone();
    let s = serve_with(move |config, _| {
        let log = AuditLog { path, ..AuditLog::default() };
        config.audit = Audit { policy_file: Some(policy), log: Some(log), webhook: None };
    })
    .await;
    let ann = s.authority.sign("ann", &["system:masters"], &[], false);
    let bob = s.authority.sign("bob", &[], &[], false);
    let post = http::Request::builder()
        .method("POST")
        .uri(CONFIG_MAPS)
        .header("content-type", "application/json")
        .header("audit-id", "my-id")
        .header("user-agent", "test/1");
    assert_eq!(s.ask(Some(&ann), false, post, &config_map("a").to_string()).await.0, 201);
    assert_eq!(s.ask(Some(&bob), false, get1("/api/v1/namespaces/x/secrets"), "").await.0, 403);
    assert_eq!(s.ask(None, false, get1("/livez"), "").await.0, 200);
    let refused = get1(CONFIG_MAPS).header("impersonate-user", "bob");
    assert_eq!(s.ask(Some(&ann), false, refused, "").await.0, 403);
    let events = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    };
    let mut all = events();
    for _ in 0..1500 {
        if all.len() >= 5 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        all = events();
    }
    let of = |uri: &str, stage: &str| {
        all.iter().filter(|e| e["requestURI"] == uri && e["stage"] == stage).cloned().collect::<Vec<_>>()
    };
    let created = of(CONFIG_MAPS, "ResponseComplete").into_iter().find(|e| e["verb"] == "create").unwrap();
    assert_eq!(created["auditID"], "my-id");
    assert_eq!(created["level"], "RequestResponse");
    assert_eq!(created["user"]["username"], "ann");
    assert_eq!(created["userAgent"], "test/1");
    assert_eq!(created["sourceIPs"], json!(["127.0.0.1"]));
    assert_eq!(created["objectRef"]["name"], "a");
    assert_eq!(created["requestObject"]["data"]["k"], "v");
    assert_eq!(created["responseObject"]["metadata"]["name"], "a");
    assert!(created["responseObject"]["metadata"].get("managedFields").is_none());
    assert_eq!(created["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(created["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(of(CONFIG_MAPS, "RequestReceived").len(), 2);
    let forbidden = of(CONFIG_MAPS, "ResponseComplete").into_iter().find(|e| e["verb"] == "list").unwrap();
    assert_eq!(forbidden["impersonatedUser"]["username"], "bob");
    assert_eq!(forbidden["responseStatus"]["reason"], "Forbidden");
    assert_eq!(forbidden["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!((of("/livez", "RequestReceived").len(), of("/livez", "ResponseComplete").len()), (0, 1));
    let uris: BTreeSet<_> = all.iter().map(|e| e["requestURI"].as_str().unwrap().to_owned()).collect();
    assert!(!uris.iter().any(|u| u.contains("secrets")), "{uris:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// In batch mode nobody waits for the file, and what waits is written when the server ends.
#[tokio::test]
async fn a_log_in_batches_has_every_event() {
    let folder = std::env::temp_dir().join(format!("audit-batch-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (policy, log) = (folder.join("policy.yaml"), folder.join("audit.log"));
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n")
        .unwrap();
    let path = log.clone();
    let s = serve_with(move |config, _| {
        let batch =
            AuditBatch { size: 4, wait: std::time::Duration::from_millis(50), ..AuditBatch::of_log() };
        let log = AuditLog { path, batch: Some(batch), ..AuditLog::default() };
        config.audit = Audit { policy_file: Some(policy), log: Some(log), webhook: None };
    })
    .await;
    let ann = s.authority.sign("ann", &["system:masters"], &[], false);
    for _ in 0..5 {
        assert_eq!(s.ask(Some(&ann), false, get1("/api/v1/nodes"), "").await.0, 200);
    }
    let count = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let nodes =
            |l: &&str| l.contains("\"requestURI\":\"/api/v1/nodes\"") && l.contains("\"username\":\"ann\"");
        text.lines().filter(nodes).count()
    };
    for _ in 0..1500 {
        if count() == 10 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // Each request when it came and when it was answered.
    assert_eq!(count(), 10);
    std::fs::remove_dir_all(&folder).unwrap();
}
