//! One container in the shim: from its spec to its recorded exit code.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use jiff::Timestamp;

use super::launch::{Launched, Report, Target, launch, launch_by_runtime};
use super::output::Output;
use super::pause::Pause;
use super::serve::Caller;
use super::user_namespace::UserNamespace;
use crate::containers::capabilities;
use crate::containers::cgroups::{Cgroups, DeviceRule, OomWatch};
use crate::containers::init::{
    self, JoinedPids, Process, Procfs, RootfsPlan, Shared, Stdio, Surroundings, clone_flags, host_devices,
};
use crate::containers::log::{LogFile, Stream};
use crate::containers::oci::{self, Job, OciRuntime, Task};
use crate::containers::spec::{ContainerSpec, PidMode, ResolvedDevice, SandboxConfig};
use crate::containers::state::{self, SandboxFolder};
use crate::containers::status::{ContainerState, ContainerStatus};
use crate::containers::sys;

/// A container of the shim.
pub struct Container {
    pub spec: ContainerSpec,
    pub status: ContainerStatus,
    pub cgroup: String,
    /// The pid of the first process, from its clone until it is reaped.
    pub pid: i32,
    pub pidfd: Option<OwnedFd>,
    /// The report socket, while the process is starting.
    pub report: Option<Report>,
    /// Whether it was started while no other container could trace it, and so has more rights than its program.
    pub unguarded: bool,
    pub waiting: Option<Caller>,
    /// Why the program could not be started, until the process that reported it is reaped.
    pub failure: Option<String>,
    pub output: Output,
    /// The OCI runtime that runs the container, if one does; set from the start on.
    pub oci: Option<OciRuntime>,
    pub oom: Option<OomWatch>,
    /// The number of out-of-memory kills that were reported to the server.
    pub oom_kills: u64,
    /// How many times to check for further kills.
    pub oom_looks: u32,
}

/// What starting a container takes from its sandbox.
pub struct Surrounding<'a> {
    pub cgroups: &'a Cgroups,
    pub shm: &'a Path,
    pub hostname: &'a str,
    pub pause: Option<&'a Pause>,
    /// The first process of the target container, with [`PidMode::Target`].
    pub target: Option<BorrowedFd<'a>>,
    pub procfs: &'a Path,
    /// Whether a container that shares this one's processes may trace others.
    pub traced: bool,
    pub user_namespace: Option<&'a UserNamespace>,
    pub oci: Option<&'a OciRuntime>,
    pub folder: &'a SandboxFolder,
    pub config: &'a SandboxConfig,
}

impl Container {
    /// Writes the container's folder; does not start a process.
    pub fn create(folder: &SandboxFolder, parent: &str, spec: ContainerSpec) -> Result<Self, String> {
        let fail = |error: std::io::Error| format!("state folder: {}", sys::errno_text(&error));
        state::make_private_folder(&folder.container(&spec.id)).map_err(fail)?;
        state::write_json(&folder.spec(&spec.id), &spec).map_err(fail)?;
        let status = ContainerStatus::created(&spec.id, Timestamp::now());
        state::write_json(&folder.status(&spec.id), &status).map_err(fail)?;
        let cgroup = format!("{parent}/{}", spec.id);
        Ok(Self {
            spec,
            status,
            cgroup,
            pid: 0,
            pidfd: None,
            report: None,
            unguarded: false,
            waiting: None,
            failure: None,
            output: Output::default(),
            oci: None,
            oom: None,
            oom_kills: 0,
            oom_looks: 0,
        })
    }

    /// Returns whether the container may trace processes of the sandbox that it sees.
    pub fn traces(&self) -> bool {
        capabilities::holds(capabilities::sets_of(&self.spec).permitted, "SYS_PTRACE")
    }

    /// Returns whether the container was created and is not being started.
    pub fn is_startable(&self) -> bool {
        self.status.state == ContainerState::Created && self.pid == 0
    }

    /// Returns whether the first process is running or being started.
    pub fn is_alive(&self) -> bool {
        self.pid != 0
    }

    /// Writes the status to the container's folder; logs a failure.
    pub fn save(&self, folder: &SandboxFolder) {
        if let Err(error) = state::write_json(&folder.status(&self.spec.id), &self.status) {
            super::note(format_args!("write status of {}: {error}", self.spec.id));
        }
    }

