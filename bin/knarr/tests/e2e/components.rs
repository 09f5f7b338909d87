//! Scheduler and controllers as separate processes with their own identities, with several replicas on
//! standby.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, knarr};
use crate::kubectl::Kubectl;
use crate::sandbox::{Process, log_to, succeeded, wait_for};
use crate::tour;

/// Starts `knarr WORDS…` as administrator, and waits until it reports that it is ready.
fn component(cluster: &Cluster, log: &str, words: &[&str]) -> Process {
    component_as(cluster, &cluster.kubeconfig(), log, words)
}

/// Starts `knarr WORDS… --kubeconfig FILE`, and waits until it reports that it is ready.
pub fn component_as(cluster: &Cluster, kubeconfig: &Path, log: &str, words: &[&str]) -> Process {
    let file = cluster.sandbox.path(log);
    let mut command = cluster.sandbox.command(knarr());
    command.args(words).arg("--kubeconfig").arg(kubeconfig);
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

/// Flags with which another process takes over soon.
const SOON: [&str; 4] = [
    "--secure-port=0",
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

    // The leader is killed, and the other process takes over.
    assert_eq!(holder(&admin, "kube-controller-manager"), leader);
    first.kill();
    admin.run("scale deployment web --replicas=5");
    admin.eventually("get pods -l app=web -o name", |out| out.lines().count() == 5);
    assert_ne!(holder(&admin, "kube-controller-manager"), leader);

    // One controller alone, with its own lease.
    let _jobs = component(
        &cluster,
        "jobs.log",
        &[
            "controller-manager",
            "--controllers=job-controller",
            "--leader-elect-resource-name=jobs",
            "--secure-port=0",
        ],
    );
    admin.eventually("get lease -n kube-system jobs -o jsonpath={.spec.holderIdentity}", |out| {
        !out.trim().is_empty()
    });
}

#[test]
fn holders_of_leases_are_elected_among_candidates() {
    const GATE: &str = "--feature-gates=CoordinatedLeaderElection=true";
    let mut cluster = Cluster::new();
    cluster.start_server_with(&[
        "--disable-node",
        "--disable-controller-manager",
        "--runtime-config=coordination.k8s.io/v1beta1=true",
        GATE,
    ]);
    let admin = Kubectl::new(&cluster, Some("kube-system".to_owned()), cluster.kubeconfig());
    let manager = kubeconfig_for(&cluster, "system:kube-controller-manager");
    let words = [&["controller-manager", GATE][..], &SOON[..]].concat();
    let mut first = component_as(&cluster, &manager, "controllers-1.log", &words);
    let lease = "get lease kube-controller-manager -o jsonpath={.spec.holderIdentity}/{.spec.strategy}";
    let elected = |out: &str| out.ends_with("/OldestEmulationVersion") && !out.starts_with('/');
    let leader = admin.eventually(lease, elected);
    admin.eventually("get serviceaccount default -n default -o name", |out| out.contains("default"));
    let _second = component_as(&cluster, &manager, "controllers-2.log", &words);
    let candidates = "get leasecandidates -o jsonpath={.items[*].spec.leaseName}";
    admin.eventually(candidates, |out| out.matches("kube-controller-manager").count() == 2);
    assert_eq!(admin.run(lease), leader, "who leads goes on");
    first.kill();
    admin.eventually(lease, |out| elected(out) && out != leader);
    let told = admin.eventually("get events -o jsonpath={.items[*].message}", |out| {
        out.matches("became leader").count() >= 3
    });
    assert!(!told.is_empty());
}

#[test]
fn an_api_server_shows_that_it_is_there_and_how_it_stores() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&[
        "--disable-node",
        "--feature-gates=StorageVersionAPI=true",
        "--runtime-config=internal.apiserver.k8s.io/v1alpha1=true",
    ]);
    let admin = Kubectl::new(&cluster, Some("kube-system".to_owned()), cluster.kubeconfig());
    let identity = "get leases -l apiserver.kubernetes.io/identity=kube-apiserver -o name";
    let lease = admin.eventually(identity, |out| out.starts_with("lease.coordination.k8s.io/apiserver-"));
    let server = lease.trim().trim_start_matches("lease.coordination.k8s.io/").to_owned();
    let told = "get storageversion apps.deployments -o jsonpath={.status.storageVersions[*].apiServerID}";
    admin.eventually(told, |out| out == server);
    let common = admin.run("get storageversion core.pods -o jsonpath={.status.commonEncodingVersion}");
    assert_eq!(common, "v1");

    // The record of a server that does not exist is removed, and so is the StorageVersion of a resource that
    // only it stored.
    let status = r#"{"status":{"storageVersions":[{"apiServerID":"apiserver-gone","encodingVersion":"apps/v1",
        "decodableVersions":["apps/v1"],"servedVersions":["apps/v1"]}]}}"#;
    let patch =
        ["patch", "storageversion", "apps.deployments", "--subresource=status", "--type=merge", "-p", status];
    admin.run(patch);
    admin.eventually("get storageversions -o name", |out| {
        out.contains("core.pods") && !out.contains("apps.deployments")
    });
    drop(admin);
    assert!(cluster.interrupt_server(), "the server stops cleanly");
    cluster.start_server_with(&["--disable-node"]);
    let admin = Kubectl::new(&cluster, Some("kube-system".to_owned()), cluster.kubeconfig());
    admin.eventually(identity, |out| out.trim() == lease.trim());
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

