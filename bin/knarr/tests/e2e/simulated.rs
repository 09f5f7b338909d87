//! Simulated nodes: `knarr agent --simulate`.

use std::collections::BTreeMap;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::cluster::{Cluster, knarr};
use crate::kubectl::Kubectl;
use crate::objects::web;
use crate::sandbox::{log_to, only_child, wait_for};

#[test]
fn h1_fifty_simulated_nodes_run_two_hundred_pods() {
    let cluster = Cluster::start();
    let kubectl = cluster.namespace("many");
    let mut agent = cluster.sandbox.command(knarr());
    agent.args(["agent", "--simulate", "50", "--kubeconfig"]).arg(cluster.kubeconfig());
    let log = cluster.sandbox.path("agent.log");
    log_to(&mut agent, &log);
    let mut agent = agent.spawn().expect("nsenter(1) of util-linux");
    wait_for("51 Ready nodes", Duration::from_secs(60), || {
        let ready =
            kubectl.path("nodes", r"{range .items[*]}{.status.conditions[?(@.type=='Ready')].status} {end}");
        (ready.split_whitespace().filter(|s| *s == "True").count() == 51).then_some(())
    });
    // Each node got its addresses at once, no matter how often it changed meanwhile.
    let events = kubectl.run("get events -A --field-selector involvedObject.kind=Node");
    assert!(!events.contains("CIDRAssignmentFailed"), "{events}");
    kubectl.run("cordon knarr-test");
    let mut deployment = web("many", 200);
    deployment["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "100m"}});
    kubectl.apply(&deployment);
    kubectl.run("rollout status deployment/many --timeout=120s");
    let nodes = kubectl.path("pods", r"{range .items[*]}{.spec.nodeName} {.status.phase}{'\n'}{end}");
    let mut per_node: BTreeMap<&str, u32> = BTreeMap::new();
    for line in nodes.lines() {
        let (node, phase) = line.split_once(' ').unwrap_or_default();
        assert_eq!(phase, "Running", "{line}");
        *per_node.entry(node).or_default() += 1;
    }
    assert_eq!(per_node.values().sum::<u32>(), 200);
    assert_eq!(per_node.len(), 50, "spread over all nodes: {per_node:?}");
    kubectl.run("delete deployment many");
    kubectl.eventually("get pods -o name", str::is_empty);
    let _ = agent.kill();
    let _ = agent.wait();
}

/// A process with one simulated node, `NAME-0001`.
pub struct Machine {
    name: String,
    agent: Child,
}

impl Machine {
    pub fn start(cluster: &Cluster, name: &str) -> Self {
        let mut agent = cluster.sandbox.command(knarr());
        agent
            .args(["agent", "--simulate", "1", "--node-name", name, "--kubeconfig"])
            .arg(cluster.kubeconfig());
        log_to(&mut agent, &cluster.sandbox.path(&format!("{name}.log")));
        Self { name: format!("{name}-0001"), agent: agent.spawn().expect("nsenter(1) of util-linux") }
    }

    /// Stops the node's heartbeats.
    pub fn fall(&mut self) {
        if let Some(agent) = only_child(self.agent.id()) {
            let _ = kill(Pid::from_raw(agent.cast_signed()), Signal::SIGKILL);
        }
        let _ = self.agent.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.fall();
    }
}

/// A node misses heartbeats for 40 seconds before it is marked unknown.
const FALL: Duration = Duration::from_secs(120);

/// Returns the workload's pod that is not terminating, with its node.
fn live_pod(kubectl: &Kubectl) -> Option<(String, String)> {
    let columns = "custom-columns=N:.metadata.name,D:.metadata.deletionTimestamp,O:.spec.nodeName";
    let pods = kubectl.run(["get", "pods", "-l", "app=bomb", "--no-headers", "-o", columns]);
    let mut lines = pods.lines().map(|l| l.split_whitespace().collect::<Vec<_>>());
    let live = lines.find(|words| words.get(1) == Some(&"<none>"))?;
    Some((live[0].to_owned(), live[2].to_owned()))
}

/// Makes two of three nodes not ready, each some time after a workload's pod was bound to it; returns the
/// name of the third.
fn two_nodes_fall(kubectl: &Kubectl, machines: &mut [Machine]) -> String {
    let mut fallen: Vec<String> = Vec::new();
    for _ in 0..2 {
        let node = wait_for("the pod on a node that stands", FALL, || {
            let (pod, node) = live_pod(kubectl)?;
            let phase = kubectl.path(&format!("pod {pod}"), "{.status.phase}");
            // The pod may have been bound between the two reads.
            let stands = machines.iter().any(|m| m.name == node) && !fallen.contains(&node);
            (phase == "Running" && stands).then_some(node)
        });
        let held = kubectl.run("get events -A --field-selector reason=WorkloadHeldBack -o name");
        assert_eq!(held, "", "a workload is held back after {fallen:?}");
        machines.iter_mut().find(|m| m.name == node).expect("one of the machines").fall();
        wait_for("the node's fall", FALL, || {
            let path = "{.status.conditions[?(@.type=='Ready')].status}";
            (kubectl.path(&format!("node {node}"), path) != "True").then_some(())
        });
        fallen.push(node);
    }
    machines.iter().map(|m| m.name.clone()).find(|name| !fallen.contains(name)).expect("a third machine")
}

/// Starts a cluster in which two failed nodes in a row are enough, with three simulated machines and a
/// workload for them.
fn with_a_workload(hold: bool) -> (Cluster, Vec<Machine>) {
    let mut cluster = Cluster::new();
    let settings = cluster.sandbox.path("scheduler.yaml");
    let short = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "nodeFailureAwareness": {"enabled": hold, "hold": {"nodes": 2}}});
    std::fs::write(&settings, short.to_string()).expect("the scheduler's configuration");
    cluster.start_server_with(&["--scheduler-config", &settings.to_string_lossy()]);
    let machines = ["one", "two", "three"].map(|name| Machine::start(&cluster, name));
    (cluster, machines.into())
}

