//! The kubelet's counters of pods with their own user namespace.

use super::*;
use crate::runtime::RuntimeHandler;

fn own_users(image: &str) -> Value {
    let mut spec = web(json!({"image": image, "imagePullPolicy": "Never"}));
    spec["hostUsers"] = json!(false);
    spec
}

/// Returns the counts of started pods with a user namespace, and of those that failed to start.
fn counted(lab: &Lab) -> [String; 2] {
    let metrics = lab.kubelet().metrics();
    ["", "_errors"].map(|what| {
        let name = format!("kubelet_started_user_namespaced_pods{what}_total ");
        metrics.lines().find_map(|line| line.strip_prefix(&name)).expect("a count").to_owned()
    })
}

async fn lab() -> Lab {
    let lab = Lab::new().await;
    let handler = RuntimeHandler { user_namespaces: true, ..RuntimeHandler::default() };
    lab.runtime.lock().features.handlers.push(handler);
    lab.runtime.lock().images.insert("web:1".into());
    assert_eq!(counted(&lab), ["0", "0"]);
    lab
}

#[tokio::test(start_paused = true)]
async fn those_that_start_are_counted() {
    let lab = lab().await;
    lab.add(own_users("web:1"));
    lab.until("readiness", |lab| lab.container("main").ready).await;
    assert_eq!(counted(&lab), ["1", "0"]);
}

/// Source: `SyncPod` of `k8s.io/kubernetes/pkg/kubelet/kuberuntime`: a pod whose container fails counts as failed,
/// too.
#[tokio::test(start_paused = true)]
async fn those_that_fail_are_counted_too() {
    let lab = lab().await;
    lab.add(own_users("none:1"));
    lab.until("a failure", |lab| counted(lab) == ["1", "1"]).await;
    // A retry that makes no new sandbox does not count again.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(counted(&lab), ["1", "1"]);
}

#[tokio::test(start_paused = true)]
async fn others_are_not_counted() {
    let lab = lab().await;
    lab.add(web(json!({})));
    lab.until("readiness", |lab| lab.container("main").ready).await;
    assert_eq!(counted(&lab), ["0", "0"]);
}
