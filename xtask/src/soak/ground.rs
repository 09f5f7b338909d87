//! The server under test in its own sandbox: its folder, its control group, its clock, and etcd if it uses
//! that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::http::Access;
use crate::sandbox::{NODE_IP, Process, Sandbox, log_to, only_child};

/// The path of libfaketime in Debian; it changes the wall clock of one process.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
/// A start that takes longer has failed.
const START: Duration = Duration::from_secs(60);
const MEMBERS: usize = 3;

/// What is needed besides a server.
#[derive(Clone, Copy, Default)]
pub struct Needs {
    /// Whether the data folder is on a small file system.
    pub small_disk: bool,
    pub memory_group: bool,
    pub clock: bool,
    pub etcd: bool,
}

pub struct Ground {
    binary: PathBuf,
    pub sandbox: Sandbox,
    needs: Needs,
    server: Option<Child>,
    members: Vec<Option<Process>>,
    pub starts: u64,
}

impl Ground {
    /// Creates the sandbox. From now on this thread, and those that it starts, are in the sandbox's network.
    pub fn new(binary: &Path, needs: Needs) -> Result<Self> {
        if needs.clock && !Path::new(FAKETIME).exists() {
            bail!("the fault `clock` needs {FAKETIME} (Debian: libfaketime)");
        }
        let sandbox = Sandbox::new("soak");
        let network = fs::File::open(format!("/proc/{}/ns/net", sandbox.init))?;
        nix::sched::setns(network, nix::sched::CloneFlags::CLONE_NEWNET)
            .context("cannot enter the sandbox's network: run this as root")?;
        sandbox.sh("mkdir $0/data");
        if needs.small_disk {
            sandbox.sh("mount -t tmpfs -o size=512m,mode=700 tmpfs $0/data");
        }
        let mut ground =
            Self { binary: binary.to_owned(), sandbox, needs, server: None, members: Vec::new(), starts: 0 };
        if needs.memory_group {
            fs::create_dir_all(ground.memory_group()).context("cannot make a control group")?;
        }
        ground.set_clock(0)?;
        if needs.etcd {
            ground.members = (0..MEMBERS).map(|_| None).collect();
            ground.start_members()?;
        }
        Ok(ground)
    }

