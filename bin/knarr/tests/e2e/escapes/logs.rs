//! Files that the node reads and writes for a pod, replaced by a pod that mounts their folder; and the pod's
//! token.

use std::time::Duration;

use serde_json::json;

use super::host::{WORDS, make_marker, marker_changes};
use crate::cluster::{Cluster, shared};
use crate::objects::{once, pod, sleeper};
use crate::sandbox::wait_for;

/// Returns the path of the first log of the pod `victim`.
fn log_of_victim(cluster: &Cluster, namespace: &str) -> String {
    let folder = cluster.data_dir();
    let find = format!("find {} -path '*/{namespace}_victim_*' -name 0.log", folder.display());
    cluster.sandbox.sh(&find).trim().to_owned()
}

/// Log collectors mount the folder of logs; that must give them no other file of the host.
#[test]
fn log_files_that_are_links() {
    let cluster = shared();
    let kubectl = cluster.namespace("escapes-logs");
    let marker = make_marker(&cluster.sandbox.path("marker-of-logs"));
    let script = "echo begun; until [ -e /tmp/end ]; do sleep 0.1; done; echo ended; exit 1";
    let mut victim = pod("victim", script);
    victim["spec"]["containers"][0]["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    kubectl.apply(&victim);
    kubectl.eventually("logs victim", |log| log == "begun\n");
    let log = log_of_victim(cluster, "escapes-logs");
    let folder = log.strip_suffix("/0.log").expect("one log");

    let file = marker.join("of-the-host");
    let replaces =
        format!("cd /logs && rm 0.log && for n in 0 1 2; do ln -s {} $n.log; done", file.display());
    let mut collector = once("collector", &replaces);
    collector["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "logs", "mountPath": "/logs"}]);
    collector["spec"]["volumes"] = json!([{"name": "logs", "hostPath": {"path": folder}}]);
    kubectl.apply(&collector);
    let phase = kubectl.eventually("get pod collector -o=jsonpath={.status.phase}", |out| {
        matches!(out, "Succeeded" | "Failed")
    });
    assert_eq!(phase, "Succeeded", "{}", kubectl.run("logs collector"));

    for words in ["logs victim", "logs victim --tail=5"] {
        let output = kubectl.attempt(words);
        assert!(!String::from_utf8_lossy(&output.stdout).contains(WORDS), "{output:?}");
    }
    kubectl.run("exec victim -- touch /tmp/end");
    // The container is restarted with another log, or cannot be.
    let states = "{.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state}";
    kubectl.eventually(["get", "pod", "victim", &format!("-o=jsonpath={states}")], |out| {
        !out.starts_with('0') || out.contains("RunContainerError") || out.contains("StartError")
    });
    let status = kubectl.path("pod victim", "{.status.containerStatuses}");
    assert!(!status.contains(WORDS), "{status}");
    assert_eq!(marker_changes(&marker), Vec::<String>::new());
}

/// A log that was replaced by a pipe blocks no reader.
#[test]
fn a_log_that_is_a_pipe() {
    let cluster = shared();
    let kubectl = cluster.namespace("escapes-pipe");
    kubectl.apply(&pod("victim", "echo begun; exec sleep 3600"));
    kubectl.eventually("logs victim", |log| log == "begun\n");
    let log = log_of_victim(cluster, "escapes-pipe");
    cluster.sandbox.sh(&format!("rm {log} && mkfifo {log}"));
    let reading = kubectl.background("logs victim");
    let (_, output) = reading.end();
    assert!(output.contains("not a plain file"), "{output}");
}

/// A pod's token gives access to nothing of other pods, their tokens or Secrets.
#[test]
fn a_pod_s_token_is_of_use_to_that_pod_alone() {
    let cluster = shared();
    let (kubectl, other) = (cluster.namespace("escapes-token"), cluster.namespace("escapes-victim"));
    for kubectl in [&kubectl, &other] {
        kubectl.apply(&sleeper("box"));
        kubectl.ready("box");
    }
    let token = kubectl.run("exec box -- cat /var/run/secrets/kubernetes.io/serviceaccount/token");
    let with_token = |words: &str| {
        let mut command = cluster.sandbox.command("kubectl");
        command.args(["--kubeconfig", "/dev/null", "--server", "https://127.0.0.1:6443"]);
        command.args(["--insecure-skip-tls-verify", "--token", token.trim()]);
        command.args(words.split(' ')).output().expect("nsenter(1) of util-linux")
    };
    wait_for("an answer to the token", Duration::from_secs(60), || {
        let output = with_token("auth whoami");
        String::from_utf8_lossy(&output.stdout).contains("escapes-token:default").then_some(())
    });
    for words in [
        "get secrets --namespace escapes-token",
        "create token default --namespace escapes-token",
        "create token default --namespace escapes-victim",
        "create token generic-garbage-collector --namespace kube-system",
        "get pod box --namespace escapes-victim",
        "exec box --namespace escapes-victim -- true",
        "get --raw /api/v1/nodes/knarr-test/proxy/pods",
        "get --raw /api/v1/namespaces/kube-system/secrets",
    ] {
        let output = with_token(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("forbidden"), "{words}: {output:?}");
    }
}
