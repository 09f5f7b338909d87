//! One process that is exec'd into a container.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use jiff::Timestamp;

use super::container::Container;
use super::launch::{Launched, Report, Target, launch, launch_by_runtime};
use super::serve::Caller;
use super::user_namespace::UserNamespace;
use crate::containers::cgroups::Cgroups;
use crate::containers::init::{self, JoinedPids, Process, Stdio, Surroundings};
use crate::containers::oci::{self, Job, OciRuntime, Task};
use crate::containers::protocol::ExecSpec;
use crate::containers::spec::ContainerSpec;
use crate::containers::state::{self, SandboxFolder};
use crate::containers::status::TerminalSize;
use crate::containers::sys;

/// A command that runs in a container.
pub struct Exec {
    pub id: String,
    pub pid: i32,
    pub pidfd: OwnedFd,
    /// The near end of the report socket, while the process is starting.
    pub report: Option<Report>,
    /// The container it runs in.
    pub container_id: String,
    /// Whether it was started while no container could trace it, and so has more rights than its program.
    pub unguarded: bool,
    pub waiting: Option<Caller>,
    /// The file with the `process` for an OCI runtime, if one is used; removed when the command ends.
    pub process_file: Option<PathBuf>,
}

/// What a command takes from its sandbox.
pub struct Surrounding<'a> {
    pub hostname: &'a str,
    pub cgroups: &'a Cgroups,
    /// Whether a container that shares the container's processes may trace others.
    pub traced: bool,
    pub user_namespace: Option<&'a UserNamespace>,
    pub folder: &'a SandboxFolder,
}

struct Where<'a> {
    runtime: &'a OciRuntime,
    folder: &'a SandboxFolder,
    hostname: &'a str,
}

/// `command` is the container's spec with the command's arguments.
fn start_by_runtime(
    at: &Where<'_>,
    command: &ContainerSpec,
    size: Option<TerminalSize>,
    stdio: Stdio,
) -> Result<(Launched, PathBuf), String> {
    let bundle = at.folder.container(&command.id);
    // The shim has one thread, so two files cannot get the same name.
    let file = bundle.join(format!("exec-{}.json", Timestamp::now().as_nanosecond()));
    state::write_json(&file, &oci::process(command, at.hostname))
        .map_err(|error| format!("write the bundle: {}", sys::errno_text(&error)))?;
    let (runtime, id) = (at.runtime.clone(), command.id.clone());
    let terminal = command.tty.then_some(size);
    let job = Job { runtime, bundle, id, task: Task::Exec(file.clone()), terminal };
    launch_by_runtime(&job, stdio).map(|launched| (launched, file))
}

impl Exec {
    /// Clones the process into the container's namespaces and cgroup.
    pub fn start(
        spec: ExecSpec,
        fds: Vec<OwnedFd>,
        container: &Container,
        around: &Surrounding<'_>,
    ) -> Result<Self, String> {
        let init = container.pidfd.as_ref().ok_or("the container is not running")?;
        let mut process = Process::of(&container.spec, around.hostname)?;
        process.args = spec.args;
        process.tty = spec.tty;
        let mut fds = fds.into_iter();
        let mut take = |wanted: bool| if wanted { fds.next() } else { None };
        let stdio = Stdio {
            stdin: take(spec.streams.stdin),
            stdout: take(spec.streams.stdout),
            stderr: take(spec.streams.stderr),
        };
        if let Some(oci) = &container.oci {
            let command = ContainerSpec { args: process.args, tty: process.tty, ..container.spec.clone() };
            let at = Where { runtime: oci, folder: around.folder, hostname: around.hostname };
            let (launched, file) = start_by_runtime(&at, &command, spec.size, stdio)?;
            let exec = Self::launched(spec.exec_id, spec.container_id, launched, false);
            return Ok(Self { process_file: Some(file), ..exec });
        }
        let target = Target {
            surroundings: Surroundings::Join { init: init.as_fd() },
            joined: Some(JoinedPids { pidfd: init.as_fd(), traced: around.traced }),
            flags: 0,
            user_namespace: around.user_namespace.map(|namespace| init::UserNamespace {
                fd: namespace.fd(),
                ids: namespace.ids,
                new_pid_namespace: false,
            }),
        };
        let join = around.cgroups.join_handles(&container.cgroup).map_err(super::chain)?;
        let terminal = spec.tty.then_some(spec.size);
        let launched = launch(target, &process, stdio, terminal, join)?;
        Ok(Self::launched(spec.exec_id, spec.container_id, launched, !around.traced))
    }

    fn launched(id: String, container_id: String, launched: Launched, unguarded: bool) -> Self {
        let Launched { pid, pidfd, report } = launched;
        Self {
            id,
            pid,
            pidfd,
            report: Some(report),
            container_id,
            unguarded,
            waiting: None,
            process_file: None,
        }
    }

    /// Replaces the launched process by the one that continues in its place.
    pub fn goes_on_as(&mut self, (pid, pidfd): (i32, OwnedFd)) {
        self.pid = pid;
        self.pidfd = pidfd;
    }

    /// Returns whether an OCI runtime is starting the command.
    pub fn is_on_its_way_by_runtime(&self) -> bool {
        self.report.is_some() && self.process_file.is_some()
    }

    /// Sends a signal to the process and to the group that it leads, because it leads a session or a group of
    /// its own.
    pub fn signal(&self, signal: i32) {
        let _ = sys::pidfd_send_signal(self.pidfd.as_fd(), signal);
        let _ = sys::kill(-self.pid, signal);
    }
}