    /// Clones the first process. Whether its program runs is known when its report socket closes.
    pub fn start(&mut self, around: &Surrounding<'_>) -> Result<(), String> {
        let spec = &self.spec;
        let process = Process::of(spec, around.hostname)?;
        let devices = host_devices(spec)?;
        self.make_cgroup(around.cgroups, devices.iter().map(|device| device.rule()).collect())?;
        let join = around.cgroups.join_handles(&self.cgroup).map_err(super::chain)?;
        self.oom = around.cgroups.oom_watch(&self.cgroup);
        let log = match &spec.log_path {
            Some(path) => Some(
                LogFile::open(path)
                    .map_err(|error| format!("open log {path:?}: {}", sys::errno_text(&error)))?,
            ),
            None => None,
        };
        let mut output = Output::new(log, spec.stdin_once);
        let stdio = if spec.tty { Stdio::default() } else { open_streams(spec, &mut output)? };
        if let Some(oci) = around.oci {
            let launched = self.start_by_runtime(oci, around, devices, stdio)?;
            self.launched(launched, output);
            return Ok(());
        }
        let (joined, procfs) = match (&spec.pid_mode, around.pause) {
            (PidMode::Pod, Some(pause)) => {
                let joined = JoinedPids { pidfd: pause.pidfd.as_fd(), traced: around.traced };
                (Some(joined), Procfs::Mounted(around.procfs.to_owned()))
            }
            (PidMode::Pod, None) => return Err("the sandbox has no shared pid namespace".to_owned()),
            (PidMode::Target(id), _) => {
                let pidfd = around.target.ok_or_else(|| format!("target container {id:?} is not running"))?;
                (Some(JoinedPids { pidfd, traced: around.traced }), Procfs::OfJoined)
            }
            (PidMode::Container | PidMode::Host, _) => (None, Procfs::Own),
        };
        self.unguarded = joined.is_some() && !around.traced;
        let shared = Shared { shm: around.shm, procfs };
        let plan = RootfsPlan::of(spec, shared, devices, around.cgroups.v1_hierarchies());
        let user_namespace = around.user_namespace.map(|namespace| init::UserNamespace {
            fd: namespace.fd(),
            ids: namespace.ids,
            new_pid_namespace: spec.pid_mode == PidMode::Container,
        });
        if user_namespace.is_some() && spec.pid_mode == PidMode::Host {
            return Err("a user namespace cannot be combined with the host's processes".to_owned());
        }
        let flags = clone_flags(&spec.pid_mode, user_namespace.is_some());
        let surroundings = Surroundings::New(&plan);
        let target = Target { surroundings, joined, flags, user_namespace };
        let terminal = spec.tty.then_some(None);
        let launched = launch(target, &process, stdio, terminal, join)?;
        self.launched(launched, output);
        Ok(())
    }

    fn launched(&mut self, launched: Launched, output: Output) {
        let Launched { pid, pidfd, report } = launched;
        self.pid = pid;
        self.pidfd = Some(pidfd);
        self.report = Some(report);
        self.output = output;
    }

    /// Writes the bundle and lets the runtime start the container.
    fn start_by_runtime(
        &mut self,
        runtime: &OciRuntime,
        around: &Surrounding<'_>,
        devices: Vec<ResolvedDevice>,
        stdio: Stdio,
    ) -> Result<Launched, String> {
        if self.traces() && !self.spec.privileged {
            // Runtimes hold all capabilities for a moment in which the container's processes can see them.
            return Err(
                "SYS_PTRACE is refused to containers of OCI runtimes: the container could take over the \
                        runtime's own process"
                    .to_owned(),
            );
        }
        let mut rules = DeviceRule::defaults();
        rules.extend(devices.iter().map(|device| device.rule()));
        let plan = RootfsPlan::of(
            &self.spec,
            Shared { shm: around.shm, procfs: Procfs::Own },
            devices,
            around.cgroups.v1_hierarchies(),
        );
        let joined = match self.spec.pid_mode {
            PidMode::Target(_) => around.target,
            PidMode::Pod => around.pause.map(|pause| pause.pidfd.as_fd()),
            PidMode::Container | PidMode::Host => None,
        };
        let joined = joined.map(sys::pid_namespace_of).transpose();
        let joined =
            joined.map_err(|error| format!("open the pid namespace to join: {}", sys::errno_text(&error)))?;
        let shim_pid = std::process::id();
        let sandbox = oci::Around {
            netns: (!around.config.host_network).then(|| around.folder.netns()),
            shim_pid,
            host_ipc: around.config.host_ipc,
            joined_pids: joined.as_ref().map(|fd| format!("/proc/{shim_pid}/fd/{}", fd.as_raw_fd()).into()),
            hostname: around.hostname,
            // A relative path would be resolved below the shim's own cgroup.
            cgroup: format!("/{}", around.cgroups.full_path(&self.cgroup)),
            device_rules: &rules,
        };
        let config = oci::config(&self.spec, &plan, &sandbox)?;
        let bundle = around.folder.container(&self.spec.id);
        let fail = |error: std::io::Error| format!("write the bundle: {}", sys::errno_text(&error));
        state::make_private_folder(&runtime.root).map_err(fail)?;
        state::write_json(&bundle.join("config.json"), &config).map_err(fail)?;
        self.oci = Some(runtime.clone());
        let terminal = self.spec.tty.then_some(None);
        let job =
            Job { runtime: runtime.clone(), bundle, id: self.spec.id.clone(), task: Task::Start, terminal };
        let mut launched = launch_by_runtime(&job, stdio)?;
        // The runtime opens the namespace through the shim's descriptor, which must stay open.
        launched.report.joined_pids = joined;
        Ok(launched)
    }

