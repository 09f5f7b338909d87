//! Two control planes on one etcd: each serves the whole cluster, and each can be lost.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::cluster::{Cluster, knarr};
use crate::etcd::{ETCD, etcd};
use crate::kubectl::Kubectl;
use crate::sandbox::{NODE_IP, Process, log_to, succeeded, wait_for};

const ADDRESSES: [&str; 2] = [NODE_IP, "10.99.0.3"];

fn data_dir(cluster: &Cluster, n: usize) -> PathBuf {
    cluster.sandbox.path(&format!("server-{n}"))
}

fn server(cluster: &Cluster, n: usize) -> Process {
    let log = cluster.sandbox.path(&format!("server-{n}.log"));
    let mut command = cluster.sandbox.command(knarr());
    command.args(["server", "--disable-node", "--etcd-servers", ETCD]);
    command.args(["--bind-address", ADDRESSES[n], "--node-ip", ADDRESSES[n]]);
    command.args(["--node-name", &format!("server-{n}")]).arg("--data-dir").arg(data_dir(cluster, n));
    log_to(&mut command, &log);
    let mut child = command.spawn().expect("nsenter(1) of util-linux");
    wait_for("the server's last line", Duration::from_secs(90), || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if let Ok(Some(status)) = child.try_wait() {
            panic!("the server ended with {status}:\n{text}");
        }
        text.contains("\nReady in ").then_some(())
    });
    Process::new(child)
}

/// Copies the files that an administrator copies to a further server.
fn copy_keys(cluster: &Cluster) {
    let (from, to) = (data_dir(cluster, 0).join("pki"), data_dir(cluster, 1).join("pki"));
    let authorities = ["", "kubelet-serving", "front-proxy"];
    let files = authorities
        .iter()
        .flat_map(|folder| ["ca.crt", "ca.key"].map(|file| PathBuf::from(folder).join(file)));
    for file in files.chain([PathBuf::from("sa.key")]) {
        std::fs::create_dir_all(to.join(&file).parent().expect("a folder")).expect("the folder pki");
        std::fs::copy(from.join(&file), to.join(&file)).expect("a key");
    }
}

fn admin(cluster: &Cluster, n: usize) -> Kubectl<'_> {
    Kubectl::new(cluster, None, data_dir(cluster, n).join("admin.kubeconfig"))
}

fn pods(kubectl: &Kubectl, count: usize) {
    kubectl.eventually("get pods -l app=web -o name", |out| out.lines().count() == count);
}

#[test]
fn h2_two_servers_share_an_etcd_and_either_can_be_lost() {
    let cluster = Cluster::new();
    cluster.sandbox.sh(&format!("ip address add {}/24 dev uplink", ADDRESSES[1]));
    let mut database = etcd(&cluster);
    let mut first = server(&cluster, 0);

    // A server with its own keys would sign what the others reject.
    let mut stranger = cluster.sandbox.command(knarr());
    stranger.args(["server", "--disable-node", "--etcd-servers", ETCD, "--bind-address", ADDRESSES[1]]);
    stranger.args(["--node-ip", ADDRESSES[1]]).arg("--data-dir").arg(cluster.sandbox.path("stranger"));
    let refused = stranger.output().expect("nsenter(1) of util-linux");
    assert!(!refused.status.success());
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("this etcd holds a cluster with other keys"), "{words}");

    copy_keys(&cluster);
    let mut second = server(&cluster, 1);
    let (one, two) = (admin(&cluster, 0), admin(&cluster, 1));
    two.until(
        "endpoints kubernetes",
        "{.subsets[0].addresses[*].ip}",
        &format!("{} {}", ADDRESSES[0], ADDRESSES[1]),
    );
    one.eventually("get serviceaccount default -o name", |out| out.contains("default"));
    one.run("create configmap shared --from-literal=a=1");
    assert_eq!(two.path("configmap shared", "{.data.a}"), "1");
    let token = succeeded("a token", &one.attempt("create token default"));
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token.trim()}});
    let said = two.with("create -o jsonpath={.status.user.username} -f -", &review.to_string());
    assert_eq!(said, "system:serviceaccount:default:default", "either accepts the other's tokens");

    two.run("create deployment web --image=example/web --replicas=3");
    pods(&one, 3);
    let holder = "{.spec.holderIdentity}";
    let leader = one.path("lease -n kube-system kube-controller-manager", holder);
    assert!(leader.starts_with("server-"), "{leader}");

    // etcd stops and starts again, and everything recovers by itself.
    database.kill();
    let error = two.fails("get configmap shared --request-timeout=60s");
    assert!(error.contains("connection refused") || error.contains("context deadline"), "{error}");
    database = etcd(&cluster);
    two.eventually("get configmap shared -o name", |out| out.contains("shared"));
    one.run("scale deployment web --replicas=4");
    pods(&two, 4);

    // The leader is killed: the other server takes over, and the address of the dead one is removed.
    let leads = one.path("lease -n kube-system kube-controller-manager", holder).starts_with("server-0");
    let (left, address) = if leads { (two, ADDRESSES[1]) } else { (one, ADDRESSES[0]) };
    if leads {
        first.kill()
    } else {
        second.kill()
    }
    left.run("scale deployment web --replicas=6");
    pods(&left, 6);
    left.until("endpoints kubernetes", "{.subsets[0].addresses[*].ip}", address);
    drop(database);
}
