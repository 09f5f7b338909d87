//! A running cluster in a sandbox.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::containerd::{self, Containerd};
use crate::kubectl::{Kubectl, Words};
use crate::requirements;
use crate::sandbox::{Sandbox, log_to, only_child, succeeded, wait_for};

/// Nodes have to run pods on machines with full disks too: the tests do not depend on the free space of their
/// machine.
pub const EVICTION_HARD: [&str; 2] = ["--eviction-hard", "memory.available<100Mi"];

pub struct Cluster {
    pub sandbox: Sandbox,
    server: Option<Child>,
    /// Arguments of each start of the server.
    arguments: Vec<String>,
    pub containerd: Option<Containerd>,
}

/// The program: the one that was built with the tests, or `KNARR_BIN`.
pub fn knarr() -> PathBuf {
    let path =
        std::env::var_os("KNARR_BIN").map_or_else(|| env!("CARGO_BIN_EXE_knarr").into(), PathBuf::from);
    path.canonicalize().unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the cluster that is shared by all tests that do not change the node or the server; each has its
/// own namespace.
pub fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| match std::env::var("KNARR_E2E_RUNTIME").as_deref() {
        Ok("containerd") => Cluster::on_containerd(),
        _ => Cluster::start(),
    })
}

impl Cluster {
    /// Starts a new cluster with a Ready node.
    pub fn start() -> Self {
        let mut cluster = Self::new();
        cluster.start_server();
        cluster
    }

    /// Starts a new cluster whose pods run on containerd.
    pub fn on_containerd() -> Self {
        let mut cluster = Self::new();
        cluster.containerd = Some(Containerd::start(&cluster));
        cluster.arguments = containerd::arguments();
        cluster.start_server();
        cluster
    }

    /// Creates a cluster that is not started yet.
    pub fn new() -> Self {
        let missing = requirements::missing();
        assert!(missing.is_empty(), "the end-to-end tests need:\n  {}", missing.join("\n  "));
        Self { sandbox: Sandbox::new("e2e"), server: None, arguments: Vec::new(), containerd: None }
    }

    /// Starts the server on the sandbox's data folder and waits until its node is Ready.
    pub fn start_server(&mut self) {
        self.start_server_with(&[]);
    }

