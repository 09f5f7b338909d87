//! Statuses of pods in all states.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus as ApiStatus, Pod, PodStatus};
use knarr_api::kind::Kind;
use serde_json::{Value, json};

use super::*;
use crate::probes::ProbeResult;
use crate::runtime::{ContainerState, PodSandboxStatus};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn pod(spec: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 3},
        "spec": spec,
    });
    Pod::decode(pod.to_string().as_bytes()).unwrap()
}

fn one(policy: &str) -> Pod {
    pod(json!({"restartPolicy": policy, "containers": [{"name": "web", "image": "web:1"}]}))
}

/// Parses a container: `name` runs, `name=1` has ended with code 1.
fn container(text: &str, attempt: u32) -> ContainerStatus {
    let (name, code) = text.split_once('=').map_or((text, None), |(n, c)| (n, c.parse::<i32>().ok()));
    ContainerStatus {
        id: format!("{name}-{attempt}"),
        sandbox_id: "s0".into(),
        name: name.into(),
        attempt,
        state: if code.is_some() { ContainerState::Exited } else { ContainerState::Running },
        created_at: at(10),
        started_at: Some(at(10)),
        finished_at: code.map(|_| at(20)),
        exit_code: code,
        signal: None,
        reason: code.map(|c| if c == 0 { "Completed" } else { "Error" }).unwrap_or("").into(),
        message: String::new(),
        image: "docker.io/library/web:1".into(),
        image_id: "docker.io/library/web@sha256:1".into(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        log_path: Default::default(),
        user: None,
    }
}

fn runtime(containers: Vec<ContainerStatus>) -> PodRuntimeStatus {
    let sandbox = PodSandboxStatus {
        id: "s0".into(),
        namespace: "default".into(),
        name: "web".into(),
        uid: "u".into(),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: at(5),
        ips: vec![[10, 0, 0, 2].into()],
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        host_network: false,
        runtime_handler: String::new(),
    };
    PodRuntimeStatus { sandboxes: vec![sandbox], containers, ..PodRuntimeStatus::default() }
}

#[derive(Default)]
struct Case {
    old: PodStatus,
    failures: BTreeMap<String, StartFailure>,
    probes: ProbeResults,
    messages: Messages,
    actuated: BTreeMap<String, ResourceRequirements>,
    resize: Vec<PodCondition>,
    terminal: bool,
    kubelet_started: i64,
}

impl Case {
    fn status(&self, pod: &Pod, runtime: &PodRuntimeStatus) -> PodStatus {
        generate(&Input {
            pod,
            old: &self.old,
            runtime,
            failures: &self.failures,
            probes: &self.probes,
            messages: &self.messages,
            actuated: &self.actuated,
            resize: &self.resize,
            host_ips: &["192.0.2.1".to_owned()],
            runtime_name: "knarr",
            recursive_read_only: true,
            kubelet_started: at(self.kubelet_started),
            terminal: self.terminal,
            now: at(100),
        })
    }
}

fn condition<'a>(status: &'a PodStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    let c = status.conditions.iter().flatten().find(|c| c.type_ == type_).expect("condition");
    (&c.status, c.reason.as_deref().unwrap_or(""), c.message.as_deref().unwrap_or(""))
}

fn first(status: &PodStatus) -> &ApiStatus {
    &status.container_statuses.as_ref().unwrap()[0]
}

fn waiting(status: &ApiStatus) -> (&str, &str) {
    let waiting = status.state.as_ref().unwrap().waiting.as_ref().expect("waiting");
    (waiting.reason.as_deref().unwrap_or(""), waiting.message.as_deref().unwrap_or(""))
}

#[test]
fn a_new_pod_waits_for_its_container() {
    let status = Case::default().status(&one("Always"), &PodRuntimeStatus::default());
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(waiting(first(&status)).0, "ContainerCreating");
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(status.pod_ip, None);
    let unready = "containers with unready status: [web]";
    for (type_, expected) in [
        ("PodReadyToStartContainers", ("False", "PodSandboxNotReady", "no pod sandbox exists")),
        ("Initialized", ("True", "", "")),
        ("Ready", ("False", "ContainersNotReady", unready)),
        ("ContainersReady", ("False", "ContainersNotReady", unready)),
        ("PodScheduled", ("True", "", "")),
    ] {
        assert_eq!(condition(&status, type_), expected, "{type_}");
    }
    let types: Vec<&str> = status.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
    assert_eq!(types, OWNED);
}