    /// Starts the server and waits until it reports that it is ready.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_started()
    }

    /// Starts the server without waiting.
    pub fn spawn(&mut self) -> Result<()> {
        self.starts += 1;
        let mut command = self.sandbox.command("sh");
        let group = self.memory_group();
        let enter = if self.needs.memory_group {
            format!("echo 0 >{}/cgroup.procs && ", group.display())
        } else {
            String::new()
        };
        command.args(["-c", &format!("{enter}exec \"$@\""), "sh"]).arg(&self.binary);
        command.args(["server", "--disable-node", "--bind-address", NODE_IP]);
        command.arg("--data-dir").arg(self.sandbox.path("data"));
        if self.needs.etcd {
            let servers: Vec<String> = (0..MEMBERS).map(client_url).collect();
            command.args(["--etcd-servers", &servers.join(",")]);
        }
        if self.needs.clock {
            command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", self.sandbox.path("clock"));
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            command.env("DONT_FAKE_MONOTONIC", "1");
        }
        let _ = fs::remove_file(self.log());
        log_to(&mut command, &self.log());
        self.server = Some(command.spawn().context("nsenter(1) of util-linux")?);
        Ok(())
    }

    pub fn wait_started(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        loop {
            let text = fs::read_to_string(self.log()).unwrap_or_default();
            if text.contains("\nReady in ") {
                return Ok(());
            }
            let server = self.server.as_mut().context("no server was started")?;
            let ended = server.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                bail!("the server did not become ready ({ended:?}):\n{text}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the server with SIGKILL, if it still runs.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        // The shell may not have been started yet.
        let deadline = Instant::now() + START;
        while ended(&mut server)?.is_none() && Instant::now() < deadline {
            if let Some(pid) = only_child(server.id()) {
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Returns whether no server runs.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.server.is_none() || self.ended_by_itself()?.is_some())
    }

    /// Returns how the server ended, if it did and not by [`Self::kill`].
    pub fn ended_by_itself(&mut self) -> Result<Option<ExitStatus>> {
        self.server.as_mut().map_or(Ok(None), ended)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid()?.cast_signed()), signal)?)
    }

    /// Returns the server's process id in this machine.
    pub fn pid(&self) -> Result<u32> {
        let nsenter = self.server.as_ref().context("no server runs")?.id();
        only_child(nsenter).context("the server is gone")
    }

    /// Returns the log of the server since its last start.
    pub fn log(&self) -> PathBuf {
        self.sandbox.path("server.log")
    }

    /// Reads the kubeconfig in the data folder, through the sandbox's mounts.
    pub fn access(&self) -> Result<Access> {
        let data = self.sandbox.path("data/admin.kubeconfig");
        let seen = format!("/proc/{}/root{}", self.sandbox.init, data.display());
        Access::from_kubeconfig(Path::new(&seen))
    }

    /// Sets the server's wall clock to this many seconds from the machine's.
    pub fn set_clock(&self, offset: i64) -> Result<()> {
        let new = self.sandbox.path("clock.new");
        fs::write(&new, format!("{offset:+}\n"))?;
        Ok(fs::rename(new, self.sandbox.path("clock"))?)
    }

    fn memory_group(&self) -> PathBuf {
        let name = format!("{}-soak", self.sandbox.cgroup_root.trim_start_matches('/'));
        let version_1 = Path::new("/sys/fs/cgroup/memory");
        if version_1.is_dir() { version_1.join(name) } else { Path::new("/sys/fs/cgroup").join(name) }
    }

    /// Returns the memory use of the server's control group, in bytes.
    pub fn memory_used(&self) -> Result<u64> {
        let group = self.memory_group();
        let text = fs::read_to_string(group.join("memory.usage_in_bytes"))
            .or_else(|_| fs::read_to_string(group.join("memory.current")))?;
        Ok(text.trim().parse()?)
    }

    /// Limits the server's control group; `None` removes the limit.
    pub fn limit_memory(&self, bytes: Option<u64>) -> Result<()> {
        let group = self.memory_group();
        let version_1 = group.join("memory.limit_in_bytes");
        let (file, none) =
            if version_1.exists() { (version_1, "-1") } else { (group.join("memory.max"), "max") };
        let text = bytes.map_or_else(|| none.to_owned(), |b| b.to_string());
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Starts the members of etcd that do not run.
    pub fn start_members(&mut self) -> Result<()> {
        let cluster: Vec<String> = (0..MEMBERS).map(|i| format!("m{i}={}", peer_url(i))).collect();
        for i in (0..MEMBERS).filter(|i| self.members[*i].is_none()).collect::<Vec<_>>() {
            let mut command = self.sandbox.command("etcd");
            command.args(["--name", &format!("m{i}"), "--initial-cluster", &cluster.join(",")]);
            command.args(["--listen-client-urls", &client_url(i), "--advertise-client-urls", &client_url(i)]);
            command.args(["--listen-peer-urls", &peer_url(i), "--initial-advertise-peer-urls", &peer_url(i)]);
            command.args(["--heartbeat-interval", "50", "--election-timeout", "500"]);
            command.arg("--data-dir").arg(self.sandbox.path(&format!("m{i}")));
            log_to(&mut command, &self.sandbox.path(&format!("m{i}.log")));
            self.members[i] = Some(Process::new(command.spawn().context("etcd(1) of etcd-server")?));
        }
        Ok(())
    }

    /// Kills a member of etcd with `kill -9`.
    pub fn kill_member(&mut self, member: usize) {
        if let Some(mut process) = self.members[member % MEMBERS].take() {
            process.kill();
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Returns how the server's nsenter ended. It stops itself when the server is stopped, and must be
/// continued too.
fn ended(nsenter: &mut Child) -> Result<Option<ExitStatus>> {
    let _ = kill(Pid::from_raw(nsenter.id().cast_signed()), Signal::SIGCONT);
    Ok(nsenter.try_wait()?)
}

fn client_url(member: usize) -> String {
    format!("http://127.0.0.1:{}", 2379 + 10 * member)
}

fn peer_url(member: usize) -> String {
    format!("http://127.0.0.1:{}", 2380 + 10 * member)
}