    /// Starts the server with additional arguments.
    pub fn start_server_with(&mut self, arguments: &[&str]) {
        let log = self.sandbox.path("server.log");
        let _ = std::fs::remove_file(&log);
        let mut command = self.knarr(&["server"]);
        command.args(["--cgroup-root", &self.sandbox.cgroup_root]);
        if !arguments.contains(&EVICTION_HARD[0]) {
            command.args(EVICTION_HARD);
        }
        command.args(&self.arguments);
        command.args(std::env::var("KNARR_E2E_ARGS").unwrap_or_default().split_whitespace());
        command.args(arguments);
        log_to(&mut command, &log);
        let mut child = command.spawn().expect("nsenter(1) of util-linux");
        wait_for("the server's last line", Duration::from_secs(300), || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if let Ok(Some(status)) = child.try_wait() {
                panic!("the server ended with {status}:\n{text}");
            }
            text.contains("\nReady in ").then_some(())
        });
        self.server = Some(child);
    }

    /// Builds the command `knarr COMMAND… --data-dir DIR` inside the sandbox.
    pub fn knarr(&self, words: &[&str]) -> Command {
        let mut command = self.sandbox.command(knarr());
        command.args(words).arg("--data-dir").arg(self.data_dir());
        command
    }

    /// Runs `knarr image …`, which has to succeed.
    pub fn image(&self, words: impl Words) -> String {
        let words = words.words();
        let output = self.try_image(&words);
        succeeded(&format!("knarr image {}", words.join(" ")), &output)
    }

    pub fn try_image(&self, words: &[String]) -> Output {
        let all: Vec<&str> = std::iter::once("image").chain(words.iter().map(String::as_str)).collect();
        self.knarr(&all).output().expect("nsenter(1) of util-linux")
    }

    pub fn data_dir(&self) -> PathBuf {
        self.sandbox.path("data")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.data_dir().join("admin.kubeconfig")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.sandbox.path("server.log")).unwrap_or_default()
    }

    /// Returns the server's process id in the surrounding machine.
    pub fn server_pid(&self) -> u32 {
        only_child(self.server.as_ref().expect("a running server").id()).expect("the server below nsenter")
    }

    /// Kills the server alone with `kill -9`: shims and containers keep running.
    pub fn kill_server(&mut self) {
        self.signal_server(Signal::SIGKILL);
    }

    /// Interrupts the server as Ctrl-C does; returns whether it exited with success.
    pub fn interrupt_server(&mut self) -> bool {
        self.signal_server(Signal::SIGINT)
    }

    /// Pauses the server until [`Self::resume_server`].
    pub fn pause_server(&self) {
        kill(Pid::from_raw(self.server_pid().cast_signed()), Signal::SIGSTOP)
            .expect("a signal to the server");
        // nsenter(1) stops itself when its child is stopped.
        let nsenter = self.server.as_ref().expect("a running server").id();
        wait_for("a stopped nsenter", Duration::from_secs(20), || {
            let stat = std::fs::read_to_string(format!("/proc/{nsenter}/stat")).ok()?;
            stat.rsplit(')').next()?.trim_start().starts_with('T').then_some(())
        });
    }

    pub fn resume_server(&self) {
        let nsenter = self.server.as_ref().expect("a running server").id();
        for pid in [self.server_pid(), nsenter] {
            kill(Pid::from_raw(pid.cast_signed()), Signal::SIGCONT).expect("a signal to the server");
        }
    }

    fn signal_server(&mut self, signal: Signal) -> bool {
        kill(Pid::from_raw(self.server_pid() as i32), signal).expect("a signal to the server");
        let mut child = self.server.take().expect("a running server");
        let status =
            wait_for("the server's end", Duration::from_secs(30), || child.try_wait().expect("a child"));
        status.success()
    }

    /// Returns kubectl with the cluster administrator's access.
    pub fn admin(&self) -> Kubectl<'_> {
        Kubectl::new(self, None, self.kubeconfig())
    }

    /// Creates a namespace and returns kubectl for it; the namespace is deleted when the test ends.
    pub fn namespace(&self, name: &str) -> Kubectl<'_> {
        self.admin().run(["create", "namespace", name]);
        let kubectl = Kubectl::new(self, Some(name.to_owned()), self.kubeconfig());
        kubectl.eventually("get serviceaccount default -o name", |out| out.contains("default"));
        kubectl
    }

    /// Runs a file of `python/` with the administrator's kubeconfig; it has to succeed.
    pub fn python(&self, file: &str, arguments: &[&str]) -> String {
        succeeded(&format!("{file} {}", arguments.join(" ")), &self.try_python(file, arguments))
    }

    pub fn try_python(&self, file: &str, arguments: &[&str]) -> Output {
        self.python_command(file, arguments).output().expect("nsenter(1) of util-linux")
    }

    pub fn python_command(&self, file: &str, arguments: &[&str]) -> Command {
        let mut command = self.sandbox.command("python3");
        command.env("KUBECONFIG", self.kubeconfig()).env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/python")).join(file));
        command.args(arguments);
        command
    }

    /// Sends an HTTP GET from the node itself; `None` without a timely answer.
    pub fn try_http(&self, address: &str) -> Option<String> {
        let (init, address) = (self.sandbox.init, address.to_owned());
        // A new thread enters the sandbox's network, and ends there.
        std::thread::spawn(move || http_get(init, &address).ok())
            .join()
            .expect("a thread that does not panic")
    }

    pub fn http(&self, address: &str) -> String {
        wait_for(&format!("an answer from http://{address}"), Duration::from_secs(20), || {
            self.try_http(address)
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut child) = self.server.take() {
            if let Some(server) = only_child(child.id()) {
                let _ = kill(Pid::from_raw(server as i32), Signal::SIGKILL);
            }
            let _ = child.wait();
        }
        drop(self.containerd.take());
    }
}

/// Sends a GET to `HOST[:PORT][/PATH]` inside the network of the sandbox whose first process is `init`.
fn http_get(init: u32, address: &str) -> std::io::Result<String> {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let network = std::fs::File::open(format!("/proc/{init}/ns/net"))?;
    nix::sched::setns(network, nix::sched::CloneFlags::CLONE_NEWNET)?;
    let (host, path) = address.split_once('/').unwrap_or((address, ""));
    let host = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let socket: SocketAddr = host.parse().expect("an address");
    let mut stream = TcpStream::connect_timeout(&socket, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream
        .write_all(format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    if head.starts_with("HTTP/1.1 200 ") {
        Ok(body.to_owned())
    } else {
        Err(std::io::ErrorKind::Other.into())
    }
}