    fn make_cgroup(&self, cgroups: &Cgroups, given: Vec<DeviceRule>) -> Result<(), String> {
        cgroups.create(&self.cgroup, &self.spec.resources).map_err(super::chain)?;
        if !self.spec.privileged {
            let mut rules = DeviceRule::defaults();
            rules.extend(given);
            cgroups.restrict_devices(&self.cgroup, &rules).map_err(super::chain)?;
        }
        Ok(())
    }

    /// Replaces the launched process by the one that continues in its place.
    pub fn goes_on_as(&mut self, (pid, pidfd): (i32, OwnedFd)) {
        self.pid = pid;
        self.pidfd = Some(pidfd);
    }

    /// Records that the program runs.
    pub fn started(&mut self, terminal: Option<OwnedFd>) {
        if let Some(master) = terminal
            && let Err(error) = self.output.set_terminal(master, self.spec.stdin)
        {
            super::note(format_args!("terminal of {}: {error}", self.spec.id));
        }
        self.status.running(self.pid, Timestamp::now());
    }

    /// Sends a signal to the first process.
    pub fn signal(&self, signal: i32) -> Result<(), String> {
        if let Some(oci) = self.oci.as_ref().filter(|_| self.pid != 0 && signal != libc::SIGKILL) {
            return oci::signal(oci, &self.spec.id, signal);
        }
        if self.oci.is_some() && self.report.is_some() && self.pid != 0 {
            // Also reaches the runtime's command, which is in the group of the process that called it.
            let _ = sys::kill(-self.pid, signal);
        }
        match &self.pidfd {
            Some(pidfd) => sys::pidfd_send_signal(pidfd.as_fd(), signal)
                .map_err(|error| format!("kill: {}", sys::errno_text(&error))),
            None => Err(format!("container {:?} is not running", self.spec.id)),
        }
    }

    /// Sends SIGKILL to every process that the container has started, even if its first process has ended.
    pub fn kill_all(&self, cgroups: &Cgroups) {
        let _ = self.signal(libc::SIGKILL);
        cgroups.kill_all(&self.cgroup);
    }

    /// Called after the first process was reaped: kills the remaining processes, completes the log and removes
    /// the cgroup.
    pub fn exited(&mut self, wait_status: i32, cgroups: &Cgroups, buffer: &mut [u8]) {
        let oom_killed = cgroups.oom_kills(&self.cgroup) > 0;
        self.release();
        if self.spec.pid_mode != PidMode::Container || self.oci.is_some() {
            // In a pid namespace that lives on, no other code kills the children that the first process left.
            cgroups.kill_all(&self.cgroup);
        }
        self.output.finish(buffer);
        cgroups.try_remove(&self.cgroup);
        let (exit_code, signal) = sys::decode_wait_status(wait_status);
        self.status.exited(exit_code, signal, oom_killed, Timestamp::now());
    }

    /// Records a failed start, kills what was started and removes the cgroup.
    pub fn start_failed(&mut self, message: &str, cgroups: &Cgroups) {
        if self.oci.is_some() {
            // Kill what the runtime started before it failed.
            cgroups.kill_all(&self.cgroup);
        }
        self.release();
        self.output = Output::default();
        cgroups.try_remove(&self.cgroup);
        let message = format!("unable to start container process: {message}");
        self.status.start_failed(&message, Timestamp::now());
    }

    fn release(&mut self) {
        if let Some(oci) = &self.oci {
            oci::delete(oci, &self.spec.id);
        }
        self.pid = 0;
        self.pidfd = None;
        self.report = None;
        self.oom = None;
        self.oom_looks = 0;
    }

    pub fn remove_folder(&self, folder: &SandboxFolder) {
        let _ = crate::remove_folder(&folder.container(&self.spec.id));
    }
}

fn open_streams(spec: &ContainerSpec, output: &mut Output) -> Result<Stdio, String> {
    let mut open = || -> std::io::Result<Stdio> {
        let mut stdio = Stdio::default();
        let (out, stdout) = sys::pipe()?;
        let (err, stderr) = sys::pipe()?;
        output.add_source(out, Stream::Stdout)?;
        output.add_source(err, Stream::Stderr)?;
        stdio.stdout = Some(stdout);
        stdio.stderr = Some(stderr);
        if spec.stdin {
            let (stdin, input) = sys::pipe()?;
            output.set_stdin(input)?;
            stdio.stdin = Some(stdin);
        }
        Ok(stdio)
    };
    open().map_err(|error| format!("open standard streams: {}", sys::errno_text(&error)))
}
