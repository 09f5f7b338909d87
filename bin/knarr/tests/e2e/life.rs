//! The server's life cycle: start, refusals, kill -9, Ctrl-C, reset. Each test has its own cluster.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::{Cluster, knarr};
use crate::kubectl::Kubectl;
use crate::objects::{config_map, service, sleeper, web};

#[test]
fn h1_start_tells_what_it_does() {
    let cluster = Cluster::start();
    let log = cluster.log();
    let steps =
        log.lines().filter(|l| l.starts_with("✓ ") && (l.contains(" ms") || l.contains(" s"))).count();
    assert!(steps >= 4, "{log}");
    for part in ["certificates", "store", "API server", "scheduler"] {
        assert!(log.contains(part), "no word of {part}:\n{log}");
    }
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_string_lossy();
    let end = log.split("\nReady in ").nth(1).unwrap_or_default();
    assert!(end.contains(&*kubeconfig), "{log}");
    assert!(end.contains(&format!("kubectl --kubeconfig {kubeconfig} ")), "{log}");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(cluster.kubeconfig()).expect("file").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    cluster.admin().run("wait --for=condition=Ready node/knarr-test --timeout=1s");
}

/// Runs a command that has to fail with one sentence; returns it.
fn refused(command: &mut Command) -> String {
    let output = command.output().expect("nsenter(1) of util-linux");
    assert!(!output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.starts_with("error: ") && text.trim_end().lines().count() == 1, "not one sentence: {text}");
    text
}

#[test]
fn h1_refusals_are_one_sentence() {
    let cluster = Cluster::start();
    let second = refused(cluster.knarr(&["server", "--port", "7443"]).args(["--cgroup-root", "/knarr-none"]));
    assert!(
        second.contains("another server runs on this data folder") && second.contains("--data-dir"),
        "{second}"
    );
    let other = cluster.sandbox.path("other");
    let mut command = cluster.sandbox.command(knarr());
    let taken = refused(command.arg("server").arg("--data-dir").arg(&other));
    assert!(taken.contains("port 6443 is taken") && taken.contains("--port"), "{taken}");
    let mut command = cluster.sandbox.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(knarr());
    let user = refused(command.arg("server").arg("--data-dir").arg(&other));
    assert!(user.contains("knarr has to be root to run a node"), "{user}");
    let running = refused(&mut cluster.knarr(&["reset", "--yes"]));
    assert!(running.contains("a server is running on"), "{running}");
    let mut command = cluster.sandbox.command(knarr());
    let foreign = refused(command.args(["reset", "--yes", "--data-dir", "/usr"]));
    assert!(foreign.contains("/usr is not a data folder of knarr"), "{foreign}");
    let unwritable = cluster
        .sandbox
        .command(knarr())
        .args(["server", "--port", "7444", "--data-dir", "/proc/none"])
        .output();
    assert!(unwritable.is_ok_and(|o| !o.status.success()));
    cluster.admin().run("get nodes");
}

fn containers(kubectl: &Kubectl) -> Value {
    let pods = kubectl.json("pods --sort-by=.metadata.name");
    let items = pods["items"].as_array().cloned().unwrap_or_default();
    let of = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        json!([
            pod["metadata"]["uid"],
            pod["status"]["podIP"],
            status["containerID"],
            status["state"],
            status["restartCount"]
        ])
    };
    items.iter().map(of).collect()
}

fn resource_version(kubectl: &Kubectl) -> u64 {
    kubectl.path("configmap kept", "{.metadata.resourceVersion}").parse().expect("a number")
}

fn filled(cluster: &Cluster) -> Kubectl<'_> {
    let kubectl = cluster.namespace("life");
    kubectl.apply(&web("web", 3));
    kubectl.apply(&service("web"));
    let mut counting = sleeper("counting");
    counting["spec"]["containers"][0]["command"] = json!([
        "/bin/sh",
        "-c",
        "trap 'exit 0' TERM; n=0; while true; do n=$((n+1)); echo $n; sleep 0.2 & wait; done"
    ]);
    kubectl.apply(&counting);
    kubectl.apply(&config_map("kept", json!({"x": "1"})));
    kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.ready("counting");
    kubectl
}

#[test]
fn h4_kill_9_loses_nothing() {
    let mut cluster = Cluster::start();
    let kubectl = filled(&cluster);
    let (before, revision) = (containers(&kubectl), resource_version(&kubectl));
    let address = kubectl.path("service web", "{.spec.clusterIP}");
    let ip = kubectl.path("pods -l app=web", "{.items[0].status.podIP}");
    std::mem::forget(kubectl);

    cluster.kill_server();
    assert!(cluster.http(&ip).ends_with(" v1\n"), "containers go on without the server");
    cluster.start_server();

    let kubectl = Kubectl::new(&cluster, Some("life".to_owned()), cluster.kubeconfig());
    assert_eq!(resource_version(&kubectl), revision);
    kubectl.run("rollout status deployment/web --timeout=60s");
    assert_eq!(containers(&kubectl), before, "the very same containers");
    assert!(cluster.http(&address).ends_with(" v1\n"));
    kubectl.apply(&config_map("kept", json!({"x": "2"})));
    assert!(resource_version(&kubectl) > revision);
    let log = kubectl.run("logs counting");
    let numbers: Vec<u64> = log.lines().filter_map(|l| l.parse().ok()).collect();
    assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1), "no line of the log is lost: {numbers:?}");
    assert_eq!(kubectl.run("exec counting -- hostname"), "counting\n");
    kubectl.run("delete pod counting");
    kubectl.run("scale deployment web --replicas=4");
    kubectl.run("rollout status deployment/web --timeout=60s");
    assert_eq!(cluster.admin().run("get namespaces life -o name"), "namespace/life\n");
}