#[test]
fn a_running_pod_is_ready() {
    let status = Case::default().status(&one("Always"), &runtime(vec![container("web", 0)]));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.2"));
    assert_eq!(status.observed_generation, Some(3));
    let web = first(&status);
    assert!(web.ready && web.started == Some(true));
    assert_eq!(web.container_id.as_deref(), Some("knarr://web-0"));
    assert_eq!(web.image_id, "docker.io/library/web@sha256:1");
    assert_eq!(condition(&status, "Ready"), ("True", "", ""));
    assert_eq!(condition(&status, "PodReadyToStartContainers"), ("True", "", ""));
    // Without a change, transition times are kept.
    let again = Case { old: status.clone(), ..Case::default() };
    assert_eq!(again.status(&one("Always"), &runtime(vec![container("web", 0)])), status);
}

#[test]
fn phases_by_policy_and_exit() {
    let table: [(&str, &[&str], bool, &str); 9] = [
        ("Always", &["web=0"], false, "Running"),
        ("Always", &["web=1"], false, "Running"),
        ("OnFailure", &["web=0"], false, "Succeeded"),
        ("OnFailure", &["web=1"], false, "Running"),
        ("Never", &["web=0"], false, "Succeeded"),
        ("Never", &["web=1"], false, "Failed"),
        ("Always", &["web=0"], true, "Succeeded"),
        ("Always", &["web=1"], true, "Failed"),
        ("Always", &["web"], false, "Running"),
    ];
    for (policy, list, terminal, expected) in table {
        let containers = list.iter().map(|c| container(c, 0)).collect();
        let case = Case { terminal, ..Case::default() };
        let status = case.status(&one(policy), &runtime(containers));
        assert_eq!(status.phase.as_deref(), Some(expected), "{policy} {list:?} {terminal}");
    }
}

#[test]
fn what_is_to_be_replaced_is_not_over() {
    let mut state = runtime(vec![container("web=0", 0)]);
    state.replaced.insert(state.containers[0].id.clone());
    let phase = |case: &Case| case.status(&one("OnFailure"), &state).phase;
    assert_eq!(phase(&Case::default()).as_deref(), Some("Running"));
    assert_eq!(phase(&Case { terminal: true, ..Case::default() }).as_deref(), Some("Succeeded"));
}

#[test]
fn a_crash_loop_keeps_the_last_end_in_sight() {
    let failure = StartFailure {
        reason: "CrashLoopBackOff".into(),
        message: "back-off 10s restarting failed container=web pod=web_default(u)".into(),
    };
    let case = Case {
        failures: [("web".to_owned(), failure)].into(),
        messages: [("web-1".to_owned(), "it broke".to_owned())].into(),
        ..Case::default()
    };
    let status = case.status(&one("Always"), &runtime(vec![container("web=3", 1), container("web=2", 0)]));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let web = first(&status);
    assert_eq!(web.restart_count, 1);
    assert_eq!(waiting(web).0, "CrashLoopBackOff");
    let last = web.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.message.as_deref()), (3, Some("it broke")));
    assert_eq!(last.container_id.as_deref(), Some("knarr://web-1"));
    // Once the container runs again, its previous end becomes the last state.
    let status =
        Case::default().status(&one("Always"), &runtime(vec![container("web", 2), container("web=3", 1)]));
    let last = first(&status).last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((first(&status).restart_count, last.exit_code), (2, 3));
}

#[test]
fn a_container_that_cannot_start_says_why() {
    let failure = StartFailure { reason: "ErrImagePull".into(), message: "no such image".into() };
    let case = Case { failures: [("web".to_owned(), failure)].into(), ..Case::default() };
    let status = case.status(&one("Never"), &runtime(vec![]));
    assert_eq!(waiting(first(&status)), ("ErrImagePull", "no such image"));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
}

#[test]
fn init_containers_hold_the_pod_back() {
    let pod = pod(json!({
        "restartPolicy": "Always",
        "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
        "containers": [{"name": "web"}],
    }));
    let status = Case::default().status(&pod, &runtime(vec![container("i", 0)]));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(waiting(first(&status)).0, "PodInitializing");
    let initialized = condition(&status, "Initialized");
    assert_eq!(
        initialized,
        ("False", "ContainersNotInitialized", "containers with incomplete status: [i s]")
    );

    let status = Case::default().status(&pod, &runtime(vec![container("s", 0), container("i=0", 0)]));
    let init = status.init_container_statuses.as_ref().unwrap();
    assert_eq!(
        init.iter().map(|s| (s.name.as_str(), s.ready)).collect::<Vec<_>>(),
        [("i", true), ("s", true)]
    );
    assert_eq!(condition(&status, "Initialized").0, "True");

    let all = vec![container("web", 0), container("s=1", 0), container("i=0", 0)];
    let status = Case::default().status(&pod, &runtime(all));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(condition(&status, "Ready").2, "containers with unready status: [s]");
    assert_eq!(condition(&status, "Initialized").0, "True");

    let failed = pod_with_policy(&pod, "Never");
    let status = Case::default().status(&failed, &runtime(vec![container("i=1", 0)]));
    assert_eq!(status.phase.as_deref(), Some("Failed"));
}

