//! Pods whose RuntimeClass names an OCI runtime: runc and crun, as packaged in Debian.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::kubectl::Kubectl;
use crate::objects::{once, pod};
use crate::sandbox::wait_for;

const CLASSES: [&str; 2] = ["runc", "crun"];
const SCRIPT: &str = "echo begun; trap 'exit 0' TERM; while true; do sleep 0.2; done";

/// crun mistakes a machine with both versions of control groups for version 2: this wrapper shows it only the
/// version that has controllers.
const CRUN: &str = r#"#!/bin/sh
mountpoint -q /sys/fs/cgroup/unified || exec /usr/bin/crun "$@"
exec unshare --mount --propagation slave sh -c 'umount /sys/fs/cgroup/unified && exec /usr/bin/crun "$@"' crun "$@"
"#;

fn start(cluster: &mut Cluster) {
    let crun = cluster.sandbox.path("crun");
    if !crun.exists() {
        std::fs::write(&crun, CRUN).expect("file");
        std::fs::set_permissions(&crun, std::fs::Permissions::from_mode(0o755)).expect("file mode");
    }
    let (runc, crun) = ("runc=/usr/sbin/runc", format!("crun={}", crun.display()));
    cluster.start_server_with(&["--runtime-handler", runc, "--runtime-handler", &crun]);
}

/// Returns a pod of a class, with probes that depend on a file in the container.
fn of_class(class: &str, name: &str) -> Value {
    let mut pod = pod(name, SCRIPT);
    pod["spec"]["runtimeClassName"] = json!(class);
    let container = &mut pod["spec"]["containers"][0];
    container["resources"] = json!({"limits": {"cpu": "250m", "memory": "64Mi"}});
    let exec = |script: &str| json!({"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1});
    container["readinessProbe"] = exec("test -e /tmp/ready");
    container["livenessProbe"] = exec("test ! -e /tmp/sick");
    pod
}

fn exit_code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Lists the folders in which OCI runtimes keep records of containers.
fn records(cluster: &Cluster) -> String {
    cluster.sandbox.sh("find /run -mindepth 5 -type d -path '*/sandboxes/*/oci/*' -prune -print")
}

#[test]
fn b10_runtime_classes_run_pods_by_oci_runtimes() {
    let mut cluster = Cluster::new();
    start(&mut cluster);
    let kubectl = cluster.namespace("b10");
    let handlers = kubectl.path("nodes", "{.items[0].status.runtimeHandlers}");
    let handlers: Value = serde_json::from_str(&handlers).expect("JSON");
    let names: Vec<&str> =
        handlers.as_array().expect("a list").iter().map(|h| h["name"].as_str().unwrap_or("")).collect();
    assert_eq!(names, ["", "crun", "runc"]);
    assert_eq!(handlers[2]["features"], json!({"recursiveReadOnlyMounts": true, "userNamespaces": false}));
    for (name, handler) in [("runc", "runc"), ("crun", "crun"), ("missing", "kata")] {
        kubectl.apply(
            &json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name},
            "handler": handler, "overhead": {"podFixed": {"memory": "16Mi", "cpu": "50m"}}}),
        );
    }
    for class in CLASSES {
        runs(&cluster, &kubectl, class);
    }
    kubectl.apply(&of_class("missing", "refused"));
    let told = kubectl.event("refused", "FailedCreatePodSandBox");
    assert!(told.contains("failed to get sandbox runtime: no runtime for \"kata\" is configured"), "{told}");
    kubectl.run("delete pod refused --wait=true");

    let before = kubectl.path("pods", "{.items[*].status.containerStatuses[0].containerID}");
    std::mem::forget(kubectl);
    cluster.kill_server();
    start(&mut cluster);
    let kubectl = Kubectl::new(&cluster, Some("b10".to_owned()), cluster.kubeconfig());
    for class in CLASSES {
        kubectl.ready(class);
    }
    assert_eq!(kubectl.path("pods", "{.items[*].status.containerStatuses[0].containerID}"), before);
    for class in CLASSES {
        ends(&kubectl, class);
    }
    // The runtime removes its record after the container has ended.
    wait_for("the records to go", Duration::from_secs(30), || records(&cluster).is_empty().then_some(()));
}

fn runs(cluster: &Cluster, kubectl: &Kubectl<'_>, class: &str) {
    let before = records(cluster).lines().count();
    kubectl.apply(&of_class(class, class));
    kubectl.phase(class, "Running");
    kubectl.eventually(&*format!("logs {class}"), |log| log == "begun\n");
    assert_eq!(kubectl.path(&format!("pod {class}"), "{.status.containerStatuses[0].ready}"), "false");
    let output = kubectl.attempt(["exec", class, "--", "sh", "-c", "touch /tmp/ready; hostname; exit 7"]);
    assert_eq!(
        (exit_code(&output), &*String::from_utf8_lossy(&output.stdout)),
        (Some(7), &*format!("{class}\n"))
    );
    kubectl.ready(class);
    assert_eq!(records(cluster).lines().count(), before + 1);
    let uid = kubectl.path(&format!("pod {class}"), "{.metadata.uid}");
    let of_pod = |v1: &str, v2: &str| {
        let find = format!(
            "find /sys/fs/cgroup -path '*{}/*pod{uid}/{v1}' -exec cat {{}} + -o -path '*{}/*pod{uid}/{v2}' -exec cat {{}} +",
            cluster.sandbox.cgroup_root, cluster.sandbox.cgroup_root
        );
        cluster.sandbox.sh(&find).trim().to_owned()
    };
    assert_eq!(of_pod("memory.limit_in_bytes", "memory.max"), (80 << 20).to_string(), "with the overhead");
    assert_eq!(of_pod("pids.max", "pids.max").lines().next(), Some("4096"));
    kubectl.apply(&{
        let mut pod = once(&format!("{class}-once"), "echo word; exit 3");
        pod["spec"]["runtimeClassName"] = json!(class);
        pod
    });
    kubectl.phase(&format!("{class}-once"), "Failed");
    let code = "{.status.containerStatuses[0].state.terminated.exitCode}";
    assert_eq!(kubectl.path(&format!("pod {class}-once"), code), "3");
    assert_eq!(kubectl.run(&*format!("logs {class}-once")), "word\n");
    kubectl.run(&*format!("delete pod {class}-once"));
}

/// Checks that a failing container is restarted, and that a deleted pod ends.
fn ends(kubectl: &Kubectl<'_>, class: &str) {
    kubectl.run(["exec", class, "--", "touch", "/tmp/sick"]);
    kubectl.until(&format!("pod {class}"), "{.status.containerStatuses[0].restartCount}", "1");
    let last = "{.status.containerStatuses[0].lastState.terminated.exitCode}";
    kubectl.until(&format!("pod {class}"), last, "0");
    kubectl.run(&*format!("delete pod {class}"));
}
