//! A real etcd with one member in the sandbox of a cluster.

use crate::cluster::Cluster;
use crate::sandbox::{Process, log_to};

/// Its URL inside of the sandbox.
pub const ETCD: &str = "http://127.0.0.1:2379";

/// Starts etcd on the data of the one that ran before.
pub fn etcd(cluster: &Cluster) -> Process {
    let mut command = cluster.sandbox.command("etcd");
    command.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
    command.args(["--heartbeat-interval", "20", "--election-timeout", "200"]);
    command.arg("--data-dir").arg(cluster.sandbox.path("etcd"));
    log_to(&mut command, &cluster.sandbox.path("etcd.log"));
    Process::new(command.spawn().expect("etcd(1) of etcd-server"))
}
