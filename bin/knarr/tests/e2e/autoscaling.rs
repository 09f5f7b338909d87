//! Metrics of nodes and pods, and autoscaling based on them.

use serde_json::json;

use crate::cluster::shared;
use crate::kubectl::PATIENCE;
use crate::objects::{container, sleeper};
use crate::sandbox::wait_for;

#[test]
fn c9_top_shows_what_nodes_and_pods_use() {
    let kubectl = shared().namespace("c9-top");
    assert!(kubectl.run("api-resources --api-group=metrics.k8s.io -o name").contains("pods.metrics.k8s.io"));
    kubectl.apply(&sleeper("idle"));
    kubectl.ready("idle");
    let nodes = kubectl.eventually("top nodes --no-headers", |out| out.contains("knarr-test"));
    let cells: Vec<&str> = nodes.split_whitespace().collect();
    assert!(cells.len() == 5 && cells[1].ends_with('m') && cells[3].ends_with("Mi"), "{nodes}");
    let pods = kubectl.eventually("top pods --containers --no-headers", |out| out.contains("main"));
    assert!(pods.contains("idle") && pods.contains("Mi"), "{pods}");
    let missing = kubectl.fails("get --raw /apis/metrics.k8s.io/v1beta1/nodes/nobody");
    assert!(missing.contains("not found"), "{missing}");
}

#[test]
fn c9_pods_come_with_load_and_go_without() {
    let kubectl = shared().namespace("c9");
    // The script uses the CPU while the file exists; only the first pod has it.
    let script = "while true; do if [ -f /load/on ]; then i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; \
                  else sleep 0.2; fi; done";
    let mut main = container(script);
    main["resources"] = json!({"requests": {"cpu": "50m"}});
    main["volumeMounts"] = json!([{"name": "load", "mountPath": "/load"}]);
    let folder = shared().sandbox.path("c9");
    std::fs::create_dir_all(&folder).expect("folder");
    std::fs::write(folder.join("on"), "").expect("file");
    kubectl.apply(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "burner"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "burner"}},
            "template": {"metadata": {"labels": {"app": "burner"}}, "spec": {
                "terminationGracePeriodSeconds": 0, "containers": [main],
                "volumes": [{"name": "load", "hostPath": {"path": folder}}]}}}}));
    kubectl.apply(&json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "burner"}, "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "burner"},
            "minReplicas": 1, "maxReplicas": 3,
            "metrics": [{"type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}}));
    let patience = PATIENCE * 2;
    wait_for("three pods", patience, || {
        (kubectl.path("deployment burner", "{.spec.replicas}") == "3").then_some(())
    });
    let told = kubectl.event("burner", "SuccessfulRescale");
    assert!(told.contains("reason: cpu resource utilization (percentage of request) above target"), "{told}");
    let table = kubectl.run("get hpa burner --no-headers");
    assert!(table.contains("/50%"), "{table}");
    std::fs::remove_file(folder.join("on")).expect("file");
    wait_for("one pod", patience, || {
        (kubectl.path("deployment burner", "{.spec.replicas}") == "1").then_some(())
    });
    let reasons = kubectl.path("hpa burner", "{.status.conditions[*].reason}");
    assert!(reasons.contains("ValidMetricFound"), "{reasons}");
    kubectl.run("delete hpa,deployment burner");
}
