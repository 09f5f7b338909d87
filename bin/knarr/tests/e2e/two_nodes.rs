//! Two machines: a server, and an agent that joins it from its own sandbox over a cable between the two.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::{Cluster, EVICTION_HARD, knarr};
use crate::kubectl::Kubectl;
use crate::objects::{SLEEP, service, sleeper, web};
use crate::sandbox::{NODE_IP, Sandbox, log_to, only_child, succeeded, wait_for};

pub const WORKER: &str = "knarr-worker";
const WORKER_IP: &str = "10.99.0.3";

/// A second machine, at the other end of the server's uplink.
pub struct Worker {
    pub sandbox: Sandbox,
    agent: Option<Child>,
}

impl Worker {
    pub fn beside(cluster: &Cluster) -> Self {
        let sandbox = Sandbox::new("worker");
        sandbox.sh(&format!("ip link del uplink && hostname {WORKER}"));
        let mut give = Command::new("nsenter");
        give.args(["--target", &cluster.sandbox.pid().to_string(), "--net", "--", "ip", "link", "set"]);
        give.args(["uplink-far", "netns", &sandbox.pid().to_string()]);
        succeeded("the cable", &give.output().expect("nsenter(1) of util-linux"));
        sandbox.sh(&format!(
            "ip link set uplink-far name uplink && ip link set uplink up \
             && ip address add {WORKER_IP}/24 dev uplink && ip route add default via {NODE_IP}"
        ));
        Self { sandbox, agent: None }
    }

    /// Starts the agent with this kubeconfig and waits for its last line; returns what it printed.
    pub fn start(&mut self, kubeconfig: &PathBuf) -> String {
        let log = self.sandbox.path("agent.log");
        let _ = std::fs::remove_file(&log);
        let mut command = self.sandbox.command(knarr());
        command.arg("agent").arg("--kubeconfig").arg(kubeconfig);
        command.arg("--data-dir").arg(self.sandbox.path("data"));
        command.args(["--cgroup-root", &self.sandbox.cgroup_root]);
        command.args(EVICTION_HARD);
        log_to(&mut command, &log);
        let mut child = command.spawn().expect("nsenter(1) of util-linux");
        let text = wait_for("the agent's last line", Duration::from_secs(60), || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if let Ok(Some(status)) = child.try_wait() {
                panic!("the agent ended with {status}:\n{text}");
            }
            text.contains("\nReady in ").then_some(text)
        });
        self.agent = Some(child);
        text
    }

    pub fn stop(&mut self) {
        let Some(mut nsenter) = self.agent.take() else { return };
        let agent = only_child(nsenter.id()).expect("the agent below nsenter");
        let agent = nix::unistd::Pid::from_raw(i32::try_from(agent).expect("a process id"));
        nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGINT).expect("a signal to the agent");
        let ended =
            wait_for("the agent's end", Duration::from_secs(30), || nsenter.try_wait().expect("a child"));
        assert!(ended.success(), "the agent ended with {ended}");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.sandbox.path("agent.log")).unwrap_or_default());
        }
        if let Some(mut nsenter) = self.agent.take() {
            if let Some(agent) = only_child(nsenter.id()) {
                let agent = nix::unistd::Pid::from_raw(agent.cast_signed());
                let _ = nix::sys::signal::kill(agent, nix::sys::signal::Signal::SIGKILL);
            }
            let _ = nsenter.wait();
        }
    }
}

/// Writes a kubeconfig with `knarr kubeconfig --node` on the server.
pub fn node_kubeconfig(cluster: &Cluster) -> PathBuf {
    let url = format!("https://{NODE_IP}:6443");
    let output = cluster.knarr(&["kubeconfig", "--node", WORKER, "--server", &url]).output();
    let text = succeeded("knarr kubeconfig", &output.expect("nsenter(1) of util-linux"));
    let path = cluster.sandbox.path("worker.kubeconfig");
    std::fs::write(&path, text).expect("kubeconfig file");
    path
}

/// Returns the administrator's kubeconfig, with the address at which the worker reaches the server.
fn admin_kubeconfig(cluster: &Cluster) -> PathBuf {
    let text = std::fs::read_to_string(cluster.kubeconfig()).expect("the administrator's kubeconfig");
    let path = cluster.sandbox.path("admin-from-afar.kubeconfig");
    std::fs::write(&path, text.replace("127.0.0.1", NODE_IP)).expect("kubeconfig file");
    path
}