/// Writes a kubeconfig for a user of the cluster.
pub fn kubeconfig_for(cluster: &Cluster, user: &str) -> PathBuf {
    let output = cluster.knarr(&["kubeconfig", "--user", user]).output().expect("nsenter(1) of util-linux");
    let file = cluster.sandbox.path(&format!("{}.kubeconfig", user.replace(':', "-")));
    std::fs::write(&file, succeeded("knarr kubeconfig", &output)).expect("a file");
    file
}

/// An audit policy that records which requests are refused, and who sends which.
const AUDIT: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  omitStages: [RequestReceived]\n";

/// Reads the audit log: which components sent requests, and which requests were forbidden.
fn audited(log: &Path) -> (BTreeSet<String>, BTreeSet<String>) {
    let text = std::fs::read_to_string(log).expect("the audit log");
    let (mut users, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let user = event["user"]["username"].as_str().unwrap_or_default();
        if !user.starts_with("system:serviceaccount:kube-system:") && !user.starts_with("system:kube-") {
            continue;
        }
        users.insert(user.to_owned());
        let (uri, code) = (&event["requestURI"], &event["responseStatus"]["code"]);
        // A quota or a terminating namespace also refuses requests that are authorized.
        let forbids = event["annotations"]["authorization.k8s.io/decision"] == "forbid";
        if forbids || code == 401 {
            refused.insert(format!("{user} {} {uri}: {code}", event["verb"]));
        }
    }
    (users, refused)
}

#[test]
fn every_controller_acts_as_its_own_account_and_is_refused_nothing() {
    let mut cluster = Cluster::new();
    let (policy, audit) = (cluster.sandbox.path("policy.yaml"), cluster.sandbox.path("audit.log"));
    std::fs::write(&policy, AUDIT).expect("a file");
    let (policy, log) = (policy.display().to_string(), audit.display().to_string());
    cluster.start_server_with(&[
        "--disable-node",
        "--disable-scheduler",
        "--disable-controller-manager",
        "--audit-policy-file",
        &policy,
        "--audit-log-path",
        &log,
    ]);
    let admin = Kubectl::new(&cluster, None, cluster.kubeconfig());
    let key = cluster.data_dir().join("pki/sa.key").display().to_string();
    let words = [
        "controller-manager",
        "--use-service-account-credentials",
        "--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
        "--service-account-private-key-file",
        &key,
    ];
    let manager = kubeconfig_for(&cluster, "system:kube-controller-manager");
    let _controllers = component_as(&cluster, &manager, "controllers.log", &words);
    let scheduler = kubeconfig_for(&cluster, "system:kube-scheduler");
    let _scheduler = component_as(&cluster, &scheduler, "scheduler.log", &["scheduler"]);
    let _nodes = component(&cluster, "nodes.log", &["agent", "--simulate", "3"]);
    tour::all(&admin);

    let accounts = admin.run("get serviceaccounts -n kube-system -o name");
    let (users, refused) = audited(&audit);
    for name in
        ["deployment-controller", "replicaset-controller", "job-controller", "generic-garbage-collector"]
    {
        assert!(accounts.contains(&format!("serviceaccount/{name}\n")), "{accounts}");
        assert!(users.contains(&format!("system:serviceaccount:kube-system:{name}")), "{users:?}");
    }
    assert_eq!(refused, BTreeSet::new());
}

