//! One rollout of a Deployment of many pods on simulated nodes: by Knarr's controllers, and with `--upstream`
//! by upstream's kube-controller-manager on the same API server.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::process;
use super::report::Report;
use crate::http::Access;
use crate::sandbox::{log_to, only_child};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
/// The pods of one simulated node, which leaves room for new pods that start before old ones end.
const PER_NODE: usize = 70;
/// A rollout that does not end in this time has failed.
const PATIENCE: Duration = Duration::from_secs(1800);

pub fn measure(binary: &Path, pods: usize, upstream: Option<&PathBuf>) -> Result<Report> {
    let mut report = Report::new("rollout");
    report.add("pods", pods as f64, "pods");
    one(&mut report, "knarr", binary, pods, None)?;
    if let Some(folder) = upstream {
        one(&mut report, "kube-controller-manager", binary, pods, Some(folder))?;
    }
    Ok(report)
}

fn one(
    report: &mut Report,
    name: &str,
    binary: &Path,
    pods: usize,
    upstream: Option<&PathBuf>,
) -> Result<()> {
    eprintln!("{name}: {pods} pods are created and rolled over");
    let mut cluster = Cluster::new(binary)?;
    let mut options = vec!["--disable-node"];
    if upstream.is_some() {
        options.push("--disable-controller-manager");
    }
    cluster.start(&options)?;
    let access = cluster.access()?;
    let manager = upstream.map(|folder| Process::manager(&cluster, folder)).transpose()?;
    let _nodes = Process::nodes(&cluster, binary, pods.div_ceil(PER_NODE))?;
    let pids: Vec<u32> =
        [Some(cluster.pid()?), manager.as_ref().and_then(Process::pid)].into_iter().flatten().collect();
    let used = || -> Result<(Duration, f64)> {
        let mut sum = (Duration::ZERO, 0.0);
        for pid in &pids {
            sum.0 += process::cpu_time(*pid)?;
            sum.1 += process::memory(*pid)?.rss;
        }
        Ok(sum)
    };

    let begun = Instant::now();
    let mut connection = access.connect()?;
    let made = connection.json("POST", DEPLOYMENTS, Some(&deployment(pods)))?;
    complete(&access, &made, pods)?;
    report.add(&format!("{name} creation"), begun.elapsed().as_secs_f64(), "s");

    let (writes, cpu) = (written(&access)?, used()?.0);
    let begun = Instant::now();
    let mut changed = access.connect()?.json("GET", &format!("{DEPLOYMENTS}/web"), None)?;
    changed["spec"]["template"]["metadata"]["annotations"] = json!({"release": "2"});
    let changed = access.connect()?.json("PUT", &format!("{DEPLOYMENTS}/web"), Some(&changed))?;
    complete(&access, &changed, pods)?;
    report.add(&format!("{name} rollout"), begun.elapsed().as_secs_f64(), "s");
    report.add(&format!("{name} writes a pod"), (written(&access)? - writes) / pods as f64, "");
    let (after, memory) = used()?;
    let spent = after.saturating_sub(cpu).as_secs_f64() * 1000.0 / pods as f64;
    report.add(&format!("{name} processor time a pod"), spent, "ms");
    report.add(&format!("{name} memory"), memory, "MB");
    Ok(())
}

fn deployment(pods: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": pods,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
                    "containers": [{"name": "web", "image": "web"}]},
            },
        },
    })
}

/// Waits until all pods have the Deployment's present template, and are available.
fn complete(access: &Access, changed: &Value, pods: usize) -> Result<()> {
    let generation = changed["metadata"]["generation"].as_i64().context("a generation")?;
    let path = format!("{DEPLOYMENTS}?watch=true&resourceVersion=0&fieldSelector=metadata.name%3Dweb");
    let begun = Instant::now();
    let mut watch = access.connect()?.watch(&path)?;
    loop {
        let event = watch.next().context("the rollout does not get on")?;
        let status = &event["object"]["status"];
        let count = |field: &str| status[field].as_u64().unwrap_or(0) as usize;
        let all = ["replicas", "updatedReplicas", "availableReplicas"].into_iter().all(|f| count(f) == pods);
        if all && status["observedGeneration"].as_i64() >= Some(generation) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("the rollout is not done after {PATIENCE:?}: {status}");
        }
    }
}

/// Returns how many writes the API server has answered so far, of all clients.
fn written(access: &Access) -> Result<f64> {
    let metrics = access.connect()?.send("GET", "/metrics", None)?;
    Ok(writes(&String::from_utf8_lossy(&metrics)))
}

fn writes(metrics: &str) -> f64 {
    let counted = |line: &&str| {
        line.starts_with("apiserver_request_total{")
            && ["POST", "PUT", "PATCH", "DELETE"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    };
    metrics.lines().filter(counted).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// A process beside the server, in its sandbox.
struct Process(Child);

impl Process {
    fn nodes(cluster: &Cluster, binary: &Path, count: usize) -> Result<Self> {
        let mut command = cluster.sandbox.command(binary);
        command.args(["agent", "--simulate", &count.to_string(), "--kubeconfig"]);
        command.arg(cluster.data_dir().join("admin.kubeconfig"));
        let log = cluster.sandbox.path("nodes.log");
        log_to(&mut command, &log);
        let own = Self(command.spawn().context("knarr agent")?);
        wait_for(&log, "\nReady in ")?;
        Ok(own)
    }

    /// Starts upstream's kube-controller-manager without a limit on its requests.
    fn manager(cluster: &Cluster, folder: &Path) -> Result<Self> {
        let kubeconfig = cluster.data_dir().join("admin.kubeconfig");
        let key = |name: &str| cluster.data_dir().join("pki").join(name);
        let mut command = cluster.sandbox.command(folder.join("kube-controller-manager"));
        for option in ["--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig"] {
            command.arg(option).arg(&kubeconfig);
        }
        command.arg("--service-account-private-key-file").arg(key("sa.key"));
        command.arg("--root-ca-file").arg(key("ca.crt"));
        command.args(["--allocate-node-cidrs", "--cluster-cidr", "10.42.0.0/16"]);
        command.args(["--kube-api-qps", "5000", "--kube-api-burst", "5000", "--bind-address", "127.0.0.1"]);
        let log = cluster.sandbox.path("manager.log");
        log_to(&mut command, &log);
        let own = Self(command.spawn().context("kube-controller-manager")?);
        wait_for(&log, "successfully acquired lease")?;
        Ok(own)
    }

    fn pid(&self) -> Option<u32> {
        only_child(self.0.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

fn wait_for(log: &Path, words: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        if text.to_lowercase().contains(&words.to_lowercase()) {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(120) {
            bail!("{words:?} does not show in:\n{text}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_told_from_reads() {
        let metrics = "apiserver_request_total{code=\"201\",verb=\"POST\"} 3\n\
            apiserver_request_total{code=\"200\",verb=\"GET\"} 50\n\
            apiserver_request_total{code=\"200\",verb=\"PATCH\"} 4\nother{verb=\"POST\"} 9\n";
        assert_eq!(writes(metrics), 7.0);
    }
}
