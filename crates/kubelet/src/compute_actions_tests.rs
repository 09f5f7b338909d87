//! The computed actions for pods in all states.

use knarr_api::kind::Kind;
use serde_json::{Value, json};

use super::*;
use crate::runtime::{PodSandboxStatus, SandboxState};

fn pod(policy: &str, init: Value, main: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"restartPolicy": policy, "initContainers": init, "containers": main},
    });
    Pod::decode(pod.to_string().as_bytes()).unwrap()
}

fn named(names: &[&str]) -> Value {
    names.iter().map(|n| json!({"name": n, "image": "i"})).collect()
}

fn sidecar(name: &str) -> Value {
    json!({"name": name, "image": "i", "restartPolicy": "Always"})
}

/// Parses containers: `name` runs, `name=0` has ended with 0, `name!` was only created; the first of a name is the
/// newest.
fn containers(pod: &Pod, list: &[&str]) -> Vec<ContainerStatus> {
    let total = list.len();
    let each = list.iter().enumerate().map(|(at, text)| {
        let (name, state, exit_code) = if let Some((name, code)) = text.split_once('=') {
            (name, ContainerState::Exited, code.parse().ok())
        } else if let Some(name) = text.strip_suffix('!') {
            (name, ContainerState::Created, None)
        } else {
            (*text, ContainerState::Running, None)
        };
        let hash =
            pod::find_container(pod, name).map(|(_, c)| labels::container_hash(&c)).unwrap_or_default();
        ContainerStatus {
            id: format!("id-{name}-{}", total - at),
            sandbox_id: "s0".into(),
            name: name.into(),
            attempt: 0,
            state,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code,
            signal: None,
            reason: String::new(),
            message: String::new(),
            image: "i".into(),
            image_id: String::new(),
            labels: Default::default(),
            annotations: [(labels::CONTAINER_HASH.to_owned(), hash)].into(),
            log_path: Default::default(),
            user: None,
        }
    });
    each.collect()
}

fn sandbox(id: &str, attempt: u32, state: SandboxState) -> PodSandboxStatus {
    PodSandboxStatus {
        id: id.into(),
        namespace: "default".into(),
        name: "web".into(),
        uid: "u".into(),
        attempt,
        state,
        created_at: jiff::Timestamp::UNIX_EPOCH,
        ips: vec![[10, 0, 0, 2].into()],
        labels: Default::default(),
        annotations: Default::default(),
        host_network: false,
        runtime_handler: String::new(),
    }
}

fn ready(pod: &Pod, list: &[&str]) -> PodRuntimeStatus {
    PodRuntimeStatus {
        sandboxes: vec![sandbox("s0", 0, SandboxState::Ready)],
        containers: containers(pod, list),
        ..PodRuntimeStatus::default()
    }
}

/// Formats the actions in one line: `kill`, `sandbox N`, `init …`, `start …`, `stop …`.
fn text(pod: &Pod, actions: &PodActions) -> String {
    let name = |list: &[Container], at: &usize| list[*at].name.clone();
    let mut words = Vec::new();
    if actions.kill_pod {
        words.push("kill".to_owned());
    }
    if actions.create_sandbox {
        words.push(format!("sandbox {}", actions.attempt));
    }
    words.extend(actions.containers_to_kill.iter().map(|k| format!("stop {}", k.name)));
    let init = pod::init_containers(pod);
    words.extend(actions.init_containers_to_start.iter().map(|at| format!("init {}", name(init, at))));
    let main = &pod::spec(pod).containers;
    words.extend(actions.containers_to_start.iter().map(|at| format!("start {}", name(main, at))));
    words.join(", ")
}

fn run(pod: &Pod, runtime: &PodRuntimeStatus) -> String {
    text(pod, &compute_actions(pod, runtime, &ProbeResults::default()))
}

#[test]
fn main_containers_by_restart_policy() {
    let table: [(&str, &[&str], &str); 14] = [
        ("Always", &[], "start a, start b"),
        ("Always", &["a", "b"], ""),
        ("Always", &["a"], "start b"),
        ("Always", &["a", "b=0"], "start b"),
        ("Always", &["a!", "b"], "start a"),
        ("OnFailure", &["a", "b=0"], ""),
        ("OnFailure", &["a", "b=1"], "start b"),
        ("OnFailure", &["a=0", "b=0"], "kill"),
        ("OnFailure", &["a=0", "b=2"], "start b"),
        ("Never", &["a", "b=1"], ""),
        ("Never", &["a=0", "b=1"], "kill"),
        ("Never", &["a=0"], "start b"),
        // Only the newest container of a name counts.
        ("OnFailure", &["a=0", "b=0", "b=1", "a=1"], "kill"),
        ("Always", &["a", "b", "a=1", "b=1"], ""),
    ];
    for (policy, state, expected) in table {
        let pod = pod(policy, json!([]), named(&["a", "b"]));
        assert_eq!(run(&pod, &ready(&pod, state)), expected, "{policy} {state:?}");
    }
}