fn on(node: &str, mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = json!(node);
    pod
}

fn ready(kubectl: &Kubectl, node: &str) {
    let condition = format!("wait --for=condition=Ready node/{node} --timeout=60s");
    kubectl.run(&condition);
}

#[test]
fn h1_a_second_machine_joins_with_a_nodes_kubeconfig() {
    let cluster = Cluster::start();
    let mut worker = Worker::beside(&cluster);
    worker.start(&node_kubeconfig(&cluster));
    let kubectl = cluster.namespace("two");
    ready(&kubectl, WORKER);
    assert_eq!(
        kubectl.path(&format!("node {WORKER}"), "{.status.addresses[?(@.type=='InternalIP')].address}"),
        WORKER_IP
    );

    kubectl.apply(&on("knarr-test", sleeper("near")));
    kubectl.apply(&on(WORKER, sleeper("far")));
    kubectl.ready("near");
    kubectl.ready("far");
    assert_eq!(kubectl.run("exec far -- hostname").trim(), "far");
    assert_eq!(kubectl.run("exec far -- cat /proc/sys/kernel/hostname").trim(), "far");

    // Connections between pods of the two machines, both ways, and through a Service whose pods are on the
    // other one.
    let ip = |pod: &str| kubectl.path(&format!("pod {pod}"), "{.status.podIP}");
    let (near, far) = (ip("near"), ip("far"));
    kubectl.run(&format!("exec near -- ping -c 1 -W 5 {far}"));
    kubectl.run(&format!("exec far -- ping -c 1 -W 5 {near}"));
    let mut site = web("site", 1);
    site["spec"]["template"]["spec"]["nodeName"] = json!(WORKER);
    kubectl.apply(&site);
    kubectl.apply(&service("site"));
    kubectl.run("rollout status deployment/site --timeout=60s");
    let site = kubectl.path("service site", "{.spec.clusterIP}");
    for pod in ["near", "far"] {
        let look_up = format!("exec {pod} -- nslookup site.two.svc.cluster.local");
        kubectl.eventually(&look_up, |out| out.contains(&site));
        let fetch = format!("exec {pod} -- timeout 5 wget -q -O - http://{site}");
        kubectl.eventually(&fetch, |out| out.contains("v1"));
    }
    let logs = kubectl.run("logs deployment/site");
    assert!(logs.contains("GET / 200"), "{logs}");
    let figures = kubectl.run(&format!("get --raw /api/v1/nodes/{WORKER}/proxy/metrics"));
    assert!(figures.contains("kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} "));

    // The agent stops and starts, containers keep running.
    let started = kubectl.path("pod far", "{.status.containerStatuses[0].state.running.startedAt}");
    worker.stop();
    worker.start(&node_kubeconfig(&cluster));
    ready(&kubectl, WORKER);
    assert_eq!(kubectl.path("pod far", "{.status.containerStatuses[0].state.running.startedAt}"), started);
    assert_eq!(kubectl.run("exec far -- hostname").trim(), "far");
}

#[test]
fn h1_a_second_machine_joins_with_an_administrators_kubeconfig() {
    let cluster = Cluster::start();
    let mut worker = Worker::beside(&cluster);
    let kubeconfig = admin_kubeconfig(&cluster);
    let printed = worker.start(&kubeconfig);
    assert!(printed.contains("issued by the cluster"), "{printed}");
    let kubectl = cluster.namespace("joined");
    ready(&kubectl, WORKER);
    let requests = kubectl.run("get csr --no-headers");
    assert_eq!(requests.lines().filter(|l| l.ends_with("Approved,Issued")).count(), 2, "{requests}");
    assert!(requests.contains("kubernetes.io/kubelet-serving"), "{requests}");
    kubectl.apply(&on(WORKER, sleeper("far")));
    kubectl.ready("far");
    assert_eq!(kubectl.run("exec far -- hostname").trim(), "far");
    kubectl.run("logs far");
    let figures = kubectl.run(&format!("get --raw /api/v1/nodes/{WORKER}/proxy/metrics"));
    let of = |series: &str| figures.lines().find_map(|line| line.strip_prefix(series)).expect(series);
    let left: f64 = of("kubelet_certificate_manager_client_ttl_seconds ").parse().expect("a number");
    assert!(left.is_finite() && left > 0.0, "{left}");
    of("rest_client_requests_total{code=\"200\",method=\"GET\",host=");

    worker.stop();
    let printed = worker.start(&kubeconfig);
    assert!(printed.contains("kept from an earlier start"), "{printed}");
    ready(&kubectl, WORKER);
    assert_eq!(kubectl.run("exec far -- hostname").trim(), "far");
}

