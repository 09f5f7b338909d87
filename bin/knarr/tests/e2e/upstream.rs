//! Swaps with upstream: upstream's kube-controller-manager in place of Knarr's, and Knarr's with upstream's
//! kube-apiserver on etcd.
//!
//! `KNARR_UPSTREAM` is a folder with kube-apiserver, kube-controller-manager and etcd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::components::{component_as, kubeconfig_for};
use crate::kubectl::Kubectl;
use crate::sandbox::{NODE_IP, Process, log_to, wait_for};
use crate::tour;

/// Returns the path of one of upstream's programs.
fn program(name: &str) -> PathBuf {
    let folder =
        std::env::var_os("KNARR_UPSTREAM").expect("KNARR_UPSTREAM: a folder with upstream's programs");
    let path = Path::new(&folder).join(name);
    assert!(path.is_file(), "no {}", path.display());
    path
}

/// Starts upstream's program in the cluster's sandbox, with its output in a log there.
fn start(cluster: &Cluster, name: &str, words: &[String]) -> Process {
    let mut command = cluster.sandbox.command(program(name));
    command.args(words);
    log_to(&mut command, &cluster.sandbox.path(&format!("{name}.log")));
    Process::new(command.spawn().expect("nsenter(1) of util-linux"))
}

fn words(line: &str, more: &[String]) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).chain(more.iter().cloned()).collect()
}

#[test]
#[ignore = "needs KNARR_UPSTREAM, a folder with upstream's programs"]
fn upstreams_controllers_work_on_our_api() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&["--disable-node", "--disable-scheduler", "--disable-controller-manager"]);
    let admin = Kubectl::new(&cluster, None, cluster.kubeconfig());
    let manager = kubeconfig_for(&cluster, "system:kube-controller-manager");
    let pki = |file: &str| cluster.data_dir().join("pki").join(file).display().to_string();
    let more = [
        format!("--kubeconfig={}", manager.display()),
        format!("--service-account-private-key-file={}", pki("sa.key")),
        format!("--root-ca-file={}", pki("ca.crt")),
    ];
    let line =
        "--use-service-account-credentials --allocate-node-cidrs --cluster-cidr=10.42.0.0/16 --secure-port=0";
    let _manager = start(&cluster, "kube-controller-manager", &words(line, &more));
    let scheduler = kubeconfig_for(&cluster, "system:kube-scheduler");
    let _scheduler = component_as(&cluster, &scheduler, "scheduler.log", &["scheduler"]);
    let _nodes = component_as(&cluster, &cluster.kubeconfig(), "nodes.log", &["agent", "--simulate", "3"]);
    tour::all(&admin);
}

/// Starts kube-apiserver on its own etcd, with the keys of a Knarr cluster that has ended.
fn upstreams_api(cluster: &mut Cluster) -> (Process, Process) {
    cluster.start_server_with(&["--disable-node", "--disable-scheduler", "--disable-controller-manager"]);
    assert!(cluster.interrupt_server(), "the server ends well");
    // Upstream cannot read the public key from a private key of this form.
    cluster.sandbox.sh("openssl pkey -in $0/data/pki/sa.key -pubout -out $0/data/pki/sa.pub");
    let etcd_data = cluster.sandbox.path("etcd").display().to_string();
    let etcd = start(cluster, "etcd", &words("--unsafe-no-fsync", &["--data-dir".to_owned(), etcd_data]));
    let pki = |option: &str, file: &str| {
        format!("--{option}={}", cluster.data_dir().join("pki").join(file).display())
    };
    let more = [
        pki("client-ca-file", "ca.crt"),
        pki("tls-cert-file", "apiserver.crt"),
        pki("tls-private-key-file", "apiserver.key"),
        pki("service-account-key-file", "sa.pub"),
        pki("service-account-signing-key-file", "sa.key"),
        format!("--advertise-address={NODE_IP}"),
    ];
    let line = "--etcd-servers=http://127.0.0.1:2379 --secure-port=6443 --authorization-mode=Node,RBAC \
                --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range=10.43.0.0/16 \
                --endpoint-reconciler-type=none --profiling=false";
    let api = start(cluster, "kube-apiserver", &words(line, &more));
    (etcd, api)
}

#[test]
#[ignore = "needs KNARR_UPSTREAM, a folder with upstream's programs"]
fn our_controllers_and_scheduler_work_on_upstreams_api() {
    let mut cluster = Cluster::new();
    let _upstream = upstreams_api(&mut cluster);
    let admin = Kubectl::new(&cluster, None, cluster.kubeconfig());
    wait_for("upstream's API server", Duration::from_secs(120), || {
        (admin.attempt("get --raw /readyz").stdout == b"ok").then_some(())
    });
    let manager = kubeconfig_for(&cluster, "system:kube-controller-manager");
    let key = cluster.data_dir().join("pki/sa.key").display().to_string();
    let line = [
        "controller-manager",
        "--use-service-account-credentials",
        "--service-account-private-key-file",
        &key,
    ];
    let _manager = component_as(&cluster, &manager, "controllers.log", &line);
    let scheduler = kubeconfig_for(&cluster, "system:kube-scheduler");
    let _scheduler = component_as(&cluster, &scheduler, "scheduler.log", &["scheduler"]);
    let _nodes = component_as(&cluster, &cluster.kubeconfig(), "nodes.log", &["agent", "--simulate", "3"]);
    tour::all(&admin);
}
