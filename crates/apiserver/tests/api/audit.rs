//! The audit log: which events are recorded for whom, at which level and stage.

use std::collections::BTreeSet;
use std::time::Duration;

use knarr_apiserver::{Audit, AuditBatch, AuditLog, AuditTruncate, AuditWebhook};
use knarr_testing::HookServer;
use knarr_testing::hook_server::{Received, Reply};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, User, config_map};
use crate::tls::{Served, get1, serve_with};

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

/// Starts a server that records all requests to the API. The closure waits for the first event of a path and returns
/// it.
async fn writing_all_down(name: &str) -> (Served, impl AsyncFn(&str) -> Value) {
    let folder = std::env::temp_dir().join(format!("audit-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (policy, log) = (folder.join("policy.yaml"), folder.join("audit.log"));
    let all = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata}]}";
    std::fs::write(&policy, all).unwrap();
    let path = log.clone();
    let s = serve_with(move |config, _| {
        let log = AuditLog { path, ..AuditLog::default() };
        config.audit = Audit { policy_file: Some(policy), log: Some(log), webhook: None };
    })
    .await;
    let written = async move |path: &str| {
        for _ in 0..1500 {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let of_path =
                |event: &Value| event["requestURI"].as_str().is_some_and(|uri| uri.starts_with(path));
            if let Some(event) = events.into_iter().find(of_path) {
                return event;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nothing is written of {path}");
    };
    (s, written)
}

#[tokio::test]
async fn deletions_of_what_cannot_be_read_are_marked() {
    let (s, written) = writing_all_down("unsafe").await;
    let ann = s.authority.sign("ann", &["system:masters"], &[], false);
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions",
        "ignoreStoreReadErrorWithClusterBreakingPotential": true});
    for (name, body) in [("marked", options), ("plain", json!({}))] {
        let path = format!("{CONFIG_MAPS}/{name}");
        let delete =
            http::Request::builder().method("DELETE").uri(&path).header("content-type", "application/json");
        assert_eq!(s.ask(Some(&ann), false, delete, &body.to_string()).await.0, 404);
        let event = written(&path).await;
        let mark = event["annotations"].get("apiserver.k8s.io/unsafe-delete-ignore-read-error");
        assert_eq!(mark, (name == "marked").then_some(&json!("")), "{event}");
    }
}

#[tokio::test]
async fn requests_that_fail_before_anybody_is_known_are_written_down() {
    let (s, written) = writing_all_down("timeout").await;
    let uri = format!("{CONFIG_MAPS}?timeout=soon");
    assert_eq!(s.ask(None, false, get1(&uri), "").await.0, 400);
    let event = written(&uri).await;
    assert_eq!((&event["responseStatus"]["code"], &event["verb"]), (&json!(400), &json!("list")));
    assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]));
    assert_eq!(event["user"].get("username"), None, "{event}");
}

/// In batch mode, requests do not wait for the file, and queued events are written when the server stops.
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
    // Each request at its arrival and at its response.
    assert_eq!(count(), 10);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A server that sends its events to a webhook.
struct Sending {
    served: Served,
    hook: HookServer,
    folder: std::path::PathBuf,
}

