//! Pods on containerd with the reference CNI plugins, in place of the built-in runtime and pod network.

use std::path::PathBuf;
use std::process::{Child, Output};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::images::Registry;
use crate::kubectl::Kubectl;
use crate::objects::{BUSYBOX, SLEEP, once, pod, service, sleeper, web};
use crate::sandbox::{log_to, only_child, succeeded, wait_for};

const SOCKET: &str = "/run/containerd-test/containerd.sock";
const PAUSE: &str = "knarr.local/pause:1";
/// All images of the tests' pods.
const IMAGES: [&str; 4] = [
    "knarr.local/web:v1",
    "knarr.local/web:v2",
    "knarr.local/busybox:latest",
    "docker.io/library/busybox:latest",
];

/// containerd in a sandbox, with its own folders and socket there.
pub struct Containerd {
    child: Child,
}

impl Containerd {
    /// Starts containerd beside the cluster's server with the images of the examples.
    pub fn start(cluster: &Cluster) -> Self {
        let folder = cluster.sandbox.path("containerd");
        std::fs::create_dir_all(folder.join("cni")).expect("folder");
        let config = format!(
            "version = 2\nroot = {root:?}\nstate = \"/run/containerd-test/state\"\n\
             [grpc]\naddress = \"{SOCKET}\"\n\
             [ttrpc]\naddress = \"{SOCKET}.ttrpc\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{PAUSE}\"\n\
             restrict_oom_score_adj = true\ndisable_apparmor = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {plugins:?}\nconf_dir = {cni:?}\n",
            plugins = crate::requirements::cni_bin_dir().expect("CNI plugins"),
            root = folder.join("root"),
            cni = folder.join("cni"),
        );
        std::fs::write(folder.join("config.toml"), config).expect("file");
        std::fs::write(folder.join("cni/10-pods.conflist"), cni().to_string()).expect("file");
        let child = spawn(cluster);
        let started = Self { child };
        let (pause, examples) = (folder.join("pause.tar"), folder.join("examples.tar"));
        let busybox = succeeded("which busybox", &cluster.sandbox.try_sh("command -v busybox"));
        let pause = pause.to_string_lossy();
        cluster.python("pause.py", &[&pause, PAUSE, busybox.trim()]);
        cluster.image("examples");
        let examples = examples.to_string_lossy();
        let words = format!("export {} --output {examples}", IMAGES.join(" "));
        cluster.image(words.split(' ').map(str::to_owned).collect::<Vec<_>>().as_slice());
        for archive in [&pause, &examples] {
            succeeded("ctr images import", &ctr(cluster, &["images", "import", archive]));
        }
        started
    }

