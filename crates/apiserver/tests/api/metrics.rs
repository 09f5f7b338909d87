//! Metrics: every family is recorded in by some tested code, and the output has upstream's names.

use std::collections::BTreeSet;

use http_body_util::BodyExt;
use knarr_apiserver::{Audit, AuditLog};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{CONFIG_MAPS, User, config_map};
use crate::tls::{get1, serve_with};

/// Families that other tests record in and check.
const ELSEWHERE: &[&str] = &[
    // flowcontrol::tests: requests that wait, are turned away, give up.
    "apiserver_flowcontrol_rejected_requests_total",
    "apiserver_flowcontrol_request_dispatch_no_accommodation_total",
    "apiserver_flowcontrol_request_wait_duration_seconds",
    // encryption::secrets_are_stored_encrypted_and_keys_rotate
    "apiserver_storage_transformation_duration_seconds",
    "apiserver_storage_transformation_operations_total",
    // authentication::legacy_tokens_are_counted_and_marked, projected_tokens_are_counted_by_their_age
    "serviceaccount_invalid_legacy_auto_token_uses_total",
    "serviceaccount_legacy_auto_token_uses_total",
    "serviceaccount_legacy_manual_token_uses_total",
    "serviceaccount_legacy_tokens_total",
    "serviceaccount_stale_tokens_total",
    "serviceaccount_valid_tokens_total",
    // aggregation::who_is_away_is_unavailable_until_it_is_back
    "aggregator_unavailable_apiservice",
    "aggregator_unavailable_apiservice_total",
    // audit::a_webhook_that_refuses_stops_only_strict_servers
    "apiserver_audit_requests_rejected_total",
    // webhooks::tokens_are_reviewed_and_answers_kept
    "authentication_token_cache_fetch_total",
    "authentication_token_cache_request_total",
    // damaged_objects::one_damaged_object_stops_nothing
    "knarr_storage_damaged_objects",
    // tls::slow_requests_time_out
    "apiserver_request_aborts_total",
    "apiserver_request_terminations_total",
];

#[tokio::test]
async fn every_family_is_recorded_in() {
    let folder = std::env::temp_dir().join(format!("metrics-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let policy = folder.join("policy.yaml");
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
        .unwrap();
    let path = folder.clone();
    let s = serve_with(move |config, _| {
        // A directory cannot be written as a file: events are lost, and counted.
        let log = AuditLog { path, ..AuditLog::default() };
        config.audit = Audit { policy_file: Some(policy), log: Some(log), webhook: None };
    })
    .await;
    let admin = s.authority.sign("admin", &["system:masters"], &[], false);
    let bob = s.authority.sign("bob", &[], &[], false);
    let user = User(s.server.transport(knarr_apiserver::UserInfo::new("admin", &["system:masters"])));
    let watch = s.open(Some(&admin), false, get1(&format!("{CONFIG_MAPS}?watch=1")), "").await;
    user.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let mut body = watch.into_body();
    body.frame().await.unwrap().unwrap();
    s.ask(Some(&admin), false, get1(CONFIG_MAPS), "").await;
    s.ask(Some(&bob), false, get1(CONFIG_MAPS), "").await;
    s.ask(Some(&bob), false, get1("/version"), "").await;
    s.ask(Some(&admin), false, get1(CONFIG_MAPS).header("impersonate-user", "x"), "").await;
    s.ask(None, false, get1("/readyz"), "").await;
    s.ask(Some(&admin), false, get1("/api/v1/componentstatuses"), "").await;
    let mut garbage = tokio::net::TcpStream::connect(s.address).await.unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = garbage.read_to_end(&mut Vec::new()).await;
    // A compacted revision cannot be read.
    let old =
        user.post(CONFIG_MAPS, &config_map("b")).await.expect(201)["metadata"]["resourceVersion"].clone();
    user.patch(&format!("{CONFIG_MAPS}/b"), crate::harness::MERGE, &json!({"data": {"k": "w"}}))
        .await
        .expect(200);
    s.store.compact(old.as_str().unwrap().parse::<u64>().unwrap() + 1).await.unwrap();
    let exact = format!("{CONFIG_MAPS}?resourceVersionMatch=Exact&resourceVersion={}", old.as_str().unwrap());
    assert_eq!(user.get(&exact).await.code, 410);
    let service = json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    user.post("/api/v1/namespaces/default/services", &service).await.expect(201);
    let whole = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    user.get_as("/apis", whole).await.expect(200);
    let (code, text) = s.ask(Some(&admin), false, get1("/metrics"), "").await;
    assert_eq!(code, 200);
    let text = text.as_str().unwrap();
    for expected in [
        "apiserver_request_total{code=\"201\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"configmaps\",scope=\"resource\",subresource=\"\",verb=\"POST\",version=\"v1\"} 2",
        "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"configmaps\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"} 1",
        "apiserver_resource_objects{group=\"\",resource=\"configmaps\"}",
        "etcd_request_duration_seconds_count{group=\"\",operation=\"create\",resource=\"configmaps\"}",
        "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"exempt\",priority_level=\"exempt\"}",
        "kube_apiserver_clusterip_allocator_allocation_total{cidr=\"10.96.0.0/12\",scope=\"dynamic\"} 1",
        "kube_apiserver_clusterip_allocator_allocated_ips{cidr=\"10.96.0.0/12\"}",
        "kube_apiserver_nodeport_allocator_allocation_total{scope=\"dynamic\"} 1",
        "kube_apiserver_nodeport_allocator_allocated_ports 1\n",
        "kube_apiserver_nodeport_allocator_available_ports 2767\n",
        "apiserver_storage_list_evaluated_objects_total{group=\"\",resource=\"configmaps\",storage=\"watchcache\"}",
        "apiserver_resource_size_estimate_bytes{group=\"\",resource=\"configmaps\"}",
        "aggregator_unavailable_apiservice{name=\"v1.apps\"} 0",
        "workqueue_adds_total{name=\"RemoteAvailabilityController\"}",
        "process_resident_memory_bytes",
        "kubernetes_feature_enabled{name=\"ConstrainedImpersonation\",stage=\"BETA\"} 1",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let unused: BTreeSet<&str> = s.server.unused_metrics().into_iter().collect();
    let allowed: BTreeSet<&str> = ELSEWHERE.iter().copied().collect();
    let missing: Vec<_> = unused.difference(&allowed).collect();
    assert!(missing.is_empty(), "no test records in {missing:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}