/// Starts the server and a webhook whose responses `answer` returns.
async fn sending(
    name: &str,
    level: &str,
    answer: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    change: impl FnOnce(&mut AuditWebhook) + Send,
) -> Sending {
    let folder = std::env::temp_dir().join(format!("audit-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let policy = folder.join("policy.yaml");
    let rules = format!(
        "rules:\n- {{level: {level}, users: [ann], verbs: [create], omitStages: [RequestReceived]}}\n\
         - {{level: Metadata, users: [ann], verbs: [list]}}\n- {{level: None}}\n"
    );
    std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    let hook = HookServer::start(&["127.0.0.1"], answer).await.unwrap();
    let ca = folder.join("ca.pem");
    std::fs::write(&ca, &hook.ca_pem).unwrap();
    let file = folder.join("webhook.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{}', certificate-authority: '{}'}}}}]\n\
         users: [{{name: u, user: {{token: secret}}}}]\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
         current-context: x\n",
        hook.url("/events"),
        ca.display()
    );
    std::fs::write(&file, text).unwrap();
    let mut webhook = AuditWebhook { initial_backoff: Duration::from_millis(1), ..AuditWebhook::new(file) };
    change(&mut webhook);
    let served = serve_with(move |config, _| {
        config.audit = Audit { policy_file: Some(policy), log: None, webhook: Some(webhook) };
    })
    .await;
    Sending { served, hook, folder }
}

impl Sending {
    async fn ask(&self, request: http::request::Builder, body: &str) -> (u16, Value) {
        let ann = self.served.authority.sign("ann", &["system:masters"], &[], false);
        self.served.ask(Some(&ann), false, request, body).await
    }

    /// Returns the stages received so far, request by request.
    fn stages(&self) -> Vec<String> {
        let received = self.hook.received();
        let events = received.iter().flat_map(|r| r.body["items"].as_array().cloned().unwrap_or_default());
        events.map(|e| e["stage"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn create() -> http::request::Builder {
    http::Request::builder().method("POST").uri(CONFIG_MAPS).header("content-type", "application/json")
}

#[tokio::test]
async fn requests_wait_for_a_blocking_webhook() {
    let s = sending("blocking", "Request", |_| Reply::Json(json!({})), |w| w.batch = None).await;
    assert_eq!(s.ask(get1(CONFIG_MAPS), "").await.0, 200);
    // Blocking mode: the events have arrived when the response has.
    assert_eq!(s.stages(), ["RequestReceived", "ResponseComplete"]);
    let first = &s.hook.received()[0];
    assert_eq!((first.path.as_str(), first.authorization.as_str()), ("/events", "Bearer secret"));
    assert_eq!(first.body["kind"], "EventList");
    assert_eq!(first.body["apiVersion"], "audit.k8s.io/v1");
    assert_eq!(s.ask(create(), &config_map("a").to_string()).await.0, 201);
    assert_eq!(s.hook.received()[2].body["items"][0]["requestObject"]["data"]["k"], "v");
}

#[tokio::test]
async fn a_webhook_that_refuses_stops_only_strict_servers() {
    for strict in [false, true] {
        let name = format!("refusing-{strict}");
        let refuse = |_: &Received| Reply::Raw(400, b"no".to_vec());
        let s = sending(&name, "Request", refuse, |w| (w.batch, w.strict) = (None, strict)).await;
        let (code, said) = s.ask(get1(CONFIG_MAPS), "").await;
        // Each event was sent five times.
        if strict {
            let text = format!("Internal Server Error: {CONFIG_MAPS:?}: failed to store audit event\n");
            assert_eq!((code, said), (500, Value::from(text)));
            assert_eq!(s.stages(), ["RequestReceived"; 5]);
        } else {
            assert_eq!(code, 200);
            assert_eq!(s.stages().len(), 10);
        }
        let admin = User(s.served.server.transport(knarr_apiserver::UserInfo::new("a", &["system:masters"])));
        let metrics = admin.get("/metrics").await.body.to_string();
        let errors =
            format!("apiserver_audit_error_total{{plugin=\\\"webhook\\\"}} {}", if strict { 1 } else { 2 });
        assert!(metrics.contains(&errors), "{metrics}");
        assert_eq!(metrics.contains("apiserver_audit_requests_rejected_total 1"), strict);
        let calls = format!(
            "rest_client_requests_total{{code=\\\"400\\\",method=\\\"POST\\\",host=\\\"{}\\\"}}",
            s.hook.address
        );
        assert!(metrics.contains(&calls), "{metrics}");
        // A strict webhook refuses a request whose RequestReceived event fails. The policy omits that stage for a
        // create, and a later stage cannot refuse it any more.
        let made = s.ask(create(), &config_map("a").to_string()).await.0;
        assert_eq!(made, 201);
    }
}

#[tokio::test]
async fn events_that_are_too_large_lose_their_objects() {
    let limits = AuditTruncate { event: 2000, batch: 4000 };
    let change = |w: &mut AuditWebhook| (w.batch, w.truncate) = (None, Some(limits));
    let s = sending("truncated", "Request", |_| Reply::Json(json!({})), change).await;
    let mut large = config_map("large");
    large["data"]["k"] = "x".repeat(5000).into();
    assert_eq!(s.ask(create(), &large.to_string()).await.0, 201);
    assert_eq!(s.ask(create(), &config_map("small").to_string()).await.0, 201);
    let received = s.hook.received();
    let events: Vec<&Value> = received.iter().map(|r| &r.body["items"][0]).collect();
    assert_eq!(events[0]["annotations"]["audit.k8s.io/truncated"], "true");
    assert!(events[0]["requestObject"].is_null());
    assert!(events[1]["annotations"]["audit.k8s.io/truncated"].is_null());
    assert_eq!(events[1]["requestObject"]["metadata"]["name"], "small");
}

#[tokio::test]
async fn a_webhook_in_batches_gets_every_event() {
    let change = |w: &mut AuditWebhook| {
        let batch = AuditBatch { size: 4, wait: Duration::from_millis(50), ..AuditBatch::of_webhook() };
        w.batch = Some(batch);
    };
    // The webhook is unavailable at first.
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let answer = move |_: &Received| match tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => Reply::HangUp,
        1 => Reply::Raw(503, Vec::new()),
        _ => Reply::Json(json!({})),
    };
    let s = sending("webhook-batch", "Request", answer, change).await;
    for _ in 0..5 {
        assert_eq!(s.ask(get1(CONFIG_MAPS), "").await.0, 200);
    }
    let taken = || -> usize {
        let batches = s.hook.received();
        batches.iter().skip(2).map(|r| r.body["items"].as_array().map_or(0, Vec::len)).sum()
    };
    for _ in 0..1500 {
        if taken() == 10 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(taken(), 10);
    assert!(s.hook.received().iter().all(|r| r.body["items"].as_array().is_some_and(|i| i.len() <= 4)));
}
