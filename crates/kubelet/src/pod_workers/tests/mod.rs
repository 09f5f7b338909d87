//! Lifecycles of pods, end to end: the kubelet with a fake API server, a runtime in memory and a paused clock.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ConfigMap, ContainerStatus as ApiStatus, Event, Node, Pod, Secret, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::kind::Kind;
use knarr_client::clock::TokioClock;
use knarr_client::events::EventRecorder;
use knarr_client::{Informers, Supervisor};
use knarr_runtime::containers::Cgroups;
use knarr_testing::FakeApi;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

mod isolation;
mod panics;
mod resize;
mod resize_restarts;
mod user_namespaces;

use super::fake_runtime::FakeRuntime;
use crate::config::Config;
use crate::host_security::HostSecurity;
use crate::kubelet::{Dependencies, Kubelet};
use crate::pod_lookup::PodLookup;
use crate::volume_manager::{MountedVolumes, VolumeError, Volumes};
use crate::volumes::ObjectSource;

type OnMount = Box<dyn FnOnce() + Send>;

/// Volumes that are empty, or whose mount fails.
#[derive(Default)]
struct FakeVolumes {
    fault: Mutex<Option<String>>,
    /// Called while the volumes of a pod are mounted, once.
    on_mount: Mutex<Option<OnMount>>,
    /// The number of mounts: one in each pass.
    mounts: AtomicUsize,
    /// Whether unmounting fails.
    busy: AtomicBool,
    unmounted: Mutex<Vec<String>>,
}

#[async_trait]
impl Volumes for FakeVolumes {
    async fn mount(&self, _: &Pod) -> Result<MountedVolumes, VolumeError> {
        self.mounts.fetch_add(1, Ordering::SeqCst);
        if let Some(happens) = self.on_mount.lock().unwrap().take() {
            happens();
        }
        match self.fault.lock().unwrap().clone() {
            Some(fault) => Err(VolumeError::new(fault)),
            None => Ok(BTreeMap::new()),
        }
    }

    async fn unmount(&self, pod_uid: &str) -> Result<(), VolumeError> {
        if self.busy.load(Ordering::SeqCst) {
            return Err(VolumeError::new("target is busy".to_owned()));
        }
        self.unmounted.lock().unwrap().push(pod_uid.to_owned());
        Ok(())
    }
}

struct Lab {
    root: PathBuf,
    api: Arc<FakeApi>,
    runtime: Arc<FakeRuntime>,
    volumes: Arc<FakeVolumes>,
    supervisor: Supervisor,
    stop: CancellationToken,
    kubelet: Option<Arc<Kubelet>>,
    cgroups: Option<Cgroups>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

impl Lab {
    /// Starts a kubelet on a node without cgroups.
    async fn new() -> Self {
        Self::with_cgroups(None).await
    }

    async fn with_cgroups(cgroups: Option<Cgroups>) -> Self {
        let clock = Arc::new(TokioClock::starting_at(Timestamp::from_second(1_800_000_000).unwrap()));
        let resources = [
            Pod::RESOURCE,
            Node::RESOURCE,
            Service::RESOURCE,
            ConfigMap::RESOURCE,
            Secret::RESOURCE,
            Event::RESOURCE,
        ];
        let api = FakeApi::new(clock.clone(), &resources);
        let node = json!({
            "metadata": {"name": "n1"},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        });
        api.add(&Node::decode(node.to_string().as_bytes()).unwrap());
        let root = std::env::temp_dir().join(format!("knarr-kubelet-{:016x}", fastrand::u64(..)));
        let supervisor = Supervisor::new(clock.clone());
        let (runtime, volumes) = (FakeRuntime::new(clock), Arc::default());
        let stop = CancellationToken::new();
        let mut lab = Self { root, api, runtime, volumes, supervisor, stop, kubelet: None, cgroups };
        lab.start().await;
        lab
    }

