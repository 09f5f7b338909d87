//! Pods connected by the reference CNI plugins instead of the built-in network.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::kubectl::Kubectl;
use crate::objects::{service, sleeper, web};
use crate::requirements::cni_bin_dir;
use crate::sandbox::{NODE_IP, wait_for};

const NODE: &str = "node/knarr-test";

fn start(cluster: &mut Cluster) {
    let conf_dir = cluster.sandbox.path("net.d");
    let plugins = cni_bin_dir().expect("checked before");
    cluster.start_server_with(&[
        "--network-plugin",
        "cni",
        "--cni-conf-dir",
        &conf_dir.to_string_lossy(),
        "--cni-bin-dir",
        &format!("/nowhere,{plugins}"),
    ]);
}

/// Writes a configuration of `plugin` with addresses from the node's own range, and host ports.
fn configure(cluster: &Cluster, plugin: &Value) {
    let mut first = plugin.clone();
    first["ipMasq"] = true.into();
    first["capabilities"] = json!({"ipRanges": true});
    first["ipam"] = json!({
        "type": "host-local",
        "dataDir": cluster.sandbox.path("addresses"),
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let list = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [first, {"type": "portmap", "capabilities": {"portMappings": true}}],
    });
    let (unfinished, file) =
        (cluster.sandbox.path("net.d/unfinished"), cluster.sandbox.path("net.d/10-pods.conflist"));
    fs::write(&unfinished, list.to_string()).expect("file");
    fs::rename(unfinished, file).expect("file");
}

fn leases(cluster: &Cluster) -> BTreeSet<String> {
    let files = fs::read_dir(cluster.sandbox.path("addresses/pods")).into_iter().flatten().flatten();
    let names = files.map(|f| f.file_name().to_string_lossy().into_owned());
    names.filter(|n| n.starts_with("10.")).collect()
}

fn no_leases(cluster: &Cluster) {
    wait_for("the end of all leases", Duration::from_secs(20), || leases(cluster).is_empty().then_some(()));
}

fn pod_ips(kubectl: &Kubectl) -> BTreeSet<String> {
    let ips = kubectl.path("pods", "{.items[*].status.podIP}");
    ips.split(' ').filter(|ip| !ip.is_empty()).map(str::to_owned).collect()
}

/// Checks that two web servers behind a Service and a client with a host port all reach each other.
fn everything_reaches(cluster: &Cluster, kubectl: &Kubectl) {
    let mut client = sleeper("client");
    client["spec"]["containers"].as_array_mut().expect("containers").push(json!({
        "name": "web", "image": "knarr.local/web:v1",
        "ports": [{"containerPort": 80, "hostPort": 8088}],
    }));
    kubectl.apply(&client);
    kubectl.apply(&web("web", 2));
    kubectl.apply(&service("web"));
    kubectl.ready("client");
    kubectl.run("rollout status deployment/web --timeout=90s");
    let names = kubectl.path("pods -l app=web", "{.items[*].metadata.name}");
    let names: BTreeSet<String> = names.split(' ').map(|n| format!("{n} v1\n")).collect();
    let address = kubectl.path("service web", "{.spec.clusterIP}");
    let from_node: BTreeSet<String> = (0..30).map(|_| cluster.http(&address)).collect();
    assert_eq!(from_node, names);
    let from_pod = || kubectl.run("exec client -c main -- timeout 5 wget -q -O - http://web");
    let from_pod: BTreeSet<String> = (0..20).map(|_| from_pod()).collect();
    assert_eq!(from_pod, names);
    for ip in pod_ips(kubectl) {
        kubectl.run(&format!("exec client -c main -- ping -c 1 -W 5 {ip}"));
    }
    assert_eq!(cluster.http(&format!("{NODE_IP}:8088")), "client v1\n");
}

#[test]
fn a4_the_reference_plugins_connect_pods() {
    let mut cluster = Cluster::new();
    start(&mut cluster);
    let admin = cluster.admin();
    let ready = "{.status.conditions[?(@.type=='Ready')].message}";
    admin.eventually(["get", NODE, "-o", &format!("jsonpath={ready}")], |said| {
        said.contains("NetworkPluginNotReady")
            && said.contains("cni plugin not initialized: no network config")
    });
    configure(&cluster, &json!({"type": "ptp"}));
    admin.run(&format!("wait --for=condition=Ready {NODE} --timeout=60s"));
    let kubectl = cluster.namespace("cni");
    everything_reaches(&cluster, &kubectl);
    let range = admin.path(NODE, "{.spec.podCIDR}").replace("0/24", "");
    let ips = pod_ips(&kubectl);
    assert!(ips.len() == 3 && ips.iter().all(|ip| ip.starts_with(&range)), "{ips:?} of {range}");
    assert_eq!(leases(&cluster), ips);
    assert_eq!(
        cluster.sandbox.sh("ip -brief link show master knarr0"),
        "",
        "no pod is on the built-in bridge"
    );

    drop(admin);
    std::mem::forget(kubectl);
    cluster.kill_server();
    start(&mut cluster);
    let kubectl = Kubectl::new(&cluster, Some("cni".to_owned()), cluster.kubeconfig());
    assert_eq!(pod_ips(&kubectl), ips);
    assert_eq!(cluster.http(&format!("{NODE_IP}:8088")), "client v1\n");

    kubectl.run("delete deployment,service,pod --all --wait");
    no_leases(&cluster);
    assert_eq!(cluster.try_http(&format!("{NODE_IP}:8088")), None);

    // With another plugin, pods that start from now on are connected by it.
    configure(&cluster, &json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true}));
    everything_reaches(&cluster, &kubectl);
    assert!(cluster.sandbox.sh("ip -brief link show master cni0").lines().count() >= 3);

    configure(&cluster, &json!({"type": "none-such"}));
    kubectl.apply(&sleeper("late"));
    let told = kubectl.event("late", "FailedCreatePodSandBox");
    assert!(told.contains("failed to find plugin \"none-such\" in path [/nowhere "), "{told}");
    // Pods that the previous plugin connected are disconnected by it.
    kubectl.run("delete deployment,service,pod --all --wait");
    no_leases(&cluster);
}