    /// Kills containerd alone with `kill -9`: its shims and containers keep running.
    fn kill(&mut self) {
        if let Some(pid) = only_child(self.child.id()) {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }

    fn restart(&mut self, cluster: &Cluster) {
        self.child = spawn(cluster);
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the configuration of a bridge with addresses from the node's own range, and host ports.
fn cni() -> Value {
    json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
         "ipam": {"type": "host-local", "dataDir": "/run/containerd-test/leases",
                  "ranges": [[{"subnet": "10.42.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
    ]})
}

fn spawn(cluster: &Cluster) -> Child {
    let folder = cluster.sandbox.path("containerd");
    let mut command = cluster.sandbox.command("containerd");
    command.arg("--config").arg(folder.join("config.toml"));
    log_to(&mut command, &folder.join("log"));
    let mut child = command.spawn().expect("nsenter(1) of util-linux");
    wait_for("containerd", Duration::from_secs(30), || {
        if let Ok(Some(status)) = child.try_wait() {
            panic!("containerd ended with {status}");
        }
        ctr(cluster, &["version"]).status.success().then_some(())
    });
    child
}

fn ctr(cluster: &Cluster, words: &[&str]) -> Output {
    let mut command = cluster.sandbox.command("ctr");
    command.args(["--address", SOCKET, "--namespace", "k8s.io"]).args(words);
    command.output().expect("nsenter(1) of util-linux")
}

/// Returns the server's flags for this containerd.
pub fn arguments() -> Vec<String> {
    vec![format!("--container-runtime-endpoint=unix://{SOCKET}")]
}

/// Lists the folders of pods in all cgroup hierarchies.
fn pod_cgroups(cluster: &Cluster) -> String {
    let name = cluster.sandbox.cgroup_root.trim_start_matches('/');
    cluster.sandbox.sh(&format!("find /sys/fs/cgroup -type d -path '*{name}*' -name 'pod*'"))
}

#[test]
fn a4_containerd_runs_pods() {
    let cluster = Cluster::on_containerd();
    let kubectl = cluster.namespace("pods");
    let version = kubectl.path("node knarr-test", "{.status.nodeInfo.containerRuntimeVersion}");
    assert!(version.starts_with("containerd://1."), "{version}");

    kubectl.apply(&web("web", 2));
    kubectl.apply(&service("web"));
    let mut box_ = sleeper("box");
    box_["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080, "hostPort": 8080}]);
    kubectl.apply(&box_);
    kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.ready("box");
    let id = kubectl.path("pod box", "{.status.containerStatuses[0].containerID}");
    assert!(id.starts_with("containerd://"), "{id}");
    let ip = kubectl.path("pod box", "{.status.podIP}");
    assert!(ip.starts_with("10.42.0."), "{ip}");

    let address = kubectl.path("service web", "{.spec.clusterIP}");
    assert!(cluster.http(&address).ends_with(" v1\n"), "a Service reaches them from the node");
    let answer = kubectl.run("exec box -- wget -q -O - http://web");
    assert!(answer.ends_with(" v1\n"), "and from a pod by its name: {answer}");
    sessions(&kubectl);
    ports(&cluster, &kubectl, &ip);
    kubectl.eventually("top pods --containers --no-headers", |out| out.contains("main"));
    endings(&kubectl);
    probes(&kubectl);
    let figures = kubectl.run("get --raw /api/v1/nodes/knarr-test/proxy/metrics");
    let of = |series: &str| figures.lines().find_map(|line| line.strip_prefix(series)).expect(series);
    assert_ne!(of("kubelet_pleg_relist_interval_seconds_count "), "0");
    assert_ne!(of("kubelet_pleg_last_seen_seconds "), "0");
    of("kubelet_runtime_operations_total{operation_type=\"exec_sync\"} ");

    kubectl.run("delete deployment/web service/web --wait");
    kubectl.run("delete pods --all --wait");
    leaves_nothing(&cluster);
}

fn sessions(kubectl: &Kubectl) {
    let output = kubectl.attempt(["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("err\n"), "{output:?}");
    let large = ("x".repeat(79) + "\n").repeat(20_000);
    let counted = kubectl.attempt_with("exec -i box -- wc -c", &large);
    assert_eq!(String::from_utf8_lossy(&counted.stdout).trim(), "1600000", "input ends: {counted:?}");
    let error = kubectl.fails("exec box -- /no/such/program");
    assert!(error.contains("OCI runtime exec failed") && error.contains("/no/such/program"), "{error}");
    assert_eq!(error.matches("Internal error occurred").count(), 1, "{error}");

    let mut asks = once("asks", "echo your name?; read name; echo hello $name");
    asks["spec"]["containers"][0]["stdin"] = json!(true);
    asks["spec"]["containers"][0]["stdinOnce"] = json!(true);
    kubectl.apply(&asks);
    kubectl.ready("asks");
    let output = kubectl.attempt_with("attach -i asks", "Ada\n");
    assert!(output.status.success(), "{output:?}");
    kubectl.phase("asks", "Succeeded");
    assert_eq!(kubectl.run("logs asks"), "your name?\nhello Ada\n");
    let follow = kubectl.background("logs -f asks");
    assert_eq!(follow.end(), (true, "your name?\nhello Ada\n".to_owned()));
}

fn ports(cluster: &Cluster, kubectl: &Kubectl, ip: &str) {
    let serving = kubectl.background([
        "exec",
        "box",
        "--",
        "sh",
        "-c",
        "while true; do printf 'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\nit is me' | nc -l -p 8080; done",
    ]);
    let answers = |address: &str| cluster.http(address) == "it is me";
    assert!(answers(&format!("{ip}:8080")) && answers("10.99.0.2:8080"), "the pod's port, and the node's");
    let forward = kubectl.background("port-forward pod/box 9000:8080 9001:81");
    forward.until(|out| out.contains("Forwarding from 127.0.0.1:9001"));
    assert!(answers("127.0.0.1:9000"));
    assert!(cluster.try_http("127.0.0.1:9001").is_none());
    let told = forward.until(|out| out.contains("an error occurred forwarding"));
    assert!(told.contains("failed to connect to localhost:81 inside namespace"), "{told}");
    drop(serving);
}

fn endings(kubectl: &Kubectl) {
    kubectl.apply(&pod("crashes", "echo dying; exit 3"));
    kubectl.until("pod crashes", "{.status.containerStatuses[0].state.waiting.reason}", "CrashLoopBackOff");
    let last = kubectl.path("pod crashes", "{.status.containerStatuses[0].lastState.terminated}");
    assert!(last.contains("\"exitCode\":3") && last.contains("\"reason\":\"Error\""), "{last}");
    assert_eq!(kubectl.run("logs crashes --previous"), "dying\n");
    assert!(kubectl.event("crashes", "BackOff").contains("Back-off restarting failed container main"));

    let mut greedy = once("greedy", "x=a; while true; do x=$x$x; done");
    greedy["spec"]["containers"][0]["resources"] = json!({"limits": {"memory": "20Mi"}});
    kubectl.apply(&greedy);
    kubectl.phase("greedy", "Failed");
    let state = kubectl.path("pod greedy", "{.status.containerStatuses[0].state.terminated}");
    assert!(state.contains("\"exitCode\":137") && state.contains("OOMKilled"), "{state}");

    let mut missing = once("missing", "");
    missing["spec"]["containers"][0]["command"] = json!(["/no/such/program"]);
    kubectl.apply(&missing);
    kubectl.phase("missing", "Failed");
    let state = kubectl.path("pod missing", "{.status.containerStatuses[0].state.terminated}");
    assert!(state.contains("\"exitCode\":128") && state.contains("\"reason\":\"StartError\""), "{state}");

    let script = "id; cat /data/from-init; echo why > /dev/termination-log; touch /no 2>/dev/null; exit 4";
    let mut strict = once("strict", script);
    strict["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "seccompProfile": {"type": "RuntimeDefault"}});
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    strict["spec"]["containers"][0]["securityContext"] = json!({"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    strict["spec"]["containers"][0]["volumeMounts"] = mount.clone();
    strict["spec"]["initContainers"] = json!([{
        "name": "init", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "volumeMounts": mount,
        "command": ["sh", "-c", "echo made before > /data/from-init"],
    }]);
    strict["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    kubectl.apply(&strict);
    kubectl.phase("strict", "Failed");
    let log = kubectl.run("logs strict -c main");
    assert_eq!(log, "uid=1000 gid=2000 groups=2000,3000\nmade before\n");
    let message = kubectl.path("pod strict", "{.status.containerStatuses[0].state.terminated.message}");
    assert_eq!(message, "why\n");
}

fn probes(kubectl: &Kubectl) {
    let mut object = pod("probed", &format!("touch /tmp/alive; {SLEEP}"));
    object["spec"]["containers"][0]["livenessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/alive"]}, "periodSeconds": 1, "failureThreshold": 1});
    object["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/alive"]}, "periodSeconds": 1});
    kubectl.apply(&object);
    kubectl.ready("probed");
    kubectl.run("exec probed -- rm /tmp/alive");
    kubectl.until("pod probed", "{.status.containerStatuses[0].restartCount}", "1");
    assert!(kubectl.event("probed", "Unhealthy").contains("Liveness probe failed"));
    kubectl.ready("probed");
}

fn leaves_nothing(cluster: &Cluster) {
    wait_for("the end of all that pods had", Duration::from_secs(30), || {
        let containers = ctr(cluster, &["containers", "list", "--quiet"]).stdout;
        let left = cluster.sandbox.sh(
            "ls /run/netns; ls $0/data/kubelet/pods $0/data/kubelet/logs | grep -v : ; ip -br link | grep veth; true",
        );
        (containers.is_empty() && left.trim().is_empty() && pod_cgroups(cluster).is_empty()).then_some(())
    });
}

#[test]
fn a4_containerd_pulls_with_the_pods_secret() {
    let cluster = Cluster::on_containerd();
    let kubectl = cluster.namespace("pulls");
    let registry = Registry::start(&cluster, 5000);
    registry.push(&cluster, BUSYBOX, "team/box", "1.0");
    let image = format!("{}/team/box:1.0", registry.host);
    let private = |name: &str| {
        let mut object = sleeper(name);
        object["spec"]["containers"][0]["image"] = json!(image);
        object
    };
    kubectl.apply(&private("refused"));
    kubectl.until("pod refused", "{.status.containerStatuses[0].state.waiting.reason}", "ImagePullBackOff");
    let message = kubectl.event("refused", "Failed");
    assert!(
        message.contains("rpc error: code = Unknown desc = failed to pull and unpack image"),
        "{message}"
    );
    for (name, password) in [("wrong", "no"), ("right", "secret")] {
        let server = format!("--docker-server={}", registry.host);
        let password = format!("--docker-password={password}");
        kubectl.run([
            "create",
            "secret",
            "docker-registry",
            name,
            &server,
            "--docker-username=user",
            &password,
        ]);
    }
    let mut object = private("let-in");
    object["spec"]["imagePullSecrets"] = json!([{"name": "wrong"}, {"name": "right"}]);
    kubectl.apply(&object);
    kubectl.ready("let-in");
    let pulled = kubectl.event("let-in", "Pulled");
    assert!(pulled.starts_with(&format!("Successfully pulled image \"{image}\" in ")), "{pulled}");
    let id = kubectl.path("pod let-in", "{.status.containerStatuses[0].imageID}");
    assert!(id.starts_with(&format!("{}/team/box@sha256:", registry.host)), "{id}");
    let names = kubectl.path("node knarr-test", "{.status.images[*].names}");
    assert!(names.contains(&image), "{names}");
}

fn log_parts(cluster: &Cluster) -> Vec<PathBuf> {
    let logs = cluster.data_dir().join("kubelet/logs");
    let pod = std::fs::read_dir(logs)
        .expect("folder")
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().contains("_counting_"));
    let folder = pod.expect("the pod's logs").path().join("main");
    std::fs::read_dir(folder).expect("folder").flatten().map(|entry| entry.path()).collect()
}

#[test]
fn a4_pods_on_containerd_survive_restarts() {
    let mut cluster = Cluster::on_containerd();
    let kubectl = cluster.namespace("survive");
    kubectl.apply(&web("web", 1));
    kubectl.apply(&pod(
        "counting",
        "yes 0123456789012345678901234567890123456789 | head -n 250000; trap 'exit 0' TERM; \
         n=0; while true; do n=$((n+1)); echo $n; sleep 0.2 & wait; done",
    ));
    kubectl.run("rollout status deployment/web --timeout=90s");
    kubectl.ready("counting");
    let all = "{range .items[*]}{.metadata.uid} {.status.podIP} {.status.containerStatuses[0].containerID} \
               {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    let before = kubectl.path("pods", all);
    let ip = kubectl.path("pods -l app=web", "{.items[0].status.podIP}");
    wait_for("a full log's rotation", Duration::from_secs(60), || {
        (log_parts(&cluster).len() > 1).then_some(())
    });
    kubectl.eventually("logs counting --tail=1", |out| out.trim().parse::<u32>().is_ok());
    std::mem::forget(kubectl);

    cluster.kill_server();
    assert!(cluster.http(&ip).ends_with(" v1\n"), "containers go on without the server");
    cluster.start_server();
    let kubectl = Kubectl::new(&cluster, Some("survive".to_owned()), cluster.kubeconfig());
    assert_eq!(kubectl.path("pods", all), before, "the same containers, never restarted");
    assert_eq!(kubectl.run("exec counting -- echo here"), "here\n");
    std::mem::forget(kubectl);

    let mut containerd = cluster.containerd.take().expect("containerd");
    containerd.kill();
    let kubectl = Kubectl::new(&cluster, Some("survive".to_owned()), cluster.kubeconfig());
    let ready = "{.status.conditions[?(@.type==\"Ready\")].message}";
    kubectl.until("node knarr-test", ready, "container runtime is down");
    assert!(cluster.http(&ip).ends_with(" v1\n"), "containers go on without containerd");
    containerd.restart(&cluster);
    kubectl.until("node knarr-test", ready, "kubelet is posting ready status");
    assert_eq!(kubectl.path("pods", all), before, "the same containers, never restarted");
    assert_eq!(kubectl.run("exec counting -- echo here"), "here\n");
    kubectl.run("delete pod counting --wait");
}