/// Returns a request for a serving certificate, as the worker's kubelet would create it.
fn serving_request(name: &str, names: &[&str]) -> Value {
    let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).expect("names");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{WORKER}"));
    let key = rcgen::KeyPair::generate().expect("a key");
    let pem = params.serialize_request(&key).and_then(|csr| csr.pem()).expect("a request");
    let request = k8s_openapi::ByteString(pem.into_bytes());
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"signerName": "kubernetes.io/kubelet-serving", "request": request,
            "usages": ["digital signature", "server auth"]}})
}

/// An attacker has the worker's credentials and its machine.
#[test]
fn h1_a_node_gets_certificates_for_itself_alone() {
    let cluster = Cluster::start();
    let mut worker = Worker::beside(&cluster);
    let kubeconfig = node_kubeconfig(&cluster);
    worker.start(&kubeconfig);
    let kubectl = cluster.namespace("claims");
    ready(&kubectl, WORKER);
    let as_node = |words: &[&str]| {
        let mut command = worker.sandbox.command("kubectl");
        command.arg("--kubeconfig").arg(&kubeconfig).args(words);
        command.output().expect("nsenter(1) of util-linux")
    };
    let file = worker.sandbox.path("object.json");
    let claim = |addresses: Value| {
        let object = succeeded("the node", &as_node(&["get", "node", WORKER, "-o", "json"]));
        let mut object: Value = serde_json::from_str(&object).expect("JSON");
        object["metadata"]["resourceVersion"] = json!(null);
        object["status"]["addresses"] = addresses;
        std::fs::write(&file, object.to_string()).expect("a file");
        let path = format!("/api/v1/nodes/{WORKER}/status");
        as_node(&["replace", "--raw", &path, "-f", &file.to_string_lossy()])
    };
    let own = json!({"type": "InternalIP", "address": WORKER_IP});
    let others = json!([own, {"type": "InternalIP", "address": NODE_IP}]);
    let refused = String::from_utf8_lossy(&claim(others).stderr).into_owned();
    assert!(refused.contains("is not allowed to claim the address"), "{refused}");
    succeeded(
        "a claim",
        &claim(json!([own, {"type": "InternalIP", "address": "10.43.0.1"},
            {"type": "InternalDNS", "address": "kubernetes.default.svc"}])),
    );

    let ask = |name: &str, names: &[&str]| {
        std::fs::write(&file, serving_request(name, names).to_string()).expect("a file");
        succeeded("a request", &as_node(&["create", "-f", &file.to_string_lossy()]));
    };
    ask("own", &[WORKER, WORKER_IP]);
    kubectl.eventually("get csr own --no-headers", |out| out.contains("Approved,Issued"));
    let waits = "{.status.conditions[?(@.type=='AutoApproval')].status}";
    for (name, wanted) in [
        ("service", "kubernetes.default.svc"),
        ("address", "10.43.0.1"),
        ("server", NODE_IP),
        ("elsewhere", "10.99.0.77"),
    ] {
        ask(name, &[WORKER, wanted]);
        kubectl.until(&format!("csr {name}"), waits, "False");
        assert!(kubectl.run(&format!("get csr {name} --no-headers")).contains("Pending"), "{name}");
    }
    // An administrator vouches for an address, or approves by hand.
    kubectl.run(&format!("annotate node {WORKER} knarr.dev/serving-addresses=10.99.0.77"));
    kubectl.eventually("get csr elsewhere --no-headers", |out| out.contains("Approved,Issued"));
    kubectl.run("certificate approve address");
    kubectl.eventually("get csr address --no-headers", |out| out.contains("Approved,Issued"));
}

