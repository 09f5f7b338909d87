//! A running cluster in a sandbox, and kubectl against it.

use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::Duration;

use crate::sandbox::{Sandbox, log_to, only_child, succeeded, wait_for};

pub struct Cluster {
    pub sandbox: Sandbox,
    server: Option<Child>,
}

/// The release binary: the one that users run.
pub fn knarr() -> PathBuf {
    let path = std::env::var_os("KNARR_BIN").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/release/knarr")),
        PathBuf::from,
    );
    assert!(path.exists(), "{} is missing: `cargo xtask test` builds it first", path.display());
    path.canonicalize().expect("path of the release binary")
}

impl Cluster {
    /// A new cluster with a Ready node.
    pub fn start() -> Self {
        let mut cluster = Self { sandbox: Sandbox::new(), server: None };
        cluster.start_server();
        cluster
    }

    /// Starts the server on the sandbox's data folder and waits until its node is Ready.
    pub fn start_server(&mut self) {
        let mut command = self.sandbox.command(knarr());
        command.arg("server").arg("--data-dir").arg(self.data_dir());
        command.args(["--cgroup-root", &self.sandbox.cgroup_root]);
        let log = self.sandbox.path("server.log");
        let _ = std::fs::remove_file(&log);
        log_to(&mut command, &log);
        let mut child = command.spawn().expect("nsenter(1) of util-linux");
        wait_for("the server's last line", Duration::from_secs(60), || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if let Ok(Some(status)) = child.try_wait() {
                panic!("the server ended with {status}:\n{text}");
            }
            text.contains("\nReady in ").then_some(())
        });
        self.server = Some(child);
    }

    pub fn data_dir(&self) -> PathBuf {
        self.sandbox.path("data")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.sandbox.path("server.log")).unwrap_or_default()
    }

    fn server_pid(&self) -> i32 {
        let nsenter = self.server.as_ref().expect("a running server").id();
        only_child(nsenter).expect("the server below nsenter") as i32
    }

    /// `kill -9` of the server alone: shims and containers go on.
    pub fn kill_server(&mut self) {
        self.signal_server(nix::sys::signal::Signal::SIGKILL);
    }

    /// Ctrl-C; returns whether the server ended well.
    pub fn interrupt_server(&mut self) -> bool {
        self.signal_server(nix::sys::signal::Signal::SIGINT)
    }

    fn signal_server(&mut self, signal: nix::sys::signal::Signal) -> bool {
        let pid = nix::unistd::Pid::from_raw(self.server_pid());
        nix::sys::signal::kill(pid, signal).expect("a signal to the server");
        let mut child = self.server.take().expect("a running server");
        child.wait().expect("the server's end").success()
    }

    pub fn kubectl_command(&self, words: &[&str]) -> Command {
        let mut command = self.sandbox.command("kubectl");
        command.arg("--kubeconfig").arg(self.data_dir().join("admin.kubeconfig"));
        command.arg("--cache-dir").arg(self.sandbox.path("kubectl-cache"));
        command.args(words);
        command
    }

    /// kubectl whatever its end.
    pub fn try_kubectl(&self, words: &[&str]) -> Output {
        self.kubectl_command(words).output().expect("nsenter(1) of util-linux")
    }

    /// kubectl that has to succeed; returns its standard output.
    pub fn kubectl(&self, words: &[&str]) -> String {
        succeeded(&format!("kubectl {}", words.join(" ")), &self.try_kubectl(words))
    }

    /// kubectl that has to fail; returns its standard error.
    pub fn kubectl_fails(&self, words: &[&str]) -> String {
        let output = self.try_kubectl(words);
        assert!(!output.status.success(), "kubectl {} succeeded", words.join(" "));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Applies a manifest given as text.
    pub fn apply(&self, manifest: &str) -> String {
        let path = self.sandbox.path("manifest.yaml");
        std::fs::write(&path, manifest).expect("manifest file");
        self.kubectl(&["apply", "-f", path.to_str().expect("UTF-8 path")])
    }

    /// Asks kubectl until the output satisfies `good`; returns it.
    pub fn eventually(&self, words: &[&str], good: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let deadline = std::time::Instant::now() + Duration::from_secs(90);
        while std::time::Instant::now() < deadline {
            let output = self.try_kubectl(words);
            last = String::from_utf8_lossy(&output.stdout).into_owned();
            if good(&last) {
                return last;
            }
            last.push_str(&String::from_utf8_lossy(&output.stderr));
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("kubectl {}: never as expected; last:\n{last}\n{}", words.join(" "), self.report());
    }

    /// What helps to understand a failure.
    pub fn report(&self) -> String {
        let show = |words: &[&str]| String::from_utf8_lossy(&self.try_kubectl(words).stdout).into_owned();
        format!(
            "--- pods\n{}\n--- events\n{}\n--- server log\n{}",
            show(&["get", "pods", "-A", "-o", "wide"]),
            show(&["get", "events", "-A"]),
            self.log()
        )
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.report());
        }
        if let Some(mut child) = self.server.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
