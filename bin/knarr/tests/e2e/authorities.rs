//! Rotation of the authorities while the pods of two machines and the agent keep running.

use std::process::Output;

use serde_json::json;

use crate::cluster::{Cluster, knarr};
use crate::kubectl::{Kubectl, PATIENCE};
use crate::objects::sleeper;
use crate::sandbox::{succeeded, wait_for};
use crate::two_nodes::{WORKER, Worker, node_kubeconfig};

const PODS: [&str; 2] = ["near", "far"];
/// The text that `rotate-ca status` prints before a restart.
const UNSERVED: &str = "waits for the server to be restarted";

fn rotate_ca(cluster: &Cluster, words: &[&str]) -> Output {
    let words = [&["certificates", "rotate-ca"], words].concat();
    cluster.knarr(&words).output().expect("nsenter(1) of util-linux")
}

/// Counts the authorities in a PEM text.
fn count(pem: &str) -> usize {
    pem.matches("BEGIN CERTIFICATE").count()
}

fn containers(kubectl: &Kubectl) -> Vec<String> {
    let of = |pod: &&str| {
        let path = "{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}";
        kubectl.path(&format!("pod {pod}"), path)
    };
    PODS.iter().map(of).collect()
}

/// Wakes the agent, which checks its folder when a file in it changes, and otherwise every ten minutes.
fn wake(worker: &Worker) {
    let mut command = worker.sandbox.command(knarr());
    command.args(["certificates", "rotate", "kubelet", "--data-dir"]).arg(worker.sandbox.path("data"));
    succeeded("knarr certificates rotate", &command.output().expect("nsenter(1) of util-linux"));
}

fn trusted(worker: &Worker) -> String {
    std::fs::read_to_string(worker.sandbox.path("data/pki/cluster-ca.pem")).unwrap_or_default()
}

/// Checks everything that depends on a certificate: kubectl, exec through both kubelets, tokens of pods, the
/// agent's Node.
fn works(cluster: &Cluster, authorities: usize) {
    let kubectl = cluster.admin();
    let condition = |node: &str| format!("wait --for=condition=Ready node/{node} --timeout=60s");
    kubectl.run(condition("knarr-test").as_str());
    kubectl.run(condition(WORKER).as_str());
    kubectl.until("configmap kube-root-ca.crt", "{.metadata.name}", "kube-root-ca.crt");
    wait_for("the published authorities", PATIENCE, || {
        let bundle = kubectl.path("configmap kube-root-ca.crt", "{.data.ca\\.crt}");
        (count(&bundle) == authorities).then_some(())
    });
    for pod in PODS {
        wait_for("exec", PATIENCE, || {
            kubectl.attempt(["exec", pod, "--", "true"]).status.success().then_some(())
        });
    }
}

#[test]
fn h6_authorities_are_replaced_while_pods_go_on() {
    let mut cluster = Cluster::start();
    let mut worker = Worker::beside(&cluster);
    worker.start(&node_kubeconfig(&cluster));
    let before = {
        let kubectl = cluster.admin();
        kubectl.run(format!("wait --for=condition=Ready node/{WORKER} --timeout=60s").as_str());
        for (pod, node) in PODS.into_iter().zip(["knarr-test", WORKER]) {
            let mut pod = sleeper(pod);
            pod["spec"]["nodeName"] = json!(node);
            kubectl.apply(&pod);
        }
        PODS.iter().for_each(|pod| kubectl.ready(pod));
        containers(&kubectl)
    };
    let token = cluster.admin().run("create token default");
    for (step, authorities) in [(&["begin"][..], 2), (&["sign", "--force"], 2), (&["finish", "--force"], 1)] {
        let known = trusted(&worker);
        succeeded("rotate-ca", &rotate_ca(&cluster, step));
        let status = || succeeded("rotate-ca", &rotate_ca(&cluster, &["status"]));
        let is_last = status().contains("no rotation is under way");
        assert!(is_last || status().contains(UNSERVED), "{}", status());
        assert!(cluster.interrupt_server());
        cluster.start_server();
        wait_for("the authorities to be published", PATIENCE, || {
            // The starting server may hold the lock.
            let status = rotate_ca(&cluster, &["status"]);
            let text = String::from_utf8_lossy(&status.stdout);
            (status.status.success() && !text.contains(UNSERVED)).then_some(())
        });
        wait_for("the agent's trust", PATIENCE * 3, || {
            wake(&worker);
            let now = trusted(&worker);
            (now != known && count(&now) == authorities).then_some(())
        });
        works(&cluster, authorities);
        assert_eq!(containers(&cluster.admin()), before, "{step:?}");
    }
    // The agent has certificates of the new authority, and the API server accepts its serving certificate.
    let certificate = std::fs::read_to_string(worker.sandbox.path("data/pki/kubelet-client.crt"));
    assert_eq!(count(&certificate.expect("a client certificate")), 1);
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token.trim()}
    });
    let reviewed = cluster.admin().with("create -o json -f -", &review.to_string());
    assert!(reviewed.contains("\"authenticated\": true"), "tokens of before are good: {reviewed}");
    // It starts again with the original kubeconfig.
    worker.stop();
    worker.start(&cluster.sandbox.path("worker.kubeconfig"));
    works(&cluster, 1);
    assert_eq!(containers(&cluster.admin()), before);
    let status = succeeded("rotate-ca", &rotate_ca(&cluster, &["status"]));
    assert_eq!(status.trim(), "no rotation is under way");
}
