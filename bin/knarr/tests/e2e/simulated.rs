//! Simulated nodes: `knarr agent --simulate`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use crate::cluster::{Cluster, knarr};
use crate::objects::web;
use crate::sandbox::{log_to, wait_for};

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