#[test]
fn init_containers_go_one_after_the_other() {
    let table: [(&str, &[&str], &str); 12] = [
        ("Always", &[], "init i1"),
        ("Always", &["i1"], ""),
        ("Always", &["i1!"], "init i1"),
        ("Always", &["i1=0"], "init i2"),
        ("Always", &["i1=1"], "init i1"),
        ("Never", &["i1=1"], "kill"),
        ("OnFailure", &["i1=1"], "init i1"),
        ("Always", &["i2", "i1=0"], ""),
        ("Always", &["i2=0", "i1=0"], "start a"),
        // The first one may be missing in the runtime.
        ("Always", &["i2=0"], "start a"),
        ("Always", &["a", "i2=0", "i1=0"], ""),
        ("Never", &["a=0", "i2=0"], "kill"),
    ];
    for (policy, state, expected) in table {
        let pod = pod(policy, named(&["i1", "i2"]), named(&["a"]));
        assert_eq!(run(&pod, &ready(&pod, state)), expected, "{policy} {state:?}");
    }
}

#[test]
fn sidecars_start_in_order_and_are_started_again() {
    let table: [(&str, &[&str], &str); 9] = [
        ("Always", &[], "init s1"),
        ("Always", &["s1"], "init i"),
        ("Always", &["i", "s1"], ""),
        ("Always", &["i=0", "s1"], "init s2"),
        ("Always", &["s2", "i=0", "s1"], "start a"),
        ("Always", &["a", "s2", "i=0", "s1=1"], "init s1"),
        ("Always", &["a", "s2"], "init s1"),
        // The sidecars are killed when the main container has nothing more to do.
        ("Never", &["a=0", "s2", "i=0", "s1"], "kill"),
        ("OnFailure", &["a=1", "s2=0", "i=0", "s1"], "init s2, start a"),
    ];
    for (policy, state, expected) in table {
        let init = json!([sidecar("s1"), {"name": "i", "image": "i"}, sidecar("s2")]);
        let pod = pod(policy, init, named(&["a"]));
        assert_eq!(run(&pod, &ready(&pod, state)), expected, "{policy} {state:?}");
    }
}

#[test]
fn a_sidecar_with_a_startup_probe_is_waited_for() {
    let mut with_probe = sidecar("s");
    with_probe["startupProbe"] = json!({"tcpSocket": {"port": 1}});
    let pod = pod("Always", json!([with_probe]), named(&["a"]));
    let runtime = ready(&pod, &["s"]);
    let probes = ProbeResults::default();
    for (result, expected) in [
        (ProbeResult::Unknown, ""),
        (ProbeResult::Success, "start a"),
        (ProbeResult::Failure, "stop s, init s"),
    ] {
        probes.startup.set("id-s-1", result);
        assert_eq!(text(&pod, &compute_actions(&pod, &runtime, &probes)), expected, "{result}");
    }
}

#[test]
fn probes_and_changes_restart_one_container() {
    let failing = ProbeResults::default();
    failing.liveness.set("id-a-2", ProbeResult::Failure);
    for (policy, message, expected) in [
        ("Always", "Container a failed liveness probe, will be restarted", "stop a, start a"),
        ("OnFailure", "Container a failed liveness probe, will be restarted", "stop a, start a"),
        ("Never", "Container a failed liveness probe", "stop a"),
    ] {
        let pod = pod(policy, json!([]), named(&["a", "b"]));
        let actions = compute_actions(&pod, &ready(&pod, &["a", "b"]), &failing);
        assert_eq!(text(&pod, &actions), expected);
        assert_eq!(actions.containers_to_kill[0].message, message);
        assert_eq!(actions.containers_to_kill[0].reason, KillReason::LivenessProbe);
    }
    let mut changed = pod("Never", json!([]), named(&["a", "b"]));
    let runtime = ready(&changed, &["a", "b"]);
    changed.spec.as_mut().unwrap().containers[1].image = Some("new".into());
    let actions = compute_actions(&changed, &runtime, &ProbeResults::default());
    assert_eq!(text(&changed, &actions), "stop b, start b");
    assert_eq!(actions.containers_to_kill[0].message, "Container b definition changed, will be restarted");
}