fn pod_with_policy(pod: &Pod, policy: &str) -> Pod {
    let mut pod = pod.clone();
    pod.spec.as_mut().unwrap().restart_policy = Some(policy.into());
    pod
}

#[test]
fn probes_decide_about_readiness() {
    let pod = pod(json!({
        "restartPolicy": "Always",
        "containers": [{"name": "web", "readinessProbe": {"tcpSocket": {"port": 1}}, "startupProbe": {"tcpSocket": {"port": 1}}}],
    }));
    let runtime = runtime(vec![container("web", 0)]);
    let flags = |case: &Case| {
        let status = case.status(&pod, &runtime);
        (first(&status).started, first(&status).ready)
    };
    let case = Case::default();
    assert_eq!(flags(&case), (Some(false), false));
    case.probes.startup.set("web-0", ProbeResult::Success);
    assert_eq!(flags(&case), (Some(true), false));
    case.probes.readiness.set("web-0", ProbeResult::Success);
    assert_eq!(flags(&case), (Some(true), true));
    case.probes.readiness.set("web-0", ProbeResult::Failure);
    assert_eq!(flags(&case), (Some(true), false));
    // After a restart of the kubelet, a container that was ready stays ready until it is probed.
    let ready = Case::default();
    ready.probes.startup.set("web-0", ProbeResult::Success);
    ready.probes.readiness.set("web-0", ProbeResult::Success);
    let restarted = Case { old: ready.status(&pod, &runtime), kubelet_started: 50, ..Case::default() };
    assert_eq!(flags(&restarted), (Some(true), true));
}

#[test]
fn readiness_gates_count() {
    let mut pod = one("Always");
    pod.spec.as_mut().unwrap().readiness_gates =
        Some(vec![k8s_openapi::api::core::v1::PodReadinessGate { condition_type: "example.com/up".into() }]);
    let runtime = runtime(vec![container("web", 0)]);
    let status = Case::default().status(&pod, &runtime);
    let (ready, reason, message) = condition(&status, "Ready");
    assert_eq!((ready, reason), ("False", "ReadinessGatesNotReady"));
    assert_eq!(message, "corresponding condition of pod readiness gate \"example.com/up\" does not exist.");
    assert_eq!(condition(&status, "ContainersReady").0, "True");
    let gate = k8s_openapi::api::core::v1::PodCondition {
        type_: "example.com/up".into(),
        status: "True".into(),
        ..Default::default()
    };
    pod.status = Some(PodStatus { conditions: Some(vec![gate]), ..PodStatus::default() });
    assert_eq!(condition(&Case::default().status(&pod, &runtime), "Ready").0, "True");
}

#[test]
fn a_lost_container_counts_as_ended() {
    let old = Case::default().status(&one("Always"), &runtime(vec![container("web", 0)]));
    let status = Case { old, ..Case::default() }.status(&one("Always"), &PodRuntimeStatus::default());
    let web = first(&status);
    assert_eq!(waiting(web).0, "ContainerCreating");
    let last = web.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    assert_eq!((web.restart_count, status.phase.as_deref()), (1, Some("Running")));
}

#[test]
fn the_deadline_ends_the_pod_and_a_terminal_phase_stays() {
    let mut pod = one("Always");
    pod.spec.as_mut().unwrap().active_deadline_seconds = Some(60);
    let old = PodStatus { start_time: Some(whole_seconds(at(0))), ..PodStatus::default() };
    let case = Case { old, ..Case::default() };
    let running = runtime(vec![container("web", 0)]);
    let status = case.status(&pod, &running);
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    pod.spec.as_mut().unwrap().active_deadline_seconds = None;
    let later = Case { old: status, ..Case::default() }.status(&pod, &running);
    assert_eq!(later.phase.as_deref(), Some("Failed"));
    assert_eq!(later.reason.as_deref(), Some("DeadlineExceeded"));
}

