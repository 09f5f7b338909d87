//! Containers that are restarted for their new resources, while the kubelet is stopped or restarted at different
//! moments.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use knarr_client::Patch;
use knarr_runtime::containers::Cgroups;
use serde_json::{Value, json};

use super::resize::resizing;
use super::{Lab, web};
use crate::allocation;
use crate::config::PodDirs;

/// A container that is restarted for a change of its memory, with this memory request.
fn restarted_for_memory(memory: &str) -> Value {
    json!({
        "resources": {"requests": {"cpu": "1", "memory": memory}, "limits": {"memory": "64Mi"}},
        "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
    })
}

async fn add_restarted_for_memory(lab: &Lab) {
    add_with_policy(lab, "OnFailure").await;
}

async fn add_with_policy(lab: &Lab, policy: &str) {
    // The container exits with code 0 when it is asked to stop, as a job does that saves its progress.
    lab.runtime.lock().obliging.insert("main".into());
    let mut spec = web(restarted_for_memory("1Mi"));
    spec["restartPolicy"] = policy.into();
    lab.add(spec);
    lab.until("the pod", |lab| lab.phase() == "Running").await;
}

async fn give_memory(lab: &Lab, memory: &str) {
    let mut container = restarted_for_memory(memory);
    container["name"] = "main".into();
    let generation = lab.pod().metadata.generation.unwrap_or(1) + 1;
    let patch = json!({"metadata": {"generation": generation}, "spec": {"containers": [container]}});
    lab.api.client().patch::<Pod>("default", "web", None, &Patch::Strategic(patch)).await.unwrap();
}