    async fn start(&mut self) {
        let (client, stop) = (self.api.client().supervised_by(&self.supervisor), CancellationToken::new());
        self.stop = stop.clone();
        let mut config = Config::new("n1", [192, 0, 2, 1].into(), &self.root);
        config.cluster_dns = vec![[10, 96, 0, 10].into()];
        let with = Dependencies {
            client: client.clone(),
            informers: Arc::new(Informers::new(client.clone(), stop.clone())),
            runtime: self.runtime.clone(),
            volumes: self.volumes.clone(),
            objects: ObjectSource::new(client.clone(), self.supervisor.clone(), stop.clone()),
            recorder: EventRecorder::new(client, "kubelet", "n1", stop.clone()),
            cgroups: self.cgroups.clone(),
            memory_capacity: 8 << 30,
            host_security: HostSecurity::default(),
        };
        let kubelet = Kubelet::new(config, with, stop.clone());
        self.kubelet = Some(Arc::clone(&kubelet));
        self.supervisor.spawn("kubelet", stop, move |_| {
            let running = Arc::clone(&kubelet).run();
            async move { running.await.unwrap() }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    fn kubelet(&self) -> &Kubelet {
        self.kubelet.as_deref().unwrap()
    }

    fn add(&self, spec: Value) {
        self.add_named("web", "u1", spec);
    }

    fn add_named(&self, name: &str, uid: &str, spec: Value) {
        let mut pod = json!({"metadata": {"name": name, "namespace": "default", "uid": uid}, "spec": spec});
        pod["spec"]["nodeName"] = json!("n1");
        self.api.add(&Pod::decode(pod.to_string().as_bytes()).unwrap());
    }

    fn pod(&self) -> Pod {
        self.api.get("default", "web").expect("the pod")
    }

    fn phase(&self) -> String {
        self.pod().status.and_then(|s| s.phase).unwrap_or_default()
    }

    fn container(&self, name: &str) -> ApiStatus {
        let status = self.pod().status.unwrap_or_default();
        let lists = [status.container_statuses, status.init_container_statuses];
        lists.into_iter().flatten().flatten().find(|s| s.name == name).unwrap_or_default()
    }

    /// Returns `Running`, `Waiting CrashLoopBackOff` or `Terminated 1 Error`.
    fn state(&self, name: &str) -> String {
        let state = self.container(name).state.unwrap_or_default();
        let text = |t: Option<String>| t.unwrap_or_default();
        match (state.running, state.waiting, state.terminated) {
            (Some(_), _, _) => "Running".to_owned(),
            (_, Some(w), _) => format!("Waiting {}", text(w.reason)),
            (_, _, Some(t)) => format!("Terminated {} {}", t.exit_code, text(t.reason)),
            _ => String::new(),
        }
    }

    /// Waits in virtual time until `holds` returns true.
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..20_000 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "{what} did not come: {:?}\n{:#?}",
            self.runtime.calls(),
            self.api.get::<Pod>("default", "web")
        );
    }

    async fn until_state(&self, container: &str, state: &str) {
        self.until(state, |lab| lab.state(container) == state).await;
    }

    /// Returns `Reason: message` of all events, each once.
    async fn events(&self) -> Vec<String> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let text = |t: Option<String>| t.unwrap_or_default();
        let events = self.api.all::<Event>();
        events.into_iter().map(|e| format!("{}: {}", text(e.reason), text(e.message))).collect()
    }

    async fn delete(&self, grace: i64) {
        let options = DeleteOptions { grace_period_seconds: Some(grace), ..DeleteOptions::default() };
        self.api.client().delete::<Pod>("default", "web", &options).await.unwrap();
    }

