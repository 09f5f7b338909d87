//! A server under measurement.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::http::Access;
use crate::sandbox::{Sandbox, log_to, only_child};

pub struct Cluster {
    binary: PathBuf,
    pub sandbox: Sandbox,
    server: Option<Child>,
}

impl Cluster {
    /// Creates an empty sandbox. From now on this thread, and those that it starts, are in the sandbox's
    /// network.
    pub fn new(binary: &Path) -> Result<Self> {
        let sandbox = Sandbox::new("bench");
        let network = std::fs::File::open(format!("/proc/{}/ns/net", sandbox.init))?;
        nix::sched::setns(network, nix::sched::CloneFlags::CLONE_NEWNET)
            .context("cannot enter the sandbox's network: run the benches as root")?;
        Ok(Self { binary: binary.to_owned(), sandbox, server: None })
    }

    /// Starts the server; returns how long it took until it reported that it is ready.
    pub fn start(&mut self, options: &[&str]) -> Result<Duration> {
        let log = self.sandbox.path("server.log");
        let _ = std::fs::remove_file(&log);
        let mut command = self.sandbox.command(&self.binary);
        command.arg("server").arg("--data-dir").arg(self.data_dir()).args(options);
        command.args(["--cgroup-root", &self.sandbox.cgroup_root]);
        log_to(&mut command, &log);
        let begun = Instant::now();
        let mut child = command.spawn().context("nsenter(1) of util-linux")?;
        loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.contains("\nReady in ") {
                break;
            }
            if child.try_wait()?.is_some() || begun.elapsed() > Duration::from_secs(60) {
                bail!("the server did not become ready:\n{text}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = begun.elapsed();
        self.server = Some(child);
        Ok(took)
    }

    /// Stops the server as Ctrl-C does, and waits for its end.
    pub fn stop(&mut self) -> Result<()> {
        let pid = self.pid()?;
        let mut server = self.server.take().context("no server runs")?;
        kill(Pid::from_raw(pid as i32), Signal::SIGINT)?;
        let status = server.wait()?;
        if !status.success() {
            bail!("the server ended with {status}");
        }
        Ok(())
    }

    pub fn data_dir(&self) -> PathBuf {
        self.sandbox.path("data")
    }

    pub fn access(&self) -> Result<Access> {
        Access::from_kubeconfig(&self.data_dir().join("admin.kubeconfig"))
    }

    /// Returns the server's process id in this machine.
    pub fn pid(&self) -> Result<u32> {
        let nsenter = self.server.as_ref().context("no server runs")?.id();
        only_child(nsenter).context("the server is gone")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let (Ok(pid), Some(mut server)) = (self.pid(), self.server.take()) {
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
            let _ = server.wait();
        }
    }
}