#[test]
fn at_the_end_only_containers_that_had_their_turn_are_lost() {
    let ended = |code: i32| json!({"terminated": {"exitCode": code}});
    let waiting = json!({"waiting": {"reason": "PodInitializing"}});
    let running = json!({"running": {}});
    let statuses = |states: &[&Value]| -> Vec<ApiStatus> {
        let status = |(at, state): (usize, &&Value)| json!({"name": format!("c{at}"), "state": state, "started": true});
        let list: Vec<Value> = states.iter().enumerate().map(status).collect();
        serde_json::from_value(json!(list)).unwrap()
    };
    let sidecar = Some("Always");
    // Init containers (with the last one's own restart policy) and the main one; then which of them are marked as
    // lost.
    for (what, init, policy, main, lost) in [
        ("no init containers", vec![], None, &waiting, vec![true]),
        ("the last one failed", vec![&ended(0), &ended(1)], None, &waiting, vec![false, false, false]),
        ("the last one is done", vec![&ended(0), &ended(0)], None, &waiting, vec![false, false, true]),
        ("the last one waits", vec![&ended(1), &waiting], None, &waiting, vec![false, false, false]),
        ("the first one waits", vec![&waiting, &waiting], None, &waiting, vec![true, false, false]),
        ("the sidecar runs", vec![&running], sidecar, &waiting, vec![true, true]),
        ("the sidecar has ended", vec![&ended(0)], sidecar, &waiting, vec![false, false]),
        ("the main one ran", vec![&ended(1)], None, &running, vec![false, true]),
    ] {
        let containers = |count: usize| -> Vec<Value> {
            (0..count).map(|at| json!({"name": format!("c{at}"), "restartPolicy": policy})).collect()
        };
        let pod = pod(json!({"initContainers": containers(init.len()), "containers": [{"name": "c0"}]}));
        let (mut main, mut init) = (statuses(&[main]), statuses(&init));
        end_all(&pod, &mut main, &mut init);
        let is_lost = |s: &ApiStatus| {
            let end = s.state.as_ref().and_then(|s| s.terminated.as_ref());
            end.is_some_and(|end| end.reason.as_deref() == Some("ContainerStatusUnknown"))
        };
        let found: Vec<bool> = init.iter().chain(&main).map(is_lost).collect();
        assert_eq!(found, lost, "{what}");
    }
}

#[test]
fn what_hooks_print_does_not_fill_the_status() {
    let failure = StartFailure { reason: "PostStartHookError".into(), message: "\u{e4}".repeat(1 << 20) };
    let case = Case {
        failures: [("web".to_owned(), failure)].into(),
        messages: [("web-0".to_owned(), "y".repeat(1 << 20))].into(),
        ..Case::default()
    };
    let status = case.status(&one("Always"), &runtime(vec![container("web=3", 0)]));
    let (reason, message) = waiting(first(&status));
    assert_eq!((reason, message.len()), ("PostStartHookError", 12 << 10));
    let last = first(&status).last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(last.message.as_ref().unwrap().len(), 12 << 10);
}

fn shown(resources: Option<&ResourceRequirements>) -> String {
    serde_json::to_string(&resources.expect("resources")).unwrap().replace('"', "")
}

/// The pod-level status shows allocated resources at once, and actual ones once a resize is actuated.
#[test]
fn the_resources_of_the_whole_pod() {
    let of = |cpu: &str| {
        pod(json!({"resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}},
            "containers": [{"name": "web", "image": "web:1", "resources": {"requests": {"memory": "64Mi"}}}]}))
    };
    let running = runtime(vec![container("web", 0)]);
    let mut case = Case::default();
    let waiting = case.status(&of("1"), &PodRuntimeStatus::default());
    let before = "{limits:{cpu:1},requests:{cpu:1,memory:64Mi}}";
    assert_eq!(shown(waiting.resources.as_ref()), before);
    case.old = case.status(&of("1"), &running);
    assert_eq!((case.old.phase.as_deref(), &*shown(case.old.resources.as_ref())), (Some("Running"), before));

    case.resize =
        vec![serde_json::from_value(json!({"type": "PodResizeInProgress", "status": "True"})).unwrap()];
    let resizing = case.status(&of("1500m"), &running);
    assert_eq!(shown(resizing.resources.as_ref()), before);
    assert_eq!(resizing.allocated_resources.as_ref().unwrap()["cpu"].0, "1500m");
    case.resize.clear();
    let resized = case.status(&of("1500m"), &running);
    assert_eq!(shown(resized.resources.as_ref()), before.replace("cpu:1", "cpu:1500m"));

    // With container resources alone, the pod's cgroup has a limit only if every container has one.
    let limited =
        json!({"name": "a", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}});
    let some = pod(json!({"containers": [limited, {"name": "web", "image": "i"}]}));
    let status = Case::default().status(&some, &runtime(vec![container("web", 0), container("a", 0)]));
    assert_eq!(shown(status.resources.as_ref()), "{requests:{cpu:1}}");
    let status = Case::default().status(&one("Always"), &running);
    assert_eq!((&*shown(status.resources.as_ref()), status.allocated_resources), ("{}", None));
}
