//! What happens to pods when their node is tainted, under pressure, or unresponsive.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::kubectl::Kubectl;
use crate::objects::{sleeper, web};
use crate::sandbox::wait_for;
use crate::simulated::Machine;

/// A node is marked unknown after 50 seconds without a heartbeat.
const SILENCE: Duration = Duration::from_secs(120);

fn taints(kubectl: &Kubectl, node: &str) -> Vec<String> {
    let path = r"{range .spec.taints[*]}{.key}:{.effect}{'\n'}{end}";
    let mut taints: Vec<String> =
        kubectl.path(&format!("node {node}"), path).lines().map(str::to_owned).collect();
    taints.sort();
    taints
}

fn until_taints(kubectl: &Kubectl, node: &str, want: &[&str]) {
    wait_for(&format!("{node} with the taints {want:?}"), SILENCE, || {
        (taints(kubectl, node) == want).then_some(())
    });
}

#[test]
fn e1_no_execute_evicts_at_once_later_or_never() {
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("e1");
    let tolerating = |name: &str, toleration: Value| {
        let mut pod = sleeper(name);
        pod["spec"]["tolerations"] = json!([toleration]);
        pod
    };
    let with = |name: &str, seconds: Value| {
        tolerating(
            name,
            json!({"key": "repair", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}),
        )
    };
    kubectl.apply(&sleeper("plain"));
    kubectl.apply(&with("patient", json!(3)));
    kubectl.apply(&with("staying", json!(null)));
    kubectl.apply(&with("lucky", json!(3600)));
    for pod in ["plain", "patient", "staying", "lucky"] {
        kubectl.ready(pod);
    }
    let remaining =
        |kubectl: &Kubectl| kubectl.run("get pods -o custom-columns=N:.metadata.name --no-headers");
    kubectl.run("taint node knarr-test repair=now:NoSchedule");
    kubectl.apply(&sleeper("late"));
    let told = kubectl.event("late", "FailedScheduling");
    assert!(told.starts_with("0/1 nodes are available: 1 node(s) had untolerated taint(s)."), "{told}");
    assert_eq!(remaining(&kubectl).lines().count(), 5, "NoSchedule evicts nobody");

    kubectl.run("taint node knarr-test repair=now:NoExecute");
    let deletion = |name: &str| kubectl.event(name, "TaintManagerEviction");
    assert!(deletion("plain").contains("Marking for deletion Pod e1/plain"));
    kubectl.run("wait --for=delete pod/plain --timeout=60s");
    assert!(deletion("patient").contains("Marking for deletion Pod e1/patient"));
    kubectl.run("wait --for=delete pod/patient --timeout=60s");
    assert_eq!(remaining(&kubectl), "late\nlucky\nstaying\n");
    kubectl.run("taint node knarr-test repair-");
    kubectl.ready("late");
    assert_eq!(kubectl.path("pod lucky", "{.metadata.deletionTimestamp}"), "");
    let told = kubectl.event("lucky", "TaintManagerEviction");
    assert!(told.contains("Cancelling deletion of Pod e1/lucky"), "{told}");
}

/// Builds a Node object without a kubelet, with the given condition.
fn written(name: &str, conditions: &Value) -> Value {
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"capacity": room, "allocatable": room, "conditions": conditions}})
}

#[test]
fn e2_conditions_of_a_node_become_taints_and_go_again() {
    // The cluster's own node is healthy all the time: if no node were ready, no pod would be evicted.
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("e2");
    kubectl.run("cordon knarr-test");
    let conditions =
        |changed: &str, status: &str| {
            let all = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"];
            let status_of = |name: &str| match name {
                _ if name == changed => status.to_owned(),
                "Ready" => "True".to_owned(),
                _ => "False".to_owned(),
            };
            json!(all.map(
                |name| json!({"type": name, "status": status_of(name), "reason": "Test", "message": "-"})
            ))
        };
    let table = [
        ("MemoryPressure", "True", &["node.kubernetes.io/memory-pressure:NoSchedule"][..]),
        ("DiskPressure", "True", &["node.kubernetes.io/disk-pressure:NoSchedule"]),
        ("PIDPressure", "True", &["node.kubernetes.io/pid-pressure:NoSchedule"]),
        ("NetworkUnavailable", "True", &["node.kubernetes.io/network-unavailable:NoSchedule"]),
        (
            "Ready",
            "False",
            &["node.kubernetes.io/not-ready:NoExecute", "node.kubernetes.io/not-ready:NoSchedule"],
        ),
        (
            "Ready",
            "Unknown",
            &["node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"],
        ),
    ];
    for (condition, status, want) in table {
        let name = format!("{condition}-{status}").to_lowercase();
        kubectl.with("create -f -", &written(&name, &conditions("", "")).to_string());
        until_taints(&kubectl, &name, &[]);
        let patch = |conditions: Value| {
            let patch = json!({"status": {"conditions": conditions}}).to_string();
            kubectl.run(["patch", "node", &name, "--subresource=status", "--type=merge", "-p", &patch]);
        };
        patch(conditions(condition, status));
        until_taints(&kubectl, &name, want);
        if condition == "MemoryPressure" {
            // Pods with a memory request are kept away, and so are those without requests.
            let mut pod = sleeper("pressed");
            pod["spec"]["nodeName"] = json!(null);
            kubectl.apply(&pod);
            let told = kubectl.event("pressed", "FailedScheduling");
            assert!(told.contains(" node(s) had untolerated taint(s)"), "{told}");
            let tolerations = kubectl.json("pod pressed")["spec"]["tolerations"].clone();
            let of = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
            let want = json!([of("node.kubernetes.io/not-ready"), of("node.kubernetes.io/unreachable")]);
            assert_eq!(tolerations, want);
        }
        patch(conditions("", ""));
        until_taints(&kubectl, &name, &[]);
        kubectl.run(&format!("cordon {name}"));
        until_taints(&kubectl, &name, &["node.kubernetes.io/unschedulable:NoSchedule"]);
        kubectl.run(&format!("uncordon {name}"));
        until_taints(&kubectl, &name, &[]);
        kubectl.run(&format!("delete node {name}"));
    }
}