/// Waits until the container runs for the nth time after its first start, without a back-off.
async fn until_restarted(lab: &Lab, count: i32) {
    let begun = tokio::time::Instant::now();
    lab.until("the restart", |lab| {
        lab.container("main").restart_count == count && lab.state("main") == "Running"
    })
    .await;
    lab.until("the resize", |lab| resizing(lab, "web").is_none()).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

async fn until_replaced(lab: &Lab) {
    lab.until("the restart", |lab| {
        assert_ne!(lab.phase(), "Succeeded");
        lab.container("main").restart_count == 1 && lab.state("main") == "Running"
    })
    .await;
    lab.until("the resize", |lab| resizing(lab, "web").is_none()).await;
    let limits = lab.runtime.lock().containers[0].1.annotations.clone();
    assert!(limits[crate::labels::CONTAINER_RESOURCES].contains("\"memoryRequest\":2097152"), "{limits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_stopped_for_its_limits_is_not_over() {
    let lab = Lab::new().await;
    add_restarted_for_memory(&lab).await;
    give_memory(&lab, "2Mi").await;
    until_replaced(&lab).await;
    let calls = lab.runtime.calls();
    assert_eq!(calls[calls.len() - 2..], ["stop main#0 30", "start main#1"]);
    let emitted = lab.events().await;
    assert!(emitted.contains(&"Killing: Container main resize requires restart".to_owned()), "{emitted:?}");
    // The resize restarts the container once; an exit with code 0 after it ends the pod.
    lab.runtime.exit("main", 0);
    lab.until("its end", |lab| lab.phase() == "Succeeded").await;
}

/// A restart for a resize is no crash. As upstream, a container that returns to earlier resources waits for the
/// back-off, and so does one that crashes.
#[tokio::test(start_paused = true)]
async fn one_resize_after_another_does_not_wait() {
    let lab = Lab::new().await;
    add_restarted_for_memory(&lab).await;
    for (count, memory) in [(1, "2Mi"), (2, "3Mi"), (3, "4Mi")] {
        give_memory(&lab, memory).await;
        until_restarted(&lab, count).await;
    }
    let emitted = lab.events().await;
    assert!(!emitted.iter().any(|e| e.starts_with("BackOff")), "{emitted:?}");
    give_memory(&lab, "3Mi").await;
    lab.until_state("main", "Waiting CrashLoopBackOff").await;
    lab.until("the restart", |lab| lab.container("main").restart_count == 4).await;
    lab.runtime.exit("main", 1);
    lab.until_state("main", "Waiting CrashLoopBackOff").await;
}

/// Stops the kubelet at any moment, and starts another one that remembers nothing.
async fn restart(lab: &mut Lab) {
    lab.stop.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    lab.start().await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_starts_before_the_stop_of_a_container_stops_it_for_its_limits() {
    let mut lab = Lab::new().await;
    add_restarted_for_memory(&lab).await;
    lab.runtime.lock().stubborn.insert("main".into());
    give_memory(&lab, "2Mi").await;
    lab.until("the stop", |lab| lab.runtime.calls().contains(&"stop main#0 30".to_owned())).await;
    lab.runtime.lock().stubborn.clear();
    restart(&mut lab).await;
    until_replaced(&lab).await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_starts_after_the_stop_of_a_container_starts_it_with_its_limits() {
    let mut lab = Lab::new().await;
    add_restarted_for_memory(&lab).await;
    lab.runtime.lock().panics.insert("create".into());
    give_memory(&lab, "2Mi").await;
    lab.until("the fault", |lab| lab.runtime.lock().panics.is_empty()).await;
    assert_eq!(lab.runtime.lock().containers[0].0.exit_code, Some(0));
    restart(&mut lab).await;
    until_replaced(&lab).await;
}

/// A kubelet that has just started does not know the resources of its running containers.
#[tokio::test(start_paused = true)]
async fn a_resize_while_no_kubelet_runs_restarts_the_container() {
    let mut lab = Lab::new().await;
    add_restarted_for_memory(&lab).await;
    lab.stop.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    give_memory(&lab, "2Mi").await;
    lab.start().await;
    until_replaced(&lab).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ends_of_itself_before_it_is_resized_is_over() {
    let lab = Lab::new().await;
    lab.runtime.lock().obliging.insert("main".into());
    let mut spec = web(restarted_for_memory("1Mi"));
    spec["restartPolicy"] = "OnFailure".into();
    spec["containers"].as_array_mut().unwrap().push(json!({"name": "other", "image": "web:1"}));
    lab.add(spec);
    lab.until("both", |lab| lab.state("main") == "Running" && lab.state("other") == "Running").await;
    lab.runtime.exit("main", 0);
    lab.until_state("main", "Terminated 0 Completed").await;
    give_memory(&lab, "2Mi").await;
    lab.until("the resize", |lab| {
        let given = lab.container("main").allocated_resources.unwrap_or_default();
        given.get("memory").is_some_and(|q| q.0 == "2Mi") && resizing(lab, "web").is_none()
    })
    .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (lab.state("main").as_str(), lab.container("main").restart_count),
        ("Terminated 0 Completed", 0)
    );
}

/// Returns the ids of the containers that are recorded on disk as to be replaced.
fn on_record(lab: &Lab) -> Vec<String> {
    let record = allocation::read(&PodDirs::new(&lab.root), "u1").unwrap();
    record.into_iter().flat_map(|record| record.replaced).collect()
}

/// Waits until the pod has succeeded, and checks that no container was started again.
async fn until_succeeded(lab: &Lab) {
    lab.until("its end", |lab| lab.phase() == "Succeeded").await;
    assert_eq!(lab.container("main").restart_count, 0);
    let starts = lab.runtime.calls().iter().filter(|call| call.starts_with("start ")).count();
    assert_eq!(starts, 1, "{:?}", lab.runtime.calls());
}

#[tokio::test(start_paused = true)]
async fn what_ends_of_itself_while_a_fault_is_in_the_way_of_its_stop_is_over() {
    for policy in ["OnFailure", "Never"] {
        let lab = Lab::new().await;
        add_with_policy(&lab, policy).await;
        *lab.volumes.fault.lock().unwrap() = Some("there is no such ConfigMap".into());
        give_memory(&lab, "2Mi").await;
        lab.until("the resize", |lab| resizing(lab, "web").is_some()).await;
        let emitted = lab.events().await;
        assert!(emitted.contains(&"FailedMount: there is no such ConfigMap".to_owned()), "{emitted:?}");
        assert_eq!(on_record(&lab), [""; 0], "the container was not asked to stop");
        lab.runtime.exit("main", 0);
        until_succeeded(&lab).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_ends_of_itself_right_before_its_stop_is_over() {
    let lab = Lab::new().await;
    add_restarted_for_memory(&lab).await;
    let runtime = lab.runtime.clone();
    *lab.volumes.on_mount.lock().unwrap() = Some(Box::new(move || runtime.exit("main", 0)));
    give_memory(&lab, "2Mi").await;
    until_succeeded(&lab).await;
    assert_eq!(on_record(&lab), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_to_stop_is_on_record_before() {
    let mut lab = Lab::new().await;
    add_restarted_for_memory(&lab).await;
    lab.runtime.lock().panics.insert("stop".into());
    give_memory(&lab, "2Mi").await;
    lab.until("the fault", |lab| lab.runtime.lock().panics.is_empty()).await;
    assert_eq!(on_record(&lab), [lab.runtime.lock().containers[0].0.id.clone()]);
    // Whether the container ended because of the stop is not known any more.
    lab.runtime.exit("main", 0);
    restart(&mut lab).await;
    until_replaced(&lab).await;
    lab.until("its end on record", |lab| on_record(lab).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_stopped_for_its_probe_is_not_begun_anew_for_its_limits() {
    let lab = Lab::new().await;
    let mut spec = web(restarted_for_memory("1Mi"));
    spec["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["alive"]}, "periodSeconds": 1, "failureThreshold": 1});
    spec["containers"].as_array_mut().unwrap().push(json!({"name": "other", "image": "web:1"}));
    spec["restartPolicy"] = "Never".into();
    lab.add(spec);
    lab.until("both", |lab| lab.state("main") == "Running" && lab.state("other") == "Running").await;
    *lab.volumes.fault.lock().unwrap() = Some("there is no such ConfigMap".into());
    give_memory(&lab, "2Mi").await;
    lab.until("the resize", |lab| resizing(lab, "web").is_some()).await;
    lab.runtime.lock().failing_commands.insert("alive".into(), (1, String::new()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    *lab.volumes.fault.lock().unwrap() = None;
    lab.until_state("main", "Terminated 143 Error").await;
    lab.until("the resize", |lab| resizing(lab, "web").is_none()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let emitted = lab.events().await;
    assert!(emitted.contains(&"Killing: Container main failed liveness probe".to_owned()), "{emitted:?}");
    assert_eq!(
        (lab.state("main").as_str(), lab.container("main").restart_count),
        ("Terminated 143 Error", 0)
    );
}

/// A pod that is never restarted is over when its sandbox is gone, even if its container was stopped for a resize.
#[tokio::test(start_paused = true)]
async fn what_was_stopped_is_over_with_the_sandbox_of_a_pod_that_is_never_restarted() {
    let mut lab = Lab::new().await;
    add_with_policy(&lab, "Never").await;
    lab.runtime.lock().panics.insert("create".into());
    give_memory(&lab, "2Mi").await;
    lab.until("the fault", |lab| lab.runtime.lock().panics.is_empty()).await;
    lab.runtime.lock().sandboxes[0].state = crate::runtime::SandboxState::NotReady;
    restart(&mut lab).await;
    until_succeeded(&lab).await;
}

/// While the record cannot be written, no container is stopped, and everything else of the pass continues.
#[tokio::test(start_paused = true)]
async fn nothing_is_stopped_that_cannot_be_recorded() {
    let lab = Lab::new().await;
    let mut spec = web(restarted_for_memory("1Mi"));
    spec["containers"].as_array_mut().unwrap().push(json!({"name": "other", "image": "web:1"}));
    lab.add(spec);
    lab.until("both", |lab| lab.state("main") == "Running" && lab.state("other") == "Running").await;
    // A folder at the path of the temporary file that is renamed to the record.
    let in_the_way = lab.root.join("pods/u1/allocated_resources.new");
    std::fs::create_dir(&in_the_way).unwrap();
    give_memory(&lab, "2Mi").await;
    let failed = |lab: &Lab| resizing(lab, "web").is_some_and(|c| c.reason.as_deref() == Some("Error"));
    lab.until("an error", failed).await;
    lab.runtime.exit("other", 1);
    lab.until("a new start", |lab| {
        lab.container("other").restart_count == 1 && lab.state("other") == "Running"
    })
    .await;
    let calls = lab.runtime.calls();
    assert!(!calls.iter().any(|call| call.starts_with("stop ")), "{calls:?}");
    std::fs::remove_dir(&in_the_way).unwrap();
    until_replaced(&lab).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_stopped_for_its_probe_is_so_whether_it_can_be_recorded_or_not() {
    let lab = Lab::new().await;
    let mut spec = web(restarted_for_memory("1Mi"));
    spec["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["alive"]}, "periodSeconds": 1, "failureThreshold": 1});
    lab.add(spec);
    lab.until("the pod", |lab| lab.phase() == "Running").await;
    *lab.volumes.fault.lock().unwrap() = Some("there is no such ConfigMap".into());
    give_memory(&lab, "2Mi").await;
    lab.until("the resize", |lab| resizing(lab, "web").is_some()).await;
    lab.runtime.lock().failing_commands.insert("alive".into(), (1, String::new()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    lab.runtime.lock().failing_commands.clear();
    std::fs::create_dir(lab.root.join("pods/u1/allocated_resources.new")).unwrap();
    *lab.volumes.fault.lock().unwrap() = None;
    lab.until("the restart", |lab| lab.container("main").restart_count == 1).await;
    let emitted = lab.events().await;
    let killing = "Killing: Container main failed liveness probe, will be restarted";
    assert!(emitted.contains(&killing.to_owned()), "{emitted:?}");
}

/// The disk may become full right before the stop.
#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_written_is_tried_again_after_growing_pauses() {
    let lab = Lab::new().await;
    add_restarted_for_memory(&lab).await;
    let in_the_way = lab.root.join("pods/u1/allocated_resources.new");
    let made = in_the_way.clone();
    *lab.volumes.on_mount.lock().unwrap() = Some(Box::new(move || std::fs::create_dir(made).unwrap()));
    give_memory(&lab, "2Mi").await;
    let failed = |lab: &Lab| resizing(lab, "web").is_some_and(|c| c.reason.as_deref() == Some("Error"));
    lab.until("an error", failed).await;
    let passes = || lab.volumes.mounts.load(std::sync::atomic::Ordering::SeqCst);
    let before = passes();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!((3..15).contains(&(passes() - before)), "{}", passes() - before);
    assert_eq!(on_record(&lab), [""; 0]);
    assert!(!lab.runtime.calls().iter().any(|call| call.starts_with("stop ")), "{:?}", lab.runtime.calls());
    std::fs::remove_dir(&in_the_way).unwrap();
    until_replaced(&lab).await;
}

/// The cgroups of one test, with a process in the pod's cgroup, as with a real runtime.
struct Tree {
    cgroups: Cgroups,
    process: std::process::Child,
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = self.cgroups.remove("");
    }
}

impl Tree {
    const POD: &'static str = "burstable/podu1";

    fn new(name: &str) -> Self {
        // SAFETY: plain system call.
        assert_eq!(unsafe { libc::geteuid() }, 0, "this test needs root");
        let root = format!("/knarr-kubelet-test-{}-{name}", std::process::id());
        let process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        Self { cgroups: Cgroups::detect(&root).unwrap(), process }
    }

    fn run(&self) {
        let own = format!("{}/main", Self::POD);
        self.cgroups.create(&own, &crate::runtime::Resources::default()).unwrap();
        self.cgroups.add_process(&own, self.process.id() as i32).unwrap();
    }

    fn memory_limit(&self) -> Option<i64> {
        self.cgroups.limits(Self::POD).memory_limit
    }
}

/// A kubelet that has just started does not know the pod's earlier limit, and reads it from the cgroup.
#[tokio::test(start_paused = true)]
async fn a_pod_is_not_without_a_limit_while_its_container_is_replaced() {
    for (old, new, meanwhile) in [(64, 32, 64), (32, 64, 64)] {
        let tree = Tree::new(&format!("widest-{new}"));
        let mut lab = Lab::with_cgroups(Some(tree.cgroups.clone())).await;
        let container = |memory: i64| {
            json!({
                "name": "main",
                "resources": {"requests": {"cpu": "1"}, "limits": {"memory": format!("{memory}Mi")}},
                "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
            })
        };
        lab.add(web(container(old)));
        lab.until("the pod", |lab| lab.phase() == "Running").await;
        tree.run();
        assert_eq!(tree.memory_limit(), Some(old << 20));
        lab.runtime.lock().stubborn.insert("main".into());
        let patch = json!({"metadata": {"generation": 2}, "spec": {"containers": [container(new)]}});
        lab.api.client().patch::<Pod>("default", "web", None, &Patch::Strategic(patch)).await.unwrap();
        let stops = |lab: &Lab| lab.runtime.calls().iter().filter(|call| call.starts_with("stop ")).count();
        lab.until("the stop", |lab| stops(lab) == 1).await;
        assert_eq!(tree.memory_limit(), Some(meanwhile << 20));
        restart(&mut lab).await;
        lab.until("the stop", |lab| stops(lab) == 2).await;
        assert_eq!(tree.memory_limit(), Some(meanwhile << 20), "from {old} to {new}");
        lab.until("the restart", |lab| lab.container("main").restart_count == 1).await;
        lab.until("the resize", |lab| resizing(lab, "web").is_none()).await;
        lab.until("the limit", |_| tree.memory_limit() == Some(new << 20)).await;
    }
}
