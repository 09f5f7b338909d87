//! `kubectl cordon`, `uncordon` and `drain` with its options.

use serde_json::json;

use crate::cluster::Cluster;
use crate::objects::{sleeper, web};

const NODE: &str = "knarr-test";

#[test]
fn e6_drain_with_every_option() {
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("e6");
    kubectl.run("cordon knarr-test");
    assert_eq!(kubectl.path("node knarr-test", "{.spec.taints[*].key}"), "node.kubernetes.io/unschedulable");
    kubectl.apply(&sleeper("waits"));
    let why = kubectl.event("waits", "FailedScheduling");
    assert!(why.contains("node(s) were unschedulable"), "{why}");
    kubectl.run("uncordon knarr-test");
    kubectl.ready("waits");

    let refused = |words: &str| kubectl.fails(&format!("drain {NODE} --timeout=20s {words}"));
    let why = refused("");
    assert!(why.contains("cannot delete Pods that declare no controller"), "{why}");
    kubectl.run("uncordon knarr-test");
    let rehearsal = kubectl.run("drain knarr-test --force --dry-run=server");
    assert!(rehearsal.contains("(server dry run)"), "{rehearsal}");
    let rehearsal = kubectl.run("drain knarr-test --force --dry-run=client");
    assert!(rehearsal.contains("node/knarr-test drained (dry run)"), "{rehearsal}");
    assert_eq!(kubectl.path("pod waits", "{.status.phase}"), "Running");

    let mut holder = sleeper("holder");
    holder["metadata"]["labels"] = json!({"app": "holder"});
    holder["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "tmp", "mountPath": "/tmp/x"}]);
    holder["spec"]["volumes"] = json!([{"name": "tmp", "emptyDir": {}}]);
    kubectl.apply(&holder);
    kubectl.ready("holder");
    let why = refused("--force");
    assert!(why.contains("cannot delete Pods with local storage"), "{why}");

    let mut agent = web("agent", 1);
    agent["kind"] = json!("DaemonSet");
    agent["spec"].as_object_mut().expect("spec").remove("replicas");
    kubectl.apply(&agent);
    kubectl.run("uncordon knarr-test");
    kubectl.run("rollout status daemonset/agent --timeout=90s");
    let why = refused("--force --delete-emptydir-data");
    assert!(why.contains("cannot delete DaemonSet-managed Pods"), "{why}");

    let chosen = "--force --delete-emptydir-data --ignore-daemonsets --timeout=60s --grace-period=1";
    kubectl.run("label node knarr-test maintenance=tonight");
    kubectl.run(&format!(
        "drain --selector=maintenance=tonight --chunk-size=1 {chosen} --pod-selector=app=holder"
    ));
    kubectl.run("wait --for=delete pod/holder --timeout=30s");
    assert_eq!(kubectl.path("pod waits", "{.status.phase}"), "Running", "not selected");

    kubectl.run("uncordon knarr-test");
    kubectl.apply(
        &json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "waits"}}}}),
    );
    kubectl.until("pdb keep", "{.status.currentHealthy}", "1");
    let why = refused("--force --delete-emptydir-data --ignore-daemonsets");
    assert!(why.contains("Cannot evict pod as it would violate the pod's disruption budget"), "{why}");
    kubectl.run(&format!("drain {NODE} {chosen} --disable-eviction --skip-wait-for-delete-timeout=60"));
    kubectl.run("wait --for=delete pod/waits --timeout=30s");
    let left = kubectl.path("pods", "{.items[*].metadata.labels.app}");
    assert_eq!(left, "agent", "daemons stay");
    kubectl.run("uncordon knarr-test");
}
