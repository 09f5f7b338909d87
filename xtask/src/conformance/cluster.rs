//! A fresh cluster of two machines, each in its own sandbox, with the test images.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::images::Images;
use super::registry;
use crate::sandbox::{NODE_IP, Sandbox, log_to, only_child};

const WORKER: &str = "knarr-worker";
const WORKER_IP: &str = "10.99.0.3";
const LIMIT: Duration = Duration::from_secs(180);

pub struct Cluster {
    binary: PathBuf,
    pub server: Sandbox,
    worker: Sandbox,
    /// The processes of the registry, the server and the agent.
    children: Vec<Child>,
}

impl Cluster {
    /// Starts both machines and waits until both nodes are Ready.
    pub fn start(binary: &Path, images: &Images) -> Result<Self> {
        let (server, worker) = (Sandbox::new("conformance"), Sandbox::new("conformance-worker"));
        join(&server, &worker)?;
        let mut cluster = Self { binary: binary.to_owned(), server, worker, children: Vec::new() };
        for sandbox in [&cluster.server, &cluster.worker] {
            let mut import = cluster.knarr(sandbox, &["image", "import"]);
            import.arg(&images.archive).stdout(std::process::Stdio::null());
            crate::run(import)?;
        }
        cluster.children.push(registry::start(&cluster.server, &images.registry)?);
        let mut command =
            cluster.knarr(&cluster.server, &["server", "--cgroup-root", &cluster.server.cgroup_root]);
        command.args(mirrors(images));
        let log = cluster.server.path("server.log");
        cluster.launch(command, &log)?;
        let kubeconfig = cluster.worker_kubeconfig()?;
        let mut command =
            cluster.knarr(&cluster.worker, &["agent", "--cgroup-root", &cluster.worker.cgroup_root]);
        command.arg("--kubeconfig").arg(kubeconfig).args(mirrors(images));
        let log = cluster.worker.path("agent.log");
        cluster.launch(command, &log)?;
        Ok(cluster)
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.server.path("data").join("admin.kubeconfig")
    }

    /// Copies both machines' logs out of the sandboxes, which are removed with the cluster.
    pub fn keep_logs(&self, folder: &Path) -> Result<()> {
        for (sandbox, name) in [(&self.server, "server.log"), (&self.worker, "agent.log")] {
            std::fs::copy(sandbox.path(name), folder.join(name))?;
        }
        Ok(())
    }

    fn knarr(&self, sandbox: &Sandbox, words: &[&str]) -> Command {
        let mut command = sandbox.command(&self.binary);
        command.args(words).arg("--data-dir").arg(sandbox.path("data"));
        command
    }

    /// Starts a long-lived process and waits for the line with which it reports that it is ready.
    fn launch(&mut self, mut command: Command, log: &Path) -> Result<()> {
        // The results do not depend on the free space of the disk.
        command.args(["--eviction-hard", "memory.available<100Mi"]);
        log_to(&mut command, log);
        let mut child = command.spawn().context("nsenter(1) of util-linux")?;
        let begun = Instant::now();
        let ended = loop {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            if text.contains("\nReady in ") {
                break None;
            }
            if child.try_wait()?.is_some() || begun.elapsed() > LIMIT {
                break Some(text);
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        self.children.push(child);
        match ended {
            None => Ok(()),
            Some(text) => bail!("not ready within {LIMIT:?}:\n{text}"),
        }
    }

    fn worker_kubeconfig(&self) -> Result<PathBuf> {
        let url = format!("https://{NODE_IP}:6443");
        let words = ["kubeconfig", "--node", WORKER, "--server", &url];
        let output = self.knarr(&self.server, &words).output()?;
        if !output.status.success() {
            bail!("knarr kubeconfig: {}", String::from_utf8_lossy(&output.stderr));
        }
        let path = self.worker.path("kubeconfig");
        std::fs::write(&path, output.stdout)?;
        Ok(path)
    }
}

/// Returns the options that replace the registries of the test images by the local one.
fn mirrors(images: &Images) -> impl Iterator<Item = String> {
    images.hosts.iter().map(|host| format!("--registry-mirror={host}={}", registry::url()))
}

/// Connects the uplinks of the two machines with a cable.
fn join(server: &Sandbox, worker: &Sandbox) -> Result<()> {
    worker.sh(&format!("ip link del uplink && hostname {WORKER}"));
    let mut give = Command::new("nsenter");
    give.args(["--target", &server.pid().to_string(), "--net", "--", "ip", "link", "set"]);
    give.args(["uplink-far", "netns", &worker.pid().to_string()]);
    crate::run(give)?;
    worker.sh(&format!(
        "ip link set uplink-far name uplink && ip link set uplink up \
         && ip address add {WORKER_IP}/24 dev uplink && ip route add default via {NODE_IP}"
    ));
    Ok(())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for mut child in self.children.drain(..).rev() {
            if let Some(process) = only_child(child.id()) {
                let _ = kill(Pid::from_raw(process.cast_signed()), Signal::SIGKILL);
            }
            let _ = child.wait();
        }
    }
}