#[test]
fn the_servers_own_controllers_act_as_their_accounts() {
    let mut cluster = Cluster::new();
    let (policy, audit) = (cluster.sandbox.path("policy.yaml"), cluster.sandbox.path("audit.log"));
    std::fs::write(&policy, AUDIT).expect("a file");
    let (policy, log) = (policy.display().to_string(), audit.display().to_string());
    cluster.start_server_with(&["--disable-node", "--audit-policy-file", &policy, "--audit-log-path", &log]);
    let admin = Kubectl::new(&cluster, Some("default".to_owned()), cluster.kubeconfig());
    let _nodes = component(&cluster, "nodes.log", &["agent", "--simulate", "2"]);
    admin.run("create deployment web --image=example/web --replicas=2");
    admin.run("rollout status deployment/web --timeout=60s");
    let managers =
        admin.path("replicasets --show-managed-fields", "{.items[0].metadata.managedFields[*].manager}");
    assert_eq!(managers, "kube-controller-manager kube-controller-manager");
    let text = std::fs::read_to_string(&audit).expect("the audit log");
    let made = text.lines().find(|line| line.contains("\"create\"") && line.contains("/replicasets"));
    let event: Value = serde_json::from_str(made.expect("a ReplicaSet is made")).expect("JSON");
    assert_eq!(event["user"]["username"], "system:serviceaccount:kube-system:deployment-controller");
    assert_eq!(
        event["user"]["groups"],
        serde_json::json!([
            "system:serviceaccounts",
            "system:serviceaccounts:kube-system",
            "system:authenticated"
        ])
    );
    let agent = event["userAgent"].as_str().unwrap_or_default();
    assert!(agent.starts_with("kube-controller-manager/v"), "{agent}");
    assert!(agent.ends_with("/system:serviceaccount:kube-system:deployment-controller"), "{agent}");
    assert_eq!(audited(&audit).1, BTreeSet::new());
}

