//! Pods that are resized in place.

use k8s_openapi::api::core::v1::PodCondition;
use knarr_client::Patch;

use super::*;

/// Adds a pod that requests this much of the node's four CPUs.
fn add(lab: &Lab, name: &str, cpu: &str) {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "generation": 1},
        "spec": web(json!({"resources": {"requests": {"cpu": cpu}}})),
    });
    pod["spec"]["nodeName"] = json!("n1");
    lab.api.add(&Pod::decode(pod.to_string().as_bytes()).unwrap());
}

async fn resize(lab: &Lab, name: &str, cpu: &str) {
    let generation = get(lab, name).metadata.generation.map(|n| n + 1);
    let container = json!({"name": "main", "resources": {"requests": {"cpu": cpu}}});
    let patch = json!({"metadata": {"generation": generation}, "spec": {"containers": [container]}});
    lab.api.client().patch::<Pod>("default", name, None, &Patch::Strategic(patch)).await.unwrap();
}

fn get(lab: &Lab, name: &str) -> Pod {
    lab.api.get("default", name).unwrap()
}

/// Returns the CPU requests that the pod is allocated, and those that its container has.
fn cpus(lab: &Lab, name: &str) -> (String, String) {
    let status = get(lab, name).status.unwrap_or_default();
    let container = status.container_statuses.into_iter().flatten().next().unwrap_or_default();
    let cpu = |list: Option<crate::resources::ResourceList>| {
        list.and_then(|list| list.get("cpu").map(|q| q.0.clone())).unwrap_or_default()
    };
    (cpu(container.allocated_resources), cpu(container.resources.and_then(|r| r.requests)))
}

fn pending(lab: &Lab, name: &str) -> Option<PodCondition> {
    let conditions = get(lab, name).status.and_then(|s| s.conditions);
    conditions.into_iter().flatten().find(|c| c.type_ == "PodResizePending")
}

pub(super) fn resizing(lab: &Lab, name: &str) -> Option<PodCondition> {
    let conditions = get(lab, name).status.and_then(|s| s.conditions);
    conditions.into_iter().flatten().find(|c| c.type_ == "PodResizeInProgress")
}

fn is(lab: &Lab, name: &str, cpu: &str) -> bool {
    cpus(lab, name) == (cpu.to_owned(), cpu.to_owned())
}

async fn until_pending(lab: &Lab, name: &str, reason: &str) -> PodCondition {
    lab.until(reason, |lab| pending(lab, name).is_some_and(|c| c.reason.as_deref() == Some(reason))).await;
    pending(lab, name).unwrap()
}

