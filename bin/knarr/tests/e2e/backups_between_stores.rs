//! Moves a cluster from the embedded store to etcd and back, with backups.

use crate::backups::{backup, holder, objects, refused, restore, version};
use crate::cluster::Cluster;
use crate::etcd::{ETCD, etcd};
use crate::sandbox::succeeded;

const EMBEDDED: [&str; 1] = ["--disable-node"];
const ON_ETCD: [&str; 3] = ["--disable-node", "--etcd-servers", ETCD];

/// Checks that the restored cluster is the one that was backed up, with its keys, at later revisions.
fn is_whole(cluster: &Cluster, before: &str, seen: u64, token: &str) {
    assert_eq!(objects(cluster), before);
    assert_eq!(cluster.admin().path("secret keep -n default", "{.data.a}"), "MQ==");
    assert!(version(cluster) > seen + 1_000_000, "{} after {seen}", version(cluster));
    assert_eq!(holder(cluster, token), "system:serviceaccount:default:default");
    let old = format!("get --raw /api/v1/secrets?watch=1&resourceVersion={seen}&timeoutSeconds=5");
    let gone = cluster.admin().attempt(&old);
    let gone = [gone.stdout, gone.stderr].concat();
    assert!(String::from_utf8_lossy(&gone).contains("too old resource version"), "{gone:?}");
}

#[test]
fn h5_a_cluster_moves_to_etcd_and_back() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&EMBEDDED);
    cluster.admin().run("create secret generic keep --from-literal=a=1");
    cluster.admin().run("create deployment web --image=example/web --replicas=0");
    cluster.admin().eventually("get serviceaccount default -o name", |out| out.contains("default"));
    let token = cluster.admin().run("create token default");
    let token = token.trim();
    let from_embedded = cluster.sandbox.path("embedded.knarr");
    succeeded("knarr backup", &backup(&cluster, &from_embedded, &[]));
    let (before, seen) = (objects(&cluster), version(&cluster));
    assert!(cluster.interrupt_server());
    std::fs::remove_dir_all(cluster.data_dir()).expect("the data folder");

    let mut database = etcd(&cluster);
    let into_etcd = ["--etcd-servers", ETCD];
    succeeded("knarr restore", &restore(&cluster, &from_embedded, &into_etcd).output().expect("nsenter(1)"));
    cluster.start_server_with(&ON_ETCD);
    is_whole(&cluster, &before, seen, token);
    cluster.admin().run("create secret generic later --from-literal=b=2");
    let (before, seen) = (objects(&cluster), version(&cluster));

    // A restore overwrites neither an etcd that holds a cluster nor its data folder.
    let elsewhere = cluster.sandbox.path("elsewhere");
    let elsewhere = ["--etcd-servers", ETCD, "--data-dir", elsewhere.to_str().expect("a path")];
    let mut second = cluster.sandbox.command(crate::cluster::knarr());
    second.arg("restore").args(elsewhere).arg(&from_embedded);
    let said = refused(&mut second);
    assert!(said.contains("keys below /knarr"), "{said}");
    assert_eq!(objects(&cluster), before);

    // A running server is backed up over its socket, a stopped one from etcd itself.
    let (running, stopped) = (cluster.sandbox.path("running.knarr"), cluster.sandbox.path("stopped.knarr"));
    succeeded("knarr backup", &backup(&cluster, &running, &[]));
    assert!(cluster.interrupt_server());
    succeeded("knarr backup", &backup(&cluster, &stopped, &into_etcd));
    database.kill();

    for file in [&running, &stopped] {
        std::fs::remove_dir_all(cluster.data_dir()).expect("the data folder");
        succeeded("knarr restore", &restore(&cluster, file, &[]).output().expect("nsenter(1)"));
        cluster.start_server_with(&EMBEDDED);
        is_whole(&cluster, &before, seen, token);
        assert_eq!(cluster.admin().path("secret later -n default", "{.data.b}"), "Mg==");
        assert!(cluster.interrupt_server());
    }
}