#[test]
fn sandboxes() {
    let state = |sandboxes: Vec<PodSandboxStatus>, pod: &Pod, list: &[&str]| PodRuntimeStatus {
        sandboxes,
        containers: containers(pod, list),
        ..PodRuntimeStatus::default()
    };
    let dead = || sandbox("s0", 0, SandboxState::NotReady);
    let always = pod("Always", json!([]), named(&["a"]));
    assert_eq!(run(&always, &state(vec![], &always, &[])), "kill, sandbox 0, start a");
    assert_eq!(run(&always, &state(vec![dead()], &always, &["a=137"])), "kill, sandbox 1, start a");
    let two = vec![sandbox("s1", 1, SandboxState::Ready), sandbox("s0", 0, SandboxState::Ready)];
    assert_eq!(run(&always, &state(two, &always, &["a"])), "kill, sandbox 2, start a");
    let lost = PodSandboxStatus { ips: vec![], ..sandbox("s0", 0, SandboxState::Ready) };
    assert_eq!(
        sandbox_change(&always, &state(vec![lost], &always, &[])).message,
        "pod sandbox has no IP address"
    );

    let never = pod("Never", json!([]), named(&["a"]));
    assert_eq!(run(&never, &state(vec![dead()], &never, &["a=0"])), "kill");
    assert_eq!(run(&never, &state(vec![dead()], &never, &[])), "kill, sandbox 1, start a");
    let on_failure = pod("OnFailure", json!([]), named(&["a", "b"]));
    assert_eq!(
        run(&on_failure, &state(vec![dead()], &on_failure, &["a=0", "b=137"])),
        "kill, sandbox 1, start b"
    );
    assert_eq!(run(&on_failure, &state(vec![dead()], &on_failure, &["a=0", "b=0"])), "kill");
    let init = pod("Always", named(&["i"]), named(&["a"]));
    assert_eq!(run(&init, &state(vec![dead()], &init, &["a=137", "i=0"])), "kill, sandbox 1, init i");
    // Containers in the old sandbox do not count as initialized in the new one.
    let new = vec![sandbox("s1", 1, SandboxState::Ready), dead()];
    assert_eq!(run(&init, &state(new, &init, &["a=137", "i=0"])), "init i");
}

#[test]
fn a_pod_being_deleted_starts_nothing() {
    let mut pod = pod("Always", json!([]), named(&["a"]));
    let runtime = ready(&pod, &["a=1"]);
    pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(run(&pod, &runtime), "kill");
}

#[test]
fn what_is_to_be_replaced_is_stopped_and_started_by_the_same_actions() {
    let init = json!([sidecar("side")]);
    let pod = pod("OnFailure", init, named(&["a", "b"]));
    let replaced = |list: &[&str], ids: &[&str]| {
        let replaced = ids.iter().map(|id| (*id).to_owned()).collect();
        PodRuntimeStatus { replaced, ..ready(&pod, list) }
    };
    let list = ["b", "a", "side"];
    assert_eq!(run(&pod, &replaced(&list, &[])), "");
    assert_eq!(run(&pod, &replaced(&list, &["id-a-2"])), "stop a, start a");
    assert_eq!(run(&pod, &replaced(&list, &["id-side-1"])), "stop side, init side");
    let actions = compute_actions(&pod, &replaced(&list, &["id-a-2"]), &ProbeResults::default());
    assert_eq!(actions.containers_to_kill[0].message, "Container a resize requires restart");
    let left_out = |mut actions: PodActions, name: &str| {
        actions.leave_out(&pod, name);
        text(&pod, &actions)
    };
    assert_eq!(left_out(actions.clone(), "a"), "stop a");
    assert_eq!(left_out(actions, "b"), "stop a, start a");
    // The container was stopped, and counts as replaced however it ended.
    for ended in ["a=0", "a=137"] {
        assert_eq!(run(&pod, &replaced(&["b", ended, "side"], &["id-a-2"])), "start a");
    }
    // The container ended of itself; then it is not replaced, and the pod ends when nothing else runs.
    assert_eq!(run(&pod, &replaced(&["b", "a=0", "side"], &[])), "");
    assert_eq!(run(&pod, &replaced(&["b=0", "a=0", "side"], &["id-a-2"])), "start a");
    // An older container of the name does not count.
    assert_eq!(run(&pod, &replaced(&["b", "a", "a=0", "side"], &["id-a-2"])), "");
}

/// Only a container that is started again at once is recorded as replaced.
#[test]
fn what_is_killed_for_another_reason_may_be_followed_for_its_resources() {
    for (policy, expected) in [("Always", true), ("OnFailure", true), ("Never", false)] {
        let pod = pod(policy, json!([]), named(&["a", "b"]));
        let state = |ids: &[&str]| {
            let replaced = ids.iter().map(|id| (*id).to_owned()).collect();
            PodRuntimeStatus { replaced, ..ready(&pod, &["b", "a"]) }
        };
        let probes = ProbeResults::default();
        probes.liveness.set("id-a-1", ProbeResult::Failure);
        let replaced = |ids: &[&str], probes: &ProbeResults| {
            let actions = compute_actions(&pod, &state(ids), probes);
            actions.containers_to_kill.iter().map(|kill| kill.replaced).collect::<Vec<_>>()
        };
        assert_eq!(replaced(&["id-a-1"], &probes), [expected], "{policy}");
        assert_eq!(replaced(&[], &probes), [false], "{policy}");
        assert_eq!(replaced(&["id-a-1"], &ProbeResults::default()), [true], "{policy}");
    }
}