/// Returns the CPU shares that a container was given last.
fn shares(lab: &Lab) -> Option<u64> {
    lab.runtime.lock().limits.last().and_then(|(_, limits)| limits.cpu_shares)
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_does_not_fit_waits_until_another_pod_is_gone() {
    let lab = Lab::new().await;
    add(&lab, "web", "1");
    add(&lab, "other", "2");
    lab.until("both", |lab| is(lab, "web", "1") && is(lab, "other", "2")).await;

    // The node has room for one more CPU.
    resize(&lab, "web", "2").await;
    lab.until("the resize", |lab| is(lab, "web", "2") && resizing(lab, "web").is_none()).await;
    assert_eq!((pending(&lab, "web"), shares(&lab)), (None, Some(2048)));

    resize(&lab, "web", "3").await;
    let condition = until_pending(&lab, "web", "Deferred").await;
    let message = "Node didn't have enough resource: cpu, requested: 3000, used: 2000, capacity: 4000";
    assert_eq!(condition.message.as_deref(), Some(message));
    assert_eq!((condition.status.as_str(), condition.observed_generation), ("True", Some(3)));
    assert_eq!(cpus(&lab, "web"), ("2".to_owned(), "2".to_owned()));

    resize(&lab, "web", "40").await;
    let condition = until_pending(&lab, "web", "Infeasible").await;
    let message = "Node didn't have enough capacity: cpu, requested: 40000, capacity: 4000";
    assert_eq!(condition.message.as_deref(), Some(message));
    resize(&lab, "web", "4").await;
    until_pending(&lab, "web", "Deferred").await;
    assert_eq!(shares(&lab), Some(2048), "nothing was applied");

    let options = DeleteOptions { grace_period_seconds: Some(1), ..DeleteOptions::default() };
    lab.api.client().delete::<Pod>("default", "other", &options).await.unwrap();
    lab.until("the resize", |lab| is(lab, "web", "4") && pending(lab, "web").is_none()).await;
    assert_eq!(shares(&lab), Some(4096));
    lab.until("its end", |lab| resizing(lab, "web").is_none()).await;
    let emitted: Vec<String> = lab.events().await.into_iter().filter(|e| e.starts_with("Resize")).collect();
    let body = |cpu: &str, generation: i64| {
        format!(
            "{{\"containers\":[{{\"name\":\"main\",\"resources\":{{\"requests\":{{\"cpu\":\"{cpu}\"}}}}}}],\
             \"generation\":{generation}"
        )
    };
    for expected in [
        format!("ResizeStarted: Pod resize started: {}}}", body("2", 2)),
        format!("ResizeCompleted: Pod resize completed: {}}}", body("2", 2)),
        format!(
            "ResizeDeferred: Pod resize OutOfcpu: {},\"error\":\"Node didn't have enough resource: cpu, \
             requested: 3000, used: 2000, capacity: 4000\"}}",
            body("3", 3)
        ),
        format!(
            "ResizeInfeasible: Pod resize Infeasible: {},\"error\":\"Node didn't have enough capacity: cpu, \
             requested: 40000, capacity: 4000\"}}",
            body("40", 4)
        ),
        format!("ResizeCompleted: Pod resize completed: {}}}", body("4", 5)),
    ] {
        assert!(emitted.contains(&expected), "{expected} {emitted:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_another_pod_gives_back_and_what_the_node_gains_is_used() {
    let lab = Lab::new().await;
    add(&lab, "web", "2");
    add(&lab, "other", "2");
    lab.until("both", |lab| is(lab, "web", "2") && is(lab, "other", "2")).await;
    resize(&lab, "web", "3").await;
    until_pending(&lab, "web", "Deferred").await;
    resize(&lab, "other", "1").await;
    lab.until("the resize", |lab| is(lab, "web", "3") && is(lab, "other", "1")).await;
    assert_eq!(pending(&lab, "web"), None);

    resize(&lab, "web", "5").await;
    until_pending(&lab, "web", "Infeasible").await;
    let mut node: Node = lab.api.get("", "n1").unwrap();
    // The node's status is a subresource.
    let more = json!({"cpu": "6", "memory": "8Gi", "pods": "110"});
    node.status.as_mut().unwrap().allocatable = Some(serde_json::from_value(more).unwrap());
    lab.api.client().update_status(&node).await.unwrap();
    lab.until("the resize", |lab| is(lab, "web", "5") && pending(lab, "web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_gives_no_pod_more_than_it_had() {
    let mut lab = Lab::new().await;
    add(&lab, "web", "1");
    add(&lab, "other", "2");
    lab.until("both", |lab| is(lab, "web", "1") && is(lab, "other", "2")).await;
    lab.stop.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The change is made while no kubelet runs.
    resize(&lab, "web", "3").await;
    lab.start().await;
    until_pending(&lab, "web", "Deferred").await;
    assert_eq!(cpus(&lab, "web"), ("1".to_owned(), "1".to_owned()));
    let given = lab.runtime.lock().limits.iter().filter_map(|(_, l)| l.cpu_shares).max();
    assert!(given.is_none_or(|shares| shares <= 2048), "{given:?}");

    // The machine was off: the pod is admitted anew, with its allocated resources.
    lab.stop.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    {
        let mut state = lab.runtime.lock();
        state.sandboxes.clear();
        state.containers.clear();
    }
    lab.start().await;
    lab.until("both again", |lab| {
        lab.runtime.lock().containers.iter().filter(|(c, _)| c.started_at.is_some()).count() == 2
    })
    .await;
    until_pending(&lab, "web", "Deferred").await;
    lab.until("both again", |lab| is(lab, "web", "1") && is(lab, "other", "2")).await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_cannot_be_carried_out_says_so_and_is_tried_again() {
    let lab = Lab::new().await;
    add(&lab, "web", "1");
    lab.until("the pod", |lab| is(lab, "web", "1")).await;
    lab.runtime.lock().limit_fault = Some("the kernel refuses".into());
    resize(&lab, "web", "2").await;
    lab.until("an error", |lab| resizing(lab, "web").is_some_and(|c| c.reason.as_deref() == Some("Error")))
        .await;
    let condition = resizing(&lab, "web").unwrap();
    assert!(condition.message.unwrap().contains("the kernel refuses"));
    assert_eq!(condition.observed_generation, Some(2));
    assert_eq!(cpus(&lab, "web"), ("2".to_owned(), "1".to_owned()), "allocated, but not applied yet");
    lab.runtime.lock().limit_fault = None;
    lab.until("the resize", |lab| is(lab, "web", "2") && resizing(lab, "web").is_none()).await;
    let emitted: Vec<String> = lab.events().await;
    let errors: Vec<&String> =
        emitted.iter().filter(|e| e.starts_with("ResizeError: Pod resize error: {")).collect();
    assert_eq!(errors.len(), 1, "{emitted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_not_lowered_below_what_is_in_use() {
    let lab = Lab::new().await;
    let limits =
        |memory: &str| json!({"requests": {"cpu": "1", "memory": "1Mi"}, "limits": {"memory": memory}});
    lab.add(web(json!({"resources": limits("64Mi")})));
    lab.until("the pod", |lab| lab.phase() == "Running").await;
    let patch = json!({"metadata": {"generation": 2}, "spec": {"containers": [
        {"name": "main", "resources": limits("32Mi")},
    ]}});
    lab.api.client().patch::<Pod>("default", "web", None, &Patch::Strategic(patch)).await.unwrap();
    let mentions = |lab: &Lab, text: &str| {
        resizing(lab, "web").and_then(|c| c.message).is_some_and(|message| message.contains(text))
    };
    lab.until("an error", |lab| mentions(lab, "missing container \"main\" memory usage")).await;
    lab.runtime.lock().memory_usage = 48 << 20;
    lab.until("another one", |lab| mentions(lab, "below current usage")).await;
    let failed = |lab: &Lab| resizing(lab, "web").is_some_and(|c| c.reason.as_deref() == Some("Error"));
    lab.until("an error", failed).await;
    let message = resizing(&lab, "web").unwrap().message.unwrap();
    let expected = "cannot decrease memory limits: attempting to set container \"main\" memory limit (33554432) \
                    below current usage (50331648)";
    assert!(message.contains(expected), "{message}");
    assert_eq!(lab.runtime.lock().limits.len(), 0, "nothing was applied");
    lab.runtime.lock().memory_usage = 16 << 20;
    lab.until("the resize", |lab| resizing(lab, "web").is_none()).await;
    let applied = lab.runtime.lock().limits.last().and_then(|(_, limits)| limits.memory_limit);
    assert_eq!(applied, Some(32 << 20));
}

/// Adds a pod with one CPU and 64Mi of memory; resizes it to these values after a restart of the kubelet.
async fn resize_after_restart(lab: &mut Lab, cpu: &str, memory: &str) {
    let resources = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu, "memory": "1Mi"}, "limits": {"memory": memory}});
    lab.add(web(json!({"resources": resources("1", "64Mi")})));
    lab.until("the pod", |lab| lab.phase() == "Running").await;
    lab.stop.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    lab.start().await;
    let container = json!({"name": "main", "resources": resources(cpu, memory)});
    let patch = json!({"metadata": {"generation": 2}, "spec": {"containers": [container]}});
    lab.api.client().patch::<Pod>("default", "web", None, &Patch::Strategic(patch)).await.unwrap();
}

fn error(lab: &Lab) -> String {
    let failed = resizing(lab, "web").filter(|c| c.reason.as_deref() == Some("Error"));
    failed.and_then(|c| c.message).unwrap_or_default()
}

/// A kubelet that has just started asks the runtime for the limits in force.
#[tokio::test(start_paused = true)]
async fn what_is_in_use_matters_to_lower_limits_alone() {
    // The runtime reports no usage.
    let mut lab = Lab::new().await;
    resize_after_restart(&mut lab, "2", "64Mi").await;
    lab.until("the resize", |lab| is(lab, "web", "2") && resizing(lab, "web").is_none()).await;
    let emitted = lab.events().await;
    assert!(!emitted.iter().any(|e| e.starts_with("ResizeError")), "{emitted:?}");

    let mut lab = Lab::new().await;
    resize_after_restart(&mut lab, "1", "32Mi").await;
    lab.until("an error", |lab| error(lab).contains("missing container \"main\" memory usage")).await;
    lab.runtime.lock().memory_usage = 32 << 20;
    let expected =
        "attempting to set container \"main\" memory limit (33554432) below current usage (33554432)";
    lab.until("another one", |lab| error(lab).contains(expected)).await;
    lab.runtime.lock().memory_usage = 31 << 20;
    lab.until("the resize", |lab| resizing(lab, "web").is_none()).await;
}

/// The runtime does not report limits, either.
#[tokio::test(start_paused = true)]
async fn a_limit_that_is_not_known_may_be_lowered() {
    let mut lab = Lab::new().await;
    lab.runtime.lock().hides_limits = true;
    resize_after_restart(&mut lab, "2", "64Mi").await;
    lab.until("an error", |lab| error(lab).contains("missing container \"main\" memory usage")).await;
    lab.runtime.lock().memory_usage = (64 << 20) + 1;
    let expected =
        "attempting to set container \"main\" memory limit (67108864) below current usage (67108865)";
    lab.until("another one", |lab| error(lab).contains(expected)).await;
    // The usage equals the new limit, which is allowed: the old limit cannot have been lower.
    lab.runtime.lock().memory_usage = 64 << 20;
    lab.until("the resize", |lab| is(lab, "web", "2") && resizing(lab, "web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_fails_keeps_no_container_from_starting_again() {
    let lab = Lab::new().await;
    let mut spec = web(json!({"resources": {"requests": {"cpu": "1"}}}));
    let other = json!({"name": "other", "image": "web:1"});
    spec["containers"].as_array_mut().unwrap().push(other);
    lab.add(spec);
    lab.until("both", |lab| lab.state("main") == "Running" && lab.state("other") == "Running").await;
    lab.runtime.lock().limit_fault = Some("the kernel refuses".into());
    resize(&lab, "web", "2").await;
    lab.until("an error", |lab| resizing(lab, "web").is_some_and(|c| c.reason.as_deref() == Some("Error")))
        .await;
    lab.runtime.exit("other", 1);
    lab.until("a new start", |lab| {
        lab.container("other").restart_count == 1 && lab.state("other") == "Running"
    })
    .await;
    assert!(resizing(&lab, "web").is_some(), "still not carried out");
    lab.runtime.lock().limit_fault = None;
    lab.until("the resize", |lab| resizing(lab, "web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_resize_waits_for_labels_and_taints_of_the_node() {
    let lab = Lab::new().await;
    let mut spec = web(json!({"resources": {"requests": {"cpu": "1"}}}));
    spec["nodeSelector"] = json!({"disk": "ssd"});
    let node = |labels: Value| json!({"metadata": {"labels": labels}});
    let label = async |labels: Value| {
        lab.api.client().patch::<Node>("", "n1", None, &Patch::Strategic(node(labels))).await.unwrap();
    };
    label(json!({"disk": "ssd"})).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    lab.add(spec);
    lab.until("the pod", |lab| lab.phase() == "Running").await;
    label(json!({"disk": null})).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    resize(&lab, "web", "2").await;
    until_pending(&lab, "web", "Deferred").await;
    label(json!({"disk": "ssd"})).await;
    lab.until("the resize", |lab| is(lab, "web", "2") && pending(lab, "web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_starts_anew_gets_its_lower_limit_whatever_it_uses() {
    let lab = Lab::new().await;
    let limits = |memory: &str| {
        json!({
            "resources": {"requests": {"cpu": "1", "memory": "1Mi"}, "limits": {"memory": memory}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
        })
    };
    lab.add(web(limits("64Mi")));
    lab.until("the pod", |lab| lab.phase() == "Running").await;
    lab.runtime.lock().memory_usage = 48 << 20;
    let mut container = limits("32Mi");
    container["name"] = "main".into();
    let patch = json!({"metadata": {"generation": 2}, "spec": {"containers": [container]}});
    lab.api.client().patch::<Pod>("default", "web", None, &Patch::Strategic(patch)).await.unwrap();
    lab.until("the restart", |lab| lab.container("main").restart_count == 1).await;
    lab.until("the resize", |lab| resizing(lab, "web").is_none()).await;
}

/// While a pod waits, its status shows the sum of its limits, and while it runs, those of its cgroup. Limits that
/// are removed from the spec disappear from the status.
#[tokio::test(start_paused = true)]
async fn the_status_of_a_pod_settles() {
    let lab = Lab::new().await;
    let mut spec = web(json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}));
    spec["containers"].as_array_mut().unwrap().push(json!({"name": "other", "image": "web:1"}));
    lab.add(spec);
    lab.until("readiness", |lab| lab.container("main").ready && lab.container("other").ready).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let resources = lab.pod().status.unwrap().resources.unwrap();
    assert_eq!(serde_json::to_value(&resources).unwrap(), json!({"requests": {"cpu": "1"}}));
    let writes = lab.api.writes().len();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(lab.api.writes().len(), writes, "{:?}", lab.api.writes().last());
}
