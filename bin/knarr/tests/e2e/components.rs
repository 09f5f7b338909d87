//! Scheduler and controllers as processes of their own, each in its own right, several of them standing by.

use std::time::Duration;

use crate::cluster::{Cluster, knarr};
use crate::kubectl::Kubectl;
use crate::sandbox::{Process, log_to, wait_for};

/// `knarr WORDS… --kubeconfig FILE`, once it says that it is ready.
fn component(cluster: &Cluster, log: &str, words: &[&str]) -> Process {
    let file = cluster.sandbox.path(log);
    let mut command = cluster.sandbox.command(knarr());
    command.args(words).arg("--kubeconfig").arg(cluster.kubeconfig());
    log_to(&mut command, &file);
    let mut child = command.spawn().expect("nsenter(1) of util-linux");
    wait_for("the component's last line", Duration::from_secs(60), || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        if let Ok(Some(status)) = child.try_wait() {
            panic!("{words:?} ended with {status}:\n{text}");
        }
        text.contains("\nReady in ").then_some(())
    });
    Process::new(child)
}

/// Words that let another process take over soon.
const SOON: [&str; 3] = [
    "--leader-elect-lease-duration=3s",
    "--leader-elect-renew-deadline=2s",
    "--leader-elect-retry-period=500ms",
];

fn holder(kubectl: &Kubectl, lease: &str) -> String {
    kubectl.path(&format!("lease -n kube-system {lease}"), "{.spec.holderIdentity}")
}

#[test]
fn scheduler_and_controllers_run_alone_and_another_takes_over() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&["--disable-node", "--disable-scheduler", "--disable-controller-manager"]);
    let admin = Kubectl::new(&cluster, Some("default".to_owned()), cluster.kubeconfig());
    let _nodes = component(&cluster, "nodes.log", &["agent", "--simulate", "3"]);
    let with = |name: &'static str| [&[name][..], &SOON[..]].concat();
    let mut first = component(&cluster, "controllers-1.log", &with("controller-manager"));
    admin.eventually("get serviceaccount default -o name", |out| out.contains("default"));
    let leader = holder(&admin, "kube-controller-manager");
    let _second = component(&cluster, "controllers-2.log", &with("controller-manager"));

    admin.run("create deployment web --image=example/web --replicas=3");
    admin.eventually("get pods -l app=web -o name", |out| out.lines().count() == 3);
    let places = "get pods -l app=web -o jsonpath={.items[*].spec.nodeName}";
    assert_eq!(admin.run(places).trim(), "", "nobody schedules");
    let _scheduler = component(&cluster, "scheduler.log", &with("scheduler"));
    admin.eventually(places, |out| out.split_whitespace().count() == 3);
    admin.run("rollout status deployment/web --timeout=60s");

    // The one that leads is killed: the other takes over.
    assert_eq!(holder(&admin, "kube-controller-manager"), leader);
    first.kill();
    admin.run("scale deployment web --replicas=5");
    admin.eventually("get pods -l app=web -o name", |out| out.lines().count() == 5);
    assert_ne!(holder(&admin, "kube-controller-manager"), leader);

    // One controller alone, under a lease of its own.
    let _jobs = component(
        &cluster,
        "jobs.log",
        &["controller-manager", "--controllers=job-controller", "--leader-elect-resource-name=jobs"],
    );
    admin.eventually("get lease -n kube-system jobs -o jsonpath={.spec.holderIdentity}", |out| {
        !out.trim().is_empty()
    });
}

#[test]
fn a_component_says_what_is_wrong() {
    let cluster = Cluster::new();
    let said = |words: &[&str]| {
        let output = cluster.sandbox.command(knarr()).args(words).output().expect("nsenter(1) of util-linux");
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let unknown = said(&["controller-manager", "--kubeconfig", "/nowhere", "--controllers=jobs"]);
    assert!(unknown.contains("no controller is called \"jobs\"; there are "), "{unknown}");
    let missing = said(&["scheduler", "--kubeconfig", "/nowhere"]);
    assert!(missing.contains("cannot use /nowhere"), "{missing}");
    let times = said(&["scheduler", "--kubeconfig", "/nowhere", "--leader-elect-lease-duration=5s"]);
    assert!(times.contains("must be longer than --leader-elect-renew-deadline"), "{times}");
}