fn start_workload(kubectl: &Kubectl, machines: &[Machine], name: &str) {
    machines.iter().for_each(|m| {
        kubectl.until(&format!("node {}", m.name), "{.status.conditions[?(@.type=='Ready')].status}", "True")
    });
    let mut deployment = web(name, 1);
    let spec = &mut deployment["spec"]["template"]["spec"];
    spec["nodeSelector"] = json!({"knarr.dev/simulated": "true"});
    let soon =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    spec["tolerations"] =
        json!([soon("node.kubernetes.io/not-ready"), soon("node.kubernetes.io/unreachable")]);
    kubectl.apply(&deployment);
}

#[test]
fn d13_a_workload_that_takes_node_after_node_with_it_is_held_back_until_somebody_answers_for_it() {
    let (cluster, mut machines) = with_a_workload(true);
    let kubectl = cluster.namespace("held");
    start_workload(&kubectl, &machines, "bomb");
    let third = two_nodes_fall(&kubectl, &mut machines);
    let (pod, why) = wait_for("the pod that is held back", FALL, || {
        let (pod, node) = live_pod(&kubectl)?;
        let why =
            kubectl.path(&format!("pod {pod}"), "{.status.conditions[?(@.type=='PodScheduled')].message}");
        (node == "<none>" && why.contains("held back: nodes ")).then_some((pod, why))
    });
    assert!(
        why.contains("stopped being ready one after another with pods of this workload; until 20"),
        "{why}"
    );
    let told = kubectl.event(&pod, "FailedScheduling");
    assert!(told.contains("held back: nodes "), "{told}");
    let events =
        kubectl.run("get events -A --field-selector reason=WorkloadHeldBack -o jsonpath={.items[*].message}");
    assert!(events.contains("are held back: nodes ") && !events.contains(&third), "{events}");

    // Other workloads are not affected.
    let mut calm = web("calm", 1);
    calm["spec"]["template"]["spec"]["nodeName"] = json!(null);
    calm["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": third});
    kubectl.apply(&calm);
    kubectl.run("rollout status deployment/calm --timeout=60s");
    assert_eq!(live_pod(&kubectl).map(|(_, node)| node).as_deref(), Some("<none>"));

    kubectl.run(&format!("annotate pod {pod} scheduling.knarr.io/release=yes"));
    kubectl.until(&format!("pod {pod}"), "{.spec.nodeName}", &third);
    kubectl.until(&format!("pod {pod}"), "{.status.phase}", "Running");
    assert!(kubectl.event(&pod, "WorkloadReleased").contains("Scheduled again on request"));
}

#[test]
fn d13_nothing_is_held_back_where_that_is_switched_off() {
    let (cluster, mut machines) = with_a_workload(false);
    let kubectl = cluster.namespace("free");
    start_workload(&kubectl, &machines, "bomb");
    let third = two_nodes_fall(&kubectl, &mut machines);
    wait_for("the pod on the third node", FALL, || {
        let (pod, node) = live_pod(&kubectl)?;
        let phase = kubectl.path(&format!("pod {pod}"), "{.status.phase}");
        (node == third && phase == "Running").then_some(())
    });
    assert_eq!(kubectl.run("get events -A --field-selector reason=WorkloadHeldBack -o name"), "");
}