#[test]
fn h1_agents_say_what_is_wrong() {
    let cluster = Cluster::start();
    let fails = |words: &[&str]| {
        let mut command = cluster.sandbox.command(knarr());
        let output = command.arg("agent").args(words).output().expect("nsenter(1) of util-linux");
        assert!(!output.status.success(), "knarr agent {}", words.join(" "));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let error = fails(&["--kubeconfig", "/nowhere"]);
    assert!(error.contains("/nowhere") && error.contains("No such file"), "{error}");
    let kubeconfig = node_kubeconfig(&cluster);
    let path = kubeconfig.to_str().expect("UTF-8 path");
    let error = fails(&["--kubeconfig", path, "--node-name", "other"]);
    assert!(error.contains("is the access of node knarr-worker, but this node is called other"), "{error}");
    let text = std::fs::read_to_string(&kubeconfig).expect("kubeconfig file");
    let unreachable = cluster.sandbox.path("unreachable.kubeconfig");
    std::fs::write(&unreachable, text.replace(":6443", ":6444")).expect("kubeconfig file");
    let error = fails(&["--kubeconfig", unreachable.to_str().expect("UTF-8 path")]);
    assert!(error.contains("10.99.0.2:6444 is reachable from here"), "{error}");
}

/// A node that looks healthy while no pod starts on it, until it is repaired.
#[test]
fn d13_a_node_on_which_pods_fail_to_start_is_avoided_until_they_start_again() {
    const IMAGES: [&str; 3] =
        ["knarr.local/busybox:latest", "docker.io/library/busybox:latest", "knarr.local/web:v1"];
    let mut cluster = Cluster::new();
    let settings = cluster.sandbox.path("scheduler.yaml");
    let short = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "nodeFailureAwareness": {"breaker": {"pauseSeconds": 25}}});
    std::fs::write(&settings, short.to_string()).expect("the scheduler's configuration");
    cluster.start_server_with(&["--scheduler-config", &settings.to_string_lossy()]);
    let mut worker = Worker::beside(&cluster);
    worker.start(&node_kubeconfig(&cluster));
    let kubectl = cluster.namespace("d13");
    ready(&kubectl, WORKER);

    // Its disk has lost the images, and there is no registry to pull them from.
    let image = |words: &[&str]| {
        let mut command = worker.sandbox.command(knarr());
        command.arg("image").args(words).arg("--data-dir").arg(worker.sandbox.path("data"));
        succeeded(
            &format!("knarr image {}", words.join(" ")),
            &command.output().expect("nsenter(1) of util-linux"),
        )
    };
    let archives: Vec<_> =
        (0..IMAGES.len()).map(|n| worker.sandbox.path(&format!("image-{n}.tar"))).collect();
    for (name, archive) in IMAGES.iter().zip(&archives) {
        image(&["export", name, "--output", &archive.to_string_lossy()]);
        image(&["rm", name]);
    }
    let deployment = |name: &str, image: &str, replicas: u32| {
        let mut object = web(name, replicas);
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        container["image"] = json!(image);
        container["imagePullPolicy"] = json!("IfNotPresent");
        if image.contains("busybox") {
            container["command"] = json!(["/bin/sh", "-c", SLEEP]);
            container["readinessProbe"] = json!(null);
        }
        object
    };
    for (n, image) in IMAGES.iter().enumerate() {
        kubectl.apply(&deployment(&format!("shop-{n}"), image, 4));
    }
    let node = format!("node {WORKER}");
    let condition = "{.status.conditions[?(@.type=='PodsFailToStart')].status}";
    kubectl.until(&node, condition, "True");
    let of_node = format!("get events -A --field-selector involvedObject.name={WORKER}");
    assert!(kubectl.run(&of_node).contains("PodsFailToStart"));

    // New pods stay away from it.
    kubectl.apply(&deployment("later", IMAGES[0], 4));
    kubectl.run("rollout status deployment/later --timeout=60s");
    let places = kubectl.path("pods -l app=later", "{.items[*].spec.nodeName}");
    assert!(places.split_whitespace().all(|node| node == "knarr-test"), "{places}");

    // The node is repaired: after the pause one pod may try, and then the node is trusted again.
    for archive in &archives {
        image(&["import", &archive.to_string_lossy()]);
    }
    let mut trial = sleeper("trial");
    trial["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": WORKER});
    kubectl.apply(&trial);
    // A pull that began before may still fail, and each failure doubles the pause.
    kubectl.run("wait --for=condition=Ready --timeout=240s pod/trial");
    kubectl.until(&node, condition, "False");
    let events = kubectl.run(&of_node);
    assert!(events.contains("PodStartTrial") && events.contains("Pods start again"), "{events}");
}