    async fn until_gone(&self) {
        self.until("the end", |lab| lab.api.get::<Pod>("default", "web").is_none()).await;
        self.until("an empty runtime", |lab| lab.runtime.lock().sandboxes.is_empty()).await;
        self.until("empty folders", |lab| !lab.root.join("pods/u1").exists()).await;
        assert!(self.volumes.unmounted.lock().unwrap().contains(&"u1".to_owned()));
    }
}

fn web(extra: Value) -> Value {
    let mut container = json!({"name": "main", "image": "web:1"});
    for (key, value) in extra.as_object().into_iter().flatten() {
        container[key] = value.clone();
    }
    json!({"containers": [container], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30})
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_and_is_deleted() {
    let lab = Lab::new().await;
    lab.add(web(json!({})));
    lab.until("readiness", |lab| lab.container("main").ready).await;
    assert_eq!(lab.phase(), "Running");
    let status = lab.pod().status.unwrap();
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(status.container_statuses.unwrap()[0].container_id.as_deref(), Some("fake://main-2"));
    assert_eq!(lab.runtime.calls(), ["sandbox web", "pull web:1", "start main#0"]);
    let expected = [
        "Pulling: Pulling image \"web:1\"",
        "Pulled: Successfully pulled image \"web:1\" in 0s (0s including waiting). Image size: 123 bytes.",
        "Created: Container created",
        "Started: Container started",
    ];
    assert_eq!(lab.events().await, expected);
    let event = lab.api.all::<Event>().remove(0);
    assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{main}"));

    lab.delete(10).await;
    lab.until_gone().await;
    assert_eq!(lab.runtime.calls().last().unwrap(), "stop main#0 10");
    assert!(lab.events().await.contains(&"Killing: Stopping container main".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_crashing_container_backs_off() {
    let lab = Lab::new().await;
    lab.runtime.lock().exits.insert("main".into(), 1);
    lab.add(web(json!({})));
    lab.until_state("main", "Waiting CrashLoopBackOff").await;
    let status = lab.container("main");
    assert_eq!(status.restart_count, 1);
    let message = status.state.unwrap().waiting.unwrap().message.unwrap();
    assert_eq!(message, "back-off 10s restarting failed container=main pod=web_default(u1)");
    assert_eq!(status.last_state.unwrap().terminated.unwrap().exit_code, 1);
    let start = tokio::time::Instant::now();
    lab.until("another start", |lab| lab.container("main").restart_count == 2).await;
    assert!((9..12).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    lab.until("a longer wait", |lab| {
        let waiting = lab.container("main").state.and_then(|s| s.waiting);
        waiting.and_then(|w| w.message).is_some_and(|m| m.starts_with("back-off 20s "))
    })
    .await;
    lab.runtime.lock().exits.clear();
    lab.until_state("main", "Running").await;
    // The running container and the newest ended one are kept.
    assert_eq!(lab.runtime.lock().containers.len(), 2);
    let emitted = lab.events().await;
    let back_off = "BackOff: Back-off restarting failed container main in pod web_default(u1)";
    assert!(emitted.contains(&back_off.to_owned()), "{emitted:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_done_stay_until_deleted() {
    for (policy, code, phase, state) in [
        ("Never", 0, "Succeeded", "Terminated 0 Completed"),
        ("OnFailure", 0, "Succeeded", "Terminated 0 Completed"),
        ("Never", 3, "Failed", "Terminated 3 Error"),
    ] {
        let lab = Lab::new().await;
        let mut spec = web(json!({}));
        spec["restartPolicy"] = json!(policy);
        lab.add(spec);
        lab.until_state("main", "Running").await;
        lab.runtime.exit("main", code);
        lab.until(phase, |lab| lab.phase() == phase).await;
        assert_eq!(lab.state("main"), state);
        assert!(!lab.container("main").ready);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(lab.runtime.calls(), ["sandbox web", "pull web:1", "start main#0"]);
        lab.delete(30).await;
        lab.until_gone().await;
    }
}

#[tokio::test(start_paused = true)]
async fn init_containers_and_sidecars() {
    let lab = Lab::new().await;
    let mut spec = web(json!({}));
    spec["initContainers"] = json!([
        {"name": "first", "image": "i"},
        {"name": "side", "image": "i", "restartPolicy": "Always"},
        {"name": "last", "image": "i"},
    ]);
    lab.add(spec);
    lab.until_state("first", "Running").await;
    assert_eq!(lab.state("main"), "Waiting PodInitializing");
    lab.runtime.exit("first", 1);
    lab.until("a second try", |lab| lab.container("first").restart_count == 1).await;
    lab.until_state("first", "Running").await;
    lab.runtime.exit("first", 0);
    lab.until_state("last", "Running").await;
    assert_eq!(lab.phase(), "Pending");
    lab.runtime.exit("last", 0);
    lab.until_state("main", "Running").await;
    lab.until("running", |lab| lab.phase() == "Running").await;
    lab.delete(30).await;
    lab.until_gone().await;
    let calls = lab.runtime.calls();
    let stops: Vec<&str> = calls.iter().filter(|c| c.starts_with("stop")).map(String::as_str).collect();
    assert_eq!(stops, ["stop main#0 30", "stop side#0 30"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_waited_for() {
    let lab = Lab::new().await;
    let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "a"}}}]);
    lab.add(web(json!({"env": env})));
    lab.until_state("main", "Waiting CreateContainerConfigError").await;
    let message = lab.container("main").state.unwrap().waiting.unwrap().message.unwrap();
    assert_eq!(message, "configmap \"cfg\" not found");
    let config = json!({"metadata": {"name": "cfg", "namespace": "default"}, "data": {"a": "1"}});
    lab.api.add(&ConfigMap::decode(config.to_string().as_bytes()).unwrap());
    lab.until_state("main", "Running").await;
    let env = lab.runtime.lock().containers[0].1.env.clone();
    assert!(env.contains(&("A".to_owned(), "1".to_owned())), "{env:?}");
    assert!(lab.events().await.contains(&"Failed: Error: configmap \"cfg\" not found".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn images_that_do_not_come() {
    let lab = Lab::new().await;
    lab.add(web(json!({"image": "missing:1"})));
    lab.until_state("main", "Waiting ErrImagePull").await;
    lab.until_state("main", "Waiting ImagePullBackOff").await;
    let message = lab.container("main").state.unwrap().waiting.unwrap().message.unwrap();
    assert_eq!(message, "Back-off pulling image \"missing:1\": ErrImagePull: missing:1: not found");
    tokio::time::sleep(Duration::from_secs(100)).await;
    let pulls = lab.runtime.calls().iter().filter(|c| *c == "pull missing:1").count();
    assert!((3..=5).contains(&pulls), "10, 20, 40 seconds apart: {pulls}");
    let emitted = lab.events().await;
    for expected in [
        "Failed: Failed to pull image \"missing:1\": missing:1: not found",
        "Failed: Error: ErrImagePull",
        "BackOff: Back-off pulling image \"missing:1\"",
        "Failed: Error: ImagePullBackOff",
    ] {
        assert!(emitted.contains(&expected.to_owned()), "{expected}: {emitted:?}");
    }

    let lab = Lab::new().await;
    lab.add(web(json!({"imagePullPolicy": "Never"})));
    lab.until_state("main", "Waiting ErrImageNeverPull").await;
    lab.runtime.lock().images.insert("web:1".into());
    lab.until_state("main", "Running").await;
}

#[tokio::test(start_paused = true)]
async fn probes_make_ready_and_restart() {
    let lab = Lab::new().await;
    let probe = |command: &str, more: Value| {
        let mut probe = json!({"exec": {"command": [command]}, "periodSeconds": 2, "failureThreshold": 2,
            "successThreshold": 1, "timeoutSeconds": 1});
        for (key, value) in more.as_object().into_iter().flatten() {
            probe[key] = value.clone();
        }
        probe
    };
    lab.runtime.lock().failing_commands.insert("ready".into(), (1, "not yet".into()));
    lab.add(web(json!({
        "readinessProbe": probe("ready", json!({})),
        "livenessProbe": probe("alive", json!({"terminationGracePeriodSeconds": 5})),
    })));
    lab.until_state("main", "Running").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!lab.container("main").ready);
    lab.runtime.lock().failing_commands.clear();
    lab.until("readiness", |lab| lab.container("main").ready).await;
    lab.runtime.lock().failing_commands.insert("alive".into(), (7, "dead".into()));
    lab.until("a restart", |lab| lab.container("main").restart_count == 1).await;
    lab.runtime.lock().failing_commands.clear();
    assert!(lab.runtime.calls().contains(&"stop main#0 5".to_owned()));
    let emitted = lab.events().await;
    for expected in [
        "Unhealthy: Readiness probe failed: not yet",
        "Unhealthy: Liveness probe failed: dead",
        "Killing: Container main failed liveness probe, will be restarted",
    ] {
        assert!(emitted.contains(&expected.to_owned()), "{expected}: {emitted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_starting_is_asked_again_after_a_second() {
    let lab = Lab::new().await;
    // A kubelet that has just started spreads the first probes over their period.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let probe = json!({"exec": {"command": ["ready"]}, "periodSeconds": 10, "failureThreshold": 3,
        "successThreshold": 1, "timeoutSeconds": 1});
    lab.runtime.lock().failing_commands.insert("ready".into(), (1, "not yet".into()));
    lab.add(web(json!({"readinessProbe": probe})));
    lab.until_state("main", "Running").await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(lab.runtime.calls().contains(&"exec main: ready".to_owned()), "{:?}", lab.runtime.calls());
    assert!(!lab.container("main").ready);
    lab.runtime.lock().failing_commands.clear();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(lab.container("main").ready, "long before the period is over");
    let emitted = lab.events().await;
    assert!(!emitted.iter().any(|event| event.starts_with("Unhealthy")), "{emitted:?}");
    let probes = lab.kubelet().probe_metrics();
    for end in ["failed", "successful"] {
        assert!(
            probes.contains(&format!("pod_uid=\"u1\",probe_type=\"Readiness\",result=\"{end}\"}} ")),
            "{probes}"
        );
    }
    let counted = lab.kubelet().metrics();
    for line in [
        "kubelet_started_pods_total 1",
        "kubelet_started_containers_total{container_type=\"container\"} 1",
        "kubelet_pod_start_duration_seconds_count 1",
        "kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"} 1",
    ] {
        assert!(counted.lines().any(|l| l == line), "no {line} in\n{counted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_terminating_pod_becomes_unready() {
    let lab = Lab::new().await;
    lab.runtime.lock().stubborn.insert("main".into());
    let probe = json!({"exec": {"command": ["ready"]}, "periodSeconds": 1, "failureThreshold": 1,
        "successThreshold": 1, "timeoutSeconds": 1});
    lab.add(web(json!({"readinessProbe": probe})));
    lab.until("readiness", |lab| lab.container("main").ready).await;
    lab.delete(30).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(lab.container("main").ready, "it still answers");
    lab.runtime.lock().failing_commands.insert("ready".into(), (1, "draining".into()));
    lab.until("unreadiness", |lab| !lab.container("main").ready).await;
    assert_eq!(lab.state("main"), "Running", "within its grace period");
    let conditions = lab.pod().status.unwrap().conditions.unwrap();
    assert_eq!(conditions.iter().find(|c| c.type_ == "Ready").unwrap().status, "False");
    lab.until_gone().await;
}

#[tokio::test(start_paused = true)]
async fn hooks() {
    let lab = Lab::new().await;
    let hook = |command: &str| json!({"exec": {"command": [command]}});
    lab.add(web(json!({"lifecycle": {"postStart": hook("hello"), "preStop": hook("bye")}})));
    lab.until_state("main", "Running").await;
    lab.delete(20).await;
    lab.until_gone().await;
    let calls = lab.runtime.calls();
    assert_eq!(calls[3..], ["exec main: hello", "exec main: bye", "stop main#0 20"], "{calls:?}");

    let lab = Lab::new().await;
    lab.runtime.lock().failing_commands.insert("hello".into(), (1, "no".into()));
    lab.add(web(json!({"lifecycle": {"postStart": hook("hello")}})));
    lab.until("a failed hook", |lab| lab.container("main").restart_count >= 1).await;
    let emitted = lab.events().await;
    assert!(emitted.contains(&"FailedPostStartHook: PostStartHook failed".to_owned()), "{emitted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_new_kubelet_takes_up_what_runs() {
    let mut lab = Lab::new().await;
    lab.add(web(json!({})));
    lab.until("readiness", |lab| lab.container("main").ready).await;
    let before = lab.runtime.calls();
    lab.stop.cancel();
    tokio::time::sleep(Duration::from_secs(5)).await;
    lab.start().await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(lab.runtime.calls(), before);
    assert!(lab.container("main").ready);
    // A pod that was removed meanwhile is cleaned up.
    lab.stop.cancel();
    lab.api.remove::<Pod>("default", "web");
    lab.start().await;
    lab.until_gone().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_fit_is_refused() {
    let lab = Lab::new().await;
    lab.add(web(json!({"resources": {"requests": {"cpu": "5"}}})));
    lab.until("refusal", |lab| lab.phase() == "Failed").await;
    let status = lab.pod().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    let what = "Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 4000";
    assert_eq!(status.message.unwrap(), format!("Pod was rejected: {what}"));
    assert_eq!(lab.events().await, [format!("OutOfcpu: {what}")]);
    assert!(lab.runtime.calls().is_empty());
    lab.delete(30).await;
    lab.until("the end", |lab| lab.api.get::<Pod>("default", "web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_used_is_free_once_the_api_shows_its_end() {
    let lab = Lab::new().await;
    let spec = || {
        let mut spec = web(json!({"resources": {"requests": {"cpu": "3"}}}));
        spec["restartPolicy"] = json!("Never");
        spec
    };
    lab.add(spec());
    lab.until_state("main", "Running").await;
    lab.volumes.busy.store(true, Ordering::SeqCst);
    lab.runtime.exit("main", 0);
    lab.until("its end", |lab| lab.phase() == "Succeeded").await;
    lab.add_named("next", "u2", spec());
    let phase = |lab: &Lab| lab.api.get::<Pod>("default", "next")?.status?.phase;
    lab.until("the next pod", |lab| phase(lab).is_some_and(|phase| phase != "Pending")).await;
    assert_eq!(phase(&lab).as_deref(), Some("Running"));
}

#[tokio::test(start_paused = true)]
async fn force_deletion_cuts_the_grace_period() {
    let lab = Lab::new().await;
    lab.runtime.lock().stubborn.insert("main".into());
    lab.add(web(json!({})));
    lab.until_state("main", "Running").await;
    let start = tokio::time::Instant::now();
    lab.delete(300).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(lab.pod().metadata.deletion_timestamp.is_some());
    // `kubectl delete --force --grace-period=0`: the object is removed at once.
    lab.api.edit::<Pod>("default", "web", |pod| pod.metadata.deletion_grace_period_seconds = Some(0));
    lab.api.remove::<Pod>("default", "web");
    lab.until_gone().await;
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn faults_of_sandbox_and_volumes_are_told_and_retried() {
    let lab = Lab::new().await;
    *lab.volumes.fault.lock().unwrap() = Some("MountVolume.SetUp failed for volume \"v\" : no".into());
    lab.runtime.lock().sandbox_fault = Some("no address left".into());
    lab.add(web(json!({})));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(lab.state("main"), "Waiting ContainerCreating");
    *lab.volumes.fault.lock().unwrap() = None;
    tokio::time::sleep(Duration::from_secs(30)).await;
    lab.runtime.lock().sandbox_fault = None;
    lab.until_state("main", "Running").await;
    let emitted = lab.events().await;
    for expected in [
        "FailedMount: MountVolume.SetUp failed for volume \"v\" : no",
        "FailedCreatePodSandBox: Failed to create pod sandbox: no address left",
    ] {
        assert!(emitted.contains(&expected.to_owned()), "{expected}: {emitted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_pod() {
    let lab = Lab::new().await;
    let mut spec = web(json!({}));
    spec["activeDeadlineSeconds"] = json!(60);
    lab.add(spec);
    lab.until_state("main", "Running").await;
    lab.until("the deadline", |lab| lab.phase() == "Failed").await;
    assert_eq!(lab.pod().status.unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(lab.state("main"), "Terminated 143 Error");
}

#[tokio::test(start_paused = true)]
async fn a_new_image_restarts_its_container_alone() {
    let lab = Lab::new().await;
    lab.add(json!({"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]}));
    lab.until_state("b", "Running").await;
    lab.api.edit::<Pod>("default", "web", |pod| {
        pod.spec.as_mut().unwrap().containers[0].image = Some("a:2".into());
    });
    lab.until("a restart", |lab| lab.container("a").restart_count == 1).await;
    assert_eq!(lab.container("b").restart_count, 0);
    assert!(lab.runtime.calls().contains(&"pull a:2".to_owned()));
}
