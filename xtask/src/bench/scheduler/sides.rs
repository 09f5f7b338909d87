//! The combinations of scheduler and API server: Knarr's, upstream's scheduler on Knarr's API server, or both
//! upstream's.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::apiserver::Upstream;
use super::super::cluster::Cluster;
use super::super::process;
use crate::http::Access;
use crate::sandbox::{log_to, only_child};

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Knarr, API server and scheduler in one process
    Knarr,
    /// kube-scheduler on Knarr's API server
    KubeScheduler,
    /// kube-scheduler on kube-apiserver and etcd
    Kubernetes,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Self::Knarr => "knarr",
            Self::KubeScheduler => "kube-scheduler on knarr",
            Self::Kubernetes => "kubernetes",
        }
    }
}

/// Upstream's suite disables these plugins too, because no controller creates service accounts or priority
/// classes.
const ADMISSION: [&str; 2] = ["--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition,Priority"];

/// The control plane of one side, in its own sandbox.
pub struct ControlPlane<'a> {
    side: Side,
    folder: Option<&'a Path>,
    access: Access,
    scheduler: Option<Child>,
    upstream: Option<Upstream>,
    cluster: Cluster,
}

impl<'a> ControlPlane<'a> {
    pub fn start(side: Side, binary: &Path, folder: Option<&'a Path>) -> Result<Self> {
        let mut cluster = Cluster::new(binary)?;
        let mut options = vec!["--disable-node", "--disable-controller-manager"];
        options.extend(ADMISSION);
        if side != Side::Knarr {
            options.push("--disable-scheduler");
        }
        cluster.start(&options)?;
        let access = cluster.access()?;
        let mut own = Self { side, folder, access, scheduler: None, upstream: None, cluster };
        if side == Side::Kubernetes {
            // Only its certificates are needed, not its API server.
            own.cluster.stop()?;
            own.upstream = Some(Upstream::start(&own.cluster, own.folder()?, &own.access, &ADMISSION)?);
        }
        if side != Side::Knarr {
            own.start_scheduler()?;
        }
        Ok(own)
    }

    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Stops scheduling; the API server keeps running.
    pub fn stop_scheduler(&mut self) -> Result<()> {
        if self.side == Side::Knarr {
            return self.restart(&["--disable-scheduler"]);
        }
        if let Some(mut scheduler) = self.scheduler.take() {
            end(&mut scheduler);
        }
        Ok(())
    }

    /// Resumes scheduling; returns whether the API server is a new process.
    pub fn resume_scheduler(&mut self) -> Result<bool> {
        if self.side == Side::Knarr {
            self.restart(&[])?;
            return Ok(true);
        }
        self.start_scheduler()?;
        Ok(false)
    }

    fn restart(&mut self, more: &[&str]) -> Result<()> {
        self.cluster.stop()?;
        let mut options = vec!["--disable-node", "--disable-controller-manager"];
        options.extend(ADMISSION);
        options.extend(more);
        self.cluster.start(&options)?;
        Ok(())
    }

    fn folder(&self) -> Result<&'a Path> {
        self.folder.context("--upstream names the folder with kube-scheduler, kube-apiserver and etcd")
    }

    fn start_scheduler(&mut self) -> Result<()> {
        let configuration = self.cluster.sandbox.path("scheduler.json");
        let kubeconfig = self.cluster.data_dir().join("admin.kubeconfig");
        // The limits of upstream's suite.
        let settings = serde_json::json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 5000, "burst": 5000},
            "leaderElection": {"leaderElect": false},
        });
        std::fs::write(&configuration, settings.to_string())?;
        let mut command = self.cluster.sandbox.command(self.folder()?.join("kube-scheduler"));
        command.arg("--config").arg(&configuration).args(["--bind-address", "127.0.0.1"]);
        let log = self.cluster.sandbox.path("scheduler.log");
        log_to(&mut command, &log);
        let mut child = command.spawn().context("kube-scheduler")?;
        let begun = Instant::now();
        // The scheduler logs this when it begins.
        while !std::fs::read_to_string(&log).unwrap_or_default().contains("Serving securely on") {
            if child.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(120) {
                bail!("kube-scheduler did not start:\n{}", std::fs::read_to_string(&log).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.scheduler = Some(child);
        Ok(())
    }

    /// Returns the CPU time that scheduler and API server have used so far, and their memory in MB; without
    /// etcd.
    pub fn used(&self) -> Result<(Duration, f64)> {
        let server = match &self.upstream {
            Some(upstream) => upstream.server()?,
            None => self.cluster.pid()?,
        };
        let scheduler = self.scheduler.as_ref().and_then(|child| only_child(child.id()));
        let (mut time, mut memory) = (Duration::ZERO, 0.0);
        for pid in [Some(server), scheduler].into_iter().flatten() {
            time += process::cpu_time(pid)?;
            memory += process::memory(pid)?.rss;
        }
        Ok((time, memory))
    }
}

impl Drop for ControlPlane<'_> {
    fn drop(&mut self) {
        if let Some(mut scheduler) = self.scheduler.take() {
            end(&mut scheduler);
        }
    }
}

fn end(child: &mut Child) {
    if let Some(pid) = only_child(child.id()) {
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
    let _ = child.wait();
}
