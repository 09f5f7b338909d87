//! One process exec'd into a container.

use std::os::fd::{AsFd, OwnedFd};

use super::container::Container;
use super::launch::{Launched, Report, Target, launch};
use super::serve::Caller;
use crate::containers::cgroups::Cgroups;
use crate::containers::init::{Process, Stdio, Surroundings};
use crate::containers::protocol::ExecSpec;
use crate::containers::sys;

pub struct Exec {
    pub id: String,
    pub pid: i32,
    pub pidfd: OwnedFd,
    /// While starting.
    pub report: Option<Report>,
    pub waiting: Option<Caller>,
}

impl Exec {
    /// Clones the process into the container's namespaces and cgroup.
    pub fn start(
        spec: ExecSpec,
        fds: Vec<OwnedFd>,
        container: &Container,
        hostname: &str,
        cgroups: &Cgroups,
        own_pid_ns: &OwnedFd,
    ) -> Result<Self, String> {
        let init = container.pidfd.as_ref().ok_or("the container is not running")?;
        let mut process = Process::of(&container.spec, hostname)?;
        process.args = spec.args;
        process.tty = spec.tty;
        let mut fds = fds.into_iter();
        let mut take = |wanted: bool| if wanted { fds.next() } else { None };
        let stdio = Stdio {
            stdin: take(spec.streams.stdin),
            stdout: take(spec.streams.stdout),
            stderr: take(spec.streams.stderr),
        };
        let target = Target {
            surroundings: Surroundings::Join { init: init.as_fd() },
            pid_ns_of: Some(init.as_fd()),
            flags: 0,
        };
        let join = cgroups.join_handles(&container.cgroup).map_err(super::chain)?;
        let terminal = spec.tty.then_some(spec.size);
        let launched = launch(target, &process, stdio, terminal, join, own_pid_ns.as_fd())?;
        let Launched { pid, pidfd, report } = launched;
        Ok(Self { id: spec.exec_id, pid, pidfd, report: Some(report), waiting: None })
    }

    /// To the process and, as it leads a session of its own, to the group it leads.
    pub fn signal(&self, signal: i32) {
        let _ = sys::pidfd_send_signal(self.pidfd.as_fd(), signal);
        let _ = sys::kill(-self.pid, signal);
    }
}