/// Changes that happened while the kubelet was down are handled: a container that died is restarted, a
/// deleted pod's is stopped.
#[test]
fn h4_kill_9_and_a_container_that_died_meanwhile() {
    let mut cluster = Cluster::start();
    let kubectl = cluster.namespace("life");
    kubectl.apply(&sleeper("dies"));
    kubectl.ready("dies");
    std::mem::forget(kubectl);
    cluster.kill_server();
    let shells = cluster.sandbox.sh("pgrep -f 'trap .exit 0. TERM' || true");
    for pid in shells.split_whitespace() {
        cluster.sandbox.try_sh(&format!("kill -KILL {pid}"));
    }
    cluster.start_server();
    let kubectl = Kubectl::new(&cluster, Some("life".to_owned()), cluster.kubeconfig());
    kubectl.until("pod dies", "{.status.containerStatuses[0].restartCount}", "1");
    kubectl.ready("dies");
    assert_eq!(
        kubectl.path("pod dies", "{.status.containerStatuses[0].lastState.terminated.exitCode}"),
        "137"
    );
}

#[test]
fn h4_ctrl_c_is_a_clean_stop() {
    let mut cluster = Cluster::start();
    let kubectl = filled(&cluster);
    let before = containers(&kubectl);
    let ip = kubectl.path("pods -l app=web", "{.items[0].status.podIP}");
    std::mem::forget(kubectl);
    assert!(cluster.interrupt_server(), "exit code 0:\n{}", cluster.log());
    assert!(cluster.http(&ip).ends_with(" v1\n"), "containers go on");
    cluster.start_server();
    let kubectl = Kubectl::new(&cluster, Some("life".to_owned()), cluster.kubeconfig());
    assert_eq!(containers(&kubectl), before);
}

/// Returns what a node could leave behind on its machine.
fn traces(cluster: &Cluster) -> Vec<(&'static str, BTreeSet<String>)> {
    let root = &cluster.sandbox.cgroup_root;
    let cgroups = format!("find /sys/fs/cgroup -type d -path '*{root}*'");
    let all = [
        // The test's own `sh` and its children start and end meanwhile.
        (
            "processes",
            "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null; echo; done | grep -v -e '^sh ' -e '^tr ' -e '^grep ' -e '^sort' -e '^$'",
        ),
        ("mounts", "cut -d' ' -f5 /proc/self/mountinfo"),
        ("devices", "ls /sys/class/net"),
        ("routes", "ip route show table all | grep -v -e linkdown -e ' fe80' -e '^ff00' -e multicast"),
        ("rules", "ip rule"),
        ("tables", "nft list tables"),
        ("namespaces", "ip netns list; ls /run/netns /var/run/netns 2>/dev/null"),
        ("cgroups", &cgroups),
        (
            "files",
            "ls $0/data /var/lib/knarr /run/knarr 2>/dev/null; ls -d /run/* /var/lib/* /etc/cni /etc/resolv.conf 2>/dev/null",
        ),
    ];
    all.map(|(name, line)| {
        let output = cluster.sandbox.try_sh(line);
        (name, String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    })
    .into()
}

#[test]
fn h1_reset_removes_every_trace() {
    let mut cluster = Cluster::new();
    let before = traces(&cluster);
    cluster.start_server();
    let kubectl = filled(&cluster);
    let mut secrets = sleeper("mounts");
    secrets["spec"]["volumes"] = json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]);
    secrets["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "m", "mountPath": "/m"}]);
    kubectl.apply(&secrets);
    kubectl.ready("mounts");
    std::mem::forget(kubectl);
    assert_ne!(traces(&cluster), before);
    let without_yes = cluster.knarr(&["reset"]).stdin(std::process::Stdio::null()).output().expect("nsenter");
    assert!(!without_yes.status.success(), "asks first");
    assert!(cluster.interrupt_server());
    let output = cluster.knarr(&["reset", "--yes"]).output().expect("nsenter");
    assert!(output.status.success(), "{output:?}");
    for (after, before) in traces(&cluster).iter().zip(&before) {
        let left: Vec<&String> = after.1.difference(&before.1).collect();
        assert!(left.is_empty(), "{} left behind: {left:#?}", after.0);
    }
    assert!(!cluster.data_dir().exists());
    cluster.start_server();
    cluster.admin().run("get nodes");
}

#[test]
fn h1_data_folders_may_share_a_cgroup_root() {
    let first = Cluster::start();
    let kubectl = filled(&first);
    let before = containers(&kubectl);
    let mut second = Cluster::new();
    second.sandbox.cgroup_root.clone_from(&first.sandbox.cgroup_root);
    second.start_server();
    let others = second.namespace("life");
    others.apply(&sleeper("other"));
    others.ready("other");
    std::mem::forget(others);
    assert_eq!(containers(&kubectl), before, "the start of another server ends nothing");
    assert!(second.interrupt_server());
    let output = second.knarr(&["reset", "--yes"]).output().expect("nsenter");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(containers(&kubectl), before, "nor does the reset of another data folder");
    kubectl.apply(&sleeper("after"));
    kubectl.ready("after");
}

#[test]
fn h1_every_command_has_help_with_examples() {
    let commands = ["server", "agent", "reset", "image", "web", "kubeconfig", "certificates", "completion"];
    for command in commands.map(|command| [command]) {
        let output = Command::new(knarr()).args(command).arg("--help").output().expect("knarr");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("Examples:"), "{command:?}: {text}");
        let wrong = Command::new(knarr()).args(command).arg("--no-such-option").output().expect("knarr");
        assert!(!wrong.status.success(), "{command:?}");
    }
}
