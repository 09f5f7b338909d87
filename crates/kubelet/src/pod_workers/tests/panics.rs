//! After a worker panics, another one takes up its pod.

use knarr_client::metrics;

use super::*;

/// Returns the health of the task of this name.
fn health(lab: &Lab, name: &str) -> Option<Result<(), String>> {
    lab.supervisor.health().into_iter().find(|task| task.name == name).map(|task| task.result)
}

async fn until_down(lab: &Lab, name: &str) {
    lab.until("a failure", |lab| health(lab, name).is_some_and(|result| result.is_err())).await;
    assert_eq!(health(lab, name), Some(Err("it panicked: a fault in the code".to_owned())));
    lab.until("another life", |lab| health(lab, name).is_none_or(|result| result.is_ok())).await;
    assert!(metrics::render().contains(&format!("knarr_task_restarts_total{{task=\"{name}\"}} ")));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_worker_panics_is_started_and_stopped_all_the_same() {
    let lab = Lab::new().await;
    lab.runtime.lock().panics.insert("sandbox".into());
    lab.add(web(json!({})));
    until_down(&lab, "pod-workers").await;
    lab.until("readiness", |lab| lab.container("main").ready).await;
    assert_eq!(lab.runtime.calls(), ["sandbox web", "pull web:1", "start main#0"]);

    // The next worker does not start running containers again.
    lab.runtime.lock().panics.insert("stop".into());
    lab.delete(10).await;
    until_down(&lab, "pod-workers").await;
    lab.until_gone().await;
    let calls = lab.runtime.calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("start ")).count(), 1, "{calls:?}");
    lab.until("the worker's end", |lab| health(lab, "pod-workers").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_panics_goes_on() {
    let lab = Lab::new().await;
    lab.runtime.lock().panics.insert("exec".into());
    lab.add(web(json!({
        "readinessProbe": {"exec": {"command": ["ready"]}, "periodSeconds": 2, "failureThreshold": 1,
            "successThreshold": 1, "timeoutSeconds": 1},
    })));
    until_down(&lab, "probes").await;
    lab.until("readiness", |lab| lab.container("main").ready).await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_cannot_begin_may_try_again() {
    let mut lab = Lab::new().await;
    lab.stop.cancel();
    lab.runtime.lock().panics.insert("list".into());
    lab.start().await;
    lab.add(web(json!({})));
    until_down(&lab, "kubelet").await;
    lab.until("readiness", |lab| lab.container("main").ready).await;
    assert_eq!(lab.runtime.calls(), ["sandbox web", "pull web:1", "start main#0"]);
    let tasks: Vec<_> = lab.supervisor.health().into_iter().map(|task| task.name).collect();
    for name in ["log-rotation", "object-changes", "pod-status", "runtime-events"] {
        assert!(tasks.contains(&name.into()), "{name}: {tasks:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn health_names_what_is_lastingly_down_and_a_loop_that_stands_still() {
    let lab = Lab::new().await;
    let failing = |lab: &Lab| -> Vec<String> {
        let ill = lab.kubelet().health().into_iter().filter(|check| check.result.is_err());
        ill.map(|check| check.name.into_owned()).collect()
    };
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(failing(&lab).is_empty());
    let stop = CancellationToken::new();
    let ill = lab.supervisor.spawn("ill", stop.clone(), |_| async { panic!("a fault in the code") });
    // The health check fails, but not after the first panics.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(failing(&lab).is_empty());
    lab.until("a lasting failure", |lab| failing(lab) == ["ill"]).await;
    stop.cancel();
    ill.await.unwrap();
    assert!(failing(&lab).is_empty());
    lab.stop.cancel();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(failing(&lab), ["syncloop"]);
}