/// Requests a page of a component; returns the page or the error.
fn page(cluster: &Cluster, port: u16, path: &str, who: &[&str]) -> Result<String, String> {
    let url = format!("https://127.0.0.1:{port}{path}");
    let output = cluster.try_python("page.py", &[&[url.as_str()], who].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
fn a_component_shows_itself_to_those_who_may() {
    let mut cluster = Cluster::new();
    cluster.start_server_with(&["--disable-node", "--disable-scheduler", "--disable-controller-manager"]);
    let admin = Kubectl::new(&cluster, Some("default".to_owned()), cluster.kubeconfig());
    let started: Vec<Process> = ["controller-manager", "scheduler"]
        .map(|name| {
            let access = kubeconfig_for(&cluster, &format!("system:kube-{name}"));
            let file = access.display().to_string();
            let asks = ["--authentication-kubeconfig", &file, "--authorization-kubeconfig", &file];
            component_as(&cluster, &access, &format!("{name}.log"), &[&[name][..], &asks].concat())
        })
        .into_iter()
        .collect();
    let (controllers, scheduler) = (10257, 10259);
    admin.eventually("get serviceaccount default -o name", |out| out.contains("default"));
    admin.run("create serviceaccount watcher");
    admin.run(
        "create clusterrolebinding watcher --clusterrole=system:monitoring --serviceaccount=default:watcher",
    );
    let token = |name: &str| format!("--token={}", admin.run(&format!("create token {name}")).trim());
    let (watcher, nobody) = (token("watcher"), token("default"));

    for (port, lease) in [(controllers, "kube-controller-manager"), (scheduler, "kube-scheduler")] {
        assert_eq!(page(&cluster, port, "/healthz", &[]).as_deref(), Ok("ok"));
        let refused = |who: &str, words: &[&str]| {
            let why = page(&cluster, port, "/metrics", words).unwrap_err();
            assert!(
                why.contains(&format!(r#"forbidden: User \"{who}\" cannot get path \"/metrics\""#)),
                "{why}"
            );
        };
        refused("system:anonymous", &[]);
        refused("system:serviceaccount:default:default", &[&nobody]);
        let unknown = page(&cluster, port, "/healthz", &["--token=nonsense"]).unwrap_err();
        assert!(unknown.contains("Unauthorized"), "{unknown}");
        wait_for("the lease", Duration::from_secs(60), || {
            let text = page(&cluster, port, "/metrics", &[&watcher]).expect("metrics");
            text.contains(&format!("leader_election_master_status{{name=\"{lease}\"}} 1")).then_some(())
        });
        let metrics = page(&cluster, port, "/metrics", &[&watcher]).expect("metrics");
        for family in ["rest_client_requests_total{", "process_resident_memory_bytes "] {
            assert!(metrics.contains(family), "{family}\n{metrics}");
        }
        let flags = page(&cluster, port, "/flagz", &[&watcher]).expect("flags");
        let given = "\nauthorization-kubeconfig=/";
        assert!(flags.starts_with(&format!("\n{lease} flagz\n")) && flags.contains(given), "{flags}");
        let state = page(&cluster, port, "/statusz", &[&watcher]).expect("state");
        assert!(state.contains("\nPaths: /configz /flagz /healthz "), "{state}");
        let pki = |file: &str| cluster.data_dir().join("pki").join(file).display().to_string();
        let certificate =
            [format!("--certificate={}", pki("admin.crt")), format!("--key={}", pki("admin.key"))];
        let certificate = certificate.each_ref().map(String::as_str);
        let config = wait_for("the clients' authority", Duration::from_secs(30), || {
            page(&cluster, port, "/configz", &certificate).ok()
        });
        assert!(config.contains(&format!("\"resourceName\":\"{lease}\"")), "{config}");
    }
    wait_for("the controllers", Duration::from_secs(60), || {
        let checks = page(&cluster, controllers, "/healthz?verbose", &[]).expect("health");
        checks.contains("[+]deployment-controller ok\n").then_some(())
    });
    wait_for("the controllers' queues", Duration::from_secs(60), || {
        let text = page(&cluster, controllers, "/metrics", &[&watcher]).expect("metrics");
        let queues = ["serviceaccount", "namespace", "deployment", "garbage_collector_attempt_to_delete"];
        queues.iter().all(|q| text.contains(&format!("workqueue_depth{{name=\"{q}\"}}"))).then_some(())
    });
    let text = page(&cluster, scheduler, "/metrics", &[&watcher]).expect("metrics");
    assert!(text.contains("scheduler_pending_pods{queue=\"active\"}"), "{text}");
    wait_for("readiness", Duration::from_secs(60), || {
        let ready = page(&cluster, scheduler, "/readyz?verbose", &[]).ok()?;
        let passed = ready.contains("[+]sched-handler-sync ok\n") && ready.ends_with("readyz check passed\n");
        passed.then_some(())
    });
    assert!(page(&cluster, controllers, "/livez", &[]).is_err(), "upstream has none there either");
    drop(started);
}