#[test]
fn e3_a_silent_node_is_unknown_its_pods_move_and_are_not_lost_track_of() {
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("e3");
    let (mut first, _second) = (Machine::start(&cluster, "first"), Machine::start(&cluster, "second"));
    let ready = "{.status.conditions[?(@.type=='Ready')].status}";
    for node in ["first-0001", "second-0001"] {
        kubectl.until(&format!("node {node}"), ready, "True");
    }
    let mut moving = web("moving", 2);
    let spec = &mut moving["spec"]["template"]["spec"];
    spec["nodeSelector"] = json!({"knarr.dev/simulated": "true"});
    let soon =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2});
    spec["tolerations"] =
        json!([soon("node.kubernetes.io/not-ready"), soon("node.kubernetes.io/unreachable")]);
    kubectl.apply(&moving);
    kubectl.run("rollout status deployment/moving --timeout=90s");
    let mut patient = sleeper("patient");
    patient["spec"]["nodeName"] = json!("first-0001");
    kubectl.apply(&patient);
    kubectl.ready("patient");
    let on_first = "get pods -l app=moving --field-selector spec.nodeName=first-0001 -o name";
    let before = kubectl.run(on_first);
    assert_eq!(before.lines().count(), 1, "one pod on each: {before}");

    first.fall();
    wait_for("the node's being Unknown", SILENCE, || {
        (kubectl.path("node first-0001", ready) == "Unknown").then_some(())
    });
    until_taints(
        &kubectl,
        "first-0001",
        &["node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"],
    );
    let told = cluster.admin().event("first-0001", "NodeNotReady");
    assert!(told.contains("Node first-0001 status is now: NodeNotReady"), "{told}");
    let reason = kubectl.path("node first-0001", "{.status.conditions[?(@.type=='Ready')].reason}");
    assert_eq!(reason, "NodeStatusUnknown");
    // A replacement starts on the other node; the old pod stays until its kubelet reports that it has ended.
    let on_second = "get pods -l app=moving --field-selector spec.nodeName=second-0001 -o name";
    kubectl.eventually(on_second, |out| out.lines().count() == 2);
    assert_eq!(kubectl.run(on_first), before);
    let old = before.trim();
    assert_ne!(kubectl.run(["get", old, "-o=jsonpath={.metadata.deletionTimestamp}"]), "");
    assert!(kubectl.run(["get", old]).contains("Terminating"));
    // The pod with the default 300 seconds stays, and is no longer ready.
    kubectl.until("pod patient", ready, "False");
    assert_eq!(kubectl.path("pod patient", "{.metadata.deletionTimestamp}"), "");

    let _again = Machine::start(&cluster, "first");
    kubectl.until("node first-0001", ready, "True");
    until_taints(&kubectl, "first-0001", &[]);
    kubectl.eventually(on_first, str::is_empty);
    kubectl.until("pod patient", ready, "True");
}

#[test]
fn e1_a_node_short_of_disk_says_so_and_gets_no_pods() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&["--eviction-hard", "nodefs.available<99.9%"]);
    let line = "knarr-test, but under DiskPressure: gets no pods until more of the machine is free";
    assert!(cluster.log().contains(line), "{}", cluster.log());
    let kubectl = cluster.namespace("e1-disk");
    until_taints(&kubectl, "knarr-test", &["node.kubernetes.io/disk-pressure:NoSchedule"]);
    let condition = r#"{range .status.conditions[?(@.type=="DiskPressure")]}{.status} {.reason}{end}"#;
    assert_eq!(kubectl.path("node knarr-test", condition), "True KubeletHasDiskPressure");
    kubectl.apply(&sleeper("waiting"));
    let told = kubectl.event("waiting", "FailedScheduling");
    assert!(told.starts_with("0/1 nodes are available: 1 node(s) had untolerated taint(s)."), "{told}");

    drop(kubectl);
    assert!(cluster.interrupt_server());
    cluster.start_server_with(&["--eviction-hard", "memory.available<100Mi,nodefs.available<0%"]);
    assert!(!cluster.log().contains("but under"), "{}", cluster.log());
    let kubectl = cluster.namespace("e1-room");
    kubectl.apply(&sleeper("placed"));
    kubectl.ready("placed");
    until_taints(&kubectl, "knarr-test", &[]);
}
