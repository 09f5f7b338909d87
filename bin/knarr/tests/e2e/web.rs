//! The first example of the README: `examples/web.yaml`, from the file to answers over HTTP.

use std::collections::BTreeSet;

use crate::cluster::shared;
use crate::kubectl::Kubectl;
use crate::objects::sleeper;
use crate::sandbox::{HOST_NAME, NODE_IP};

const WEB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.yaml");

fn deployed(kubectl: &Kubectl) {
    let applied = kubectl.run(["apply", "-f", WEB]);
    assert_eq!(applied, "deployment.apps/web created\nservice/web created\n");
    let status = kubectl.run("rollout status deployment/web --timeout=90s");
    assert!(status.ends_with("deployment \"web\" successfully rolled out\n"), "{status}");
}

#[test]
fn h1_node_is_ready_with_all_its_columns() {
    let kubectl = shared().admin();
    let nodes = kubectl.run("get nodes -o wide");
    let (header, row) = nodes.trim_end().split_once('\n').expect("two lines");
    let columns: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(
        columns,
        [
            "NAME",
            "STATUS",
            "ROLES",
            "AGE",
            "VERSION",
            "INTERNAL-IP",
            "EXTERNAL-IP",
            "OS-IMAGE",
            "KERNEL-VERSION",
            "CONTAINER-RUNTIME"
        ]
    );
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words[..3], [HOST_NAME, "Ready", "control-plane"], "{row}");
    assert!(words[4].starts_with("v1.37."), "{row}");
    assert_eq!(words[5..7], [NODE_IP, "<none>"], "{row}");
    let kernel = shared().sandbox.sh("uname -r");
    assert!(row.contains(kernel.trim()), "{row}");
    assert!(words.last().is_some_and(|runtime| runtime.contains("://")), "{row}");
    let os = shared().sandbox.sh(". /etc/os-release; printf '%s' \"$PRETTY_NAME\"");
    assert!(row.contains(&os), "{row}");
}

#[test]
fn a2_deployment_becomes_pods_that_answer() {
    let cluster = shared();
    let kubectl = cluster.namespace("a2");
    deployed(&kubectl);
    let deployments = kubectl.run("get deployment web");
    assert!(
        deployments.lines().nth(1).is_some_and(|l| l.starts_with("web    5/5     5            5")),
        "{deployments}"
    );

    let pods = kubectl.path("pods", r"{range .items[*]}{.metadata.name} {.status.podIP}{'\n'}{end}");
    let pods: Vec<(&str, &str)> = pods.lines().filter_map(|l| l.split_once(' ')).collect();
    assert_eq!(pods.len(), 5, "{pods:?}");
    assert_eq!(pods.iter().map(|(_, ip)| ip).collect::<BTreeSet<_>>().len(), 5, "{pods:?}");
    for (name, ip) in &pods {
        assert_eq!(cluster.http(&format!("{ip}/")), format!("{name} v1\n"));
        assert_eq!(cluster.http(&format!("{ip}/health.html")), "health check ok!\n");
    }

    let names: BTreeSet<String> = pods.iter().map(|(name, _)| format!("{name} v1\n")).collect();
    let address = kubectl.path("service web", "{.spec.clusterIP}");
    let answers: BTreeSet<String> = (0..60).map(|_| cluster.http(&format!("{address}/"))).collect();
    assert_eq!(answers, names, "every pod is reached through the Service, and nobody else");

    kubectl.apply(&sleeper("client"));
    kubectl.ready("client");
    for name in ["web", "web.a2", "web.a2.svc", "web.a2.svc.cluster.local"] {
        let url = format!("http://{name}/");
        let answer = kubectl.run(["exec", "client", "--", "timeout", "5", "wget", "-q", "-O", "-", &url]);
        assert!(names.contains(&answer), "{name}: {answer}");
    }
    let (_, own_ip) = pods[0];
    let through = ["exec", pods[0].0, "--", "timeout", "5", "wget", "-q", "-O", "-", "http://web/"];
    for _ in 0..10 {
        assert!(names.contains(&kubectl.run(through)), "a pod reaches its own Service ({own_ip})");
    }
}

#[test]
fn a2_each_step_leaves_an_event_with_its_source() {
    let kubectl = shared().namespace("a2-events");
    deployed(&kubectl);
    let description =
        kubectl.run(&format!("describe pod {}", kubectl.path("pods", "{.items[0].metadata.name}")));
    let events: Vec<Vec<&str>> = description
        .lines()
        .map(|l| l.split_whitespace().collect())
        .filter(|w: &Vec<&str>| w.len() > 4)
        .collect();
    for (reason, source) in [
        ("Scheduled", "default-scheduler"),
        ("Pulled", "kubelet"),
        ("Created", "kubelet"),
        ("Started", "kubelet"),
    ] {
        let found = events.iter().any(|w| w[0] == "Normal" && w[1] == reason && w.contains(&source));
        assert!(found, "no {reason} from {source}:\n{description}");
    }
    let message = "Successfully assigned a2-events/web-";
    assert!(description.contains(message), "{description}");
    let description = kubectl.run("describe deployment web");
    assert!(description.contains("ScalingReplicaSet"), "{description}");
    assert!(description.contains("deployment-controller"), "{description}");
    let set = kubectl.path("replicasets", "{.items[0].metadata.name}");
    assert!(description.contains(&format!("Scaled up replica set {set} from 0 to 5")), "{description}");
    assert_eq!(kubectl.event(&set, "SuccessfulCreate").lines().count(), 5);
    for line in [
        "RollingUpdateStrategy:  0 max unavailable, 1 max surge",
        "Replicas:               5 desired | 5 updated | 5 total | 5 available | 0 unavailable",
        "NewReplicaSet:   web-",
    ] {
        assert!(description.contains(line), "no `{line}`:\n{description}");
    }
}

/// The README's other examples.
#[test]
fn b7_examples_of_configuration_and_of_a_single_run() {
    let cluster = shared();
    let kubectl = cluster.namespace("examples");
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    kubectl.run(["apply", "-f", &format!("{examples}/init-and-config.yaml")]);
    kubectl.run(["apply", "-f", &format!("{examples}/run-once.yaml")]);
    kubectl.ready("configured");
    let ip = kubectl.path("pod configured", "{.status.podIP}");
    assert_eq!(cluster.http(&ip), "Hello, world.\nA small crew, a large load, an open ocean.\n");
    kubectl.phase("sum", "Succeeded");
    let message = kubectl.path("pod sum", "{.status.containerStatuses[0].state.terminated.message}");
    assert_eq!(message, "5050\n");
}
