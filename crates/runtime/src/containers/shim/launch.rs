//! Clones a process of the shim that becomes a container's first process or one that is exec'd into it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::containers::cgroups::JoinHandles;
use crate::containers::init::{
    self, Failure, JoinedPids, Launch, MAX_REPORT_BYTES, Process, SIBLING_REPORT, Stdio, Surroundings,
    TERMINAL_REPORT, UserNamespace,
};
use crate::containers::oci::{self, Job};
use crate::containers::socket;
use crate::containers::status::TerminalSize;
use crate::containers::sys::{self, Forked};

/// A process that has not yet executed its program.
pub struct Launched {
    pub pid: i32,
    pub pidfd: OwnedFd,
    pub report: Report,
}

/// The near end of the process's report socket, and what it has delivered so far.
pub struct Report {
    socket: OwnedFd,
    failure: Option<Failure>,
    pub terminal: Option<OwnedFd>,
    /// The pid and pidfd of the sibling: the process that continues in place of the launched one.
    pub sibling: Option<(i32, OwnedFd)>,
    /// The pid namespace that the process joins by its path; kept open until it has joined.
    pub joined_pids: Option<OwnedFd>,
    /// Whether the sibling runs in a pid namespace with other processes of the pod. They may be able to trace it
    /// and to forge its reports, so that only reports of a failure are accepted from it.
    joins: bool,
    joined: bool,
}

/// How far a process has come on the way to its program.
pub enum Progress {
    Waiting,
    /// The program runs, or the process died without a report.
    Running,
    Failed(Failure),
}

impl Report {
    fn new(socket: OwnedFd, joins: bool) -> Self {
        Self { socket, failure: None, terminal: None, sibling: None, joined_pids: None, joins, joined: false }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns whether the process is starting among other processes of the pod.
    pub fn has_joined(&self) -> bool {
        self.joined
    }

    /// Reads one message.
    pub fn read(&mut self) -> Progress {
        let (mut buffer, mut fds) = ([0; MAX_REPORT_BYTES], Vec::new());
        match socket::receive(self.socket.as_fd(), &mut buffer, &mut fds) {
            Ok(0) => self.ended(),
            Ok(_) if self.joined && matches!(buffer[0], TERMINAL_REPORT | SIBLING_REPORT) => {
                Progress::Waiting
            }
            Ok(1) if buffer[0] == TERMINAL_REPORT => {
                self.terminal = fds.pop();
                Progress::Waiting
            }
            Ok(5) if buffer[0] == SIBLING_REPORT => {
                let pid = i32::from_le_bytes([buffer[1], buffer[2], buffer[3], buffer[4]]);
                self.joined = self.joins;
                self.sibling = fds.pop().map(|pidfd| (pid, pidfd));
                Progress::Waiting
            }
            Ok(count) => {
                self.failure = Some(serde_json::from_slice(&buffer[..count]).unwrap_or_else(|_| Failure {
                    message: "the process failed with an unreadable report".to_owned(),
                    exit_code: 128,
                }));
                Progress::Waiting
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Progress::Waiting,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Progress::Waiting,
            Err(_) => self.ended(),
        }
    }

    /// Returns the outcome after the last message: the process has executed its program, or has ended.
    pub fn ended(&mut self) -> Progress {
        self.failure.take().map_or(Progress::Running, Progress::Failed)
    }
}

/// The differences between a container's first process and an exec'd one.
pub struct Target<'a> {
    pub surroundings: Surroundings<'a>,
    pub joined: Option<JoinedPids<'a>>,
    pub flags: u64,
    pub user_namespace: Option<UserNamespace<'a>>,
}

/// Clones a process that lets an OCI runtime start a container or a command.
pub fn launch_by_runtime(job: &Job, stdio: Stdio) -> Result<Launched, String> {
    let fail = |what: &str, error: io::Error| format!("{what}: {}", sys::errno_text(&error));
    let (near, far) = socket::packet_pair().map_err(|error| fail("socketpair", error))?;
    sys::set_nonblocking(near.as_fd()).map_err(|error| fail("socketpair", error))?;
    // SAFETY: the shim has one thread.
    match unsafe { sys::clone3(0, None) }.map_err(|error| fail("clone", error))? {
        Forked::Child => oci::run(job, &stdio, far),
        Forked::Parent { pid, pidfd } => Ok(Launched { pid, pidfd, report: Report::new(near, false) }),
    }
}

/// Clones a process of the shim that sets itself up and executes the program.
pub fn launch(
    target: Target<'_>,
    process: &Process,
    stdio: Stdio,
    terminal: Option<Option<TerminalSize>>,
    join: JoinHandles,
) -> Result<Launched, String> {
    let fail = |what: &str, error: io::Error| format!("{what}: {}", sys::errno_text(&error));
    let (near, far) = socket::packet_pair().map_err(|error| fail("socketpair", error))?;
    sys::set_nonblocking(near.as_fd()).map_err(|error| fail("socketpair", error))?;
    let joins = target.joined.is_some();
    // SAFETY: the shim has one thread.
    let forked = unsafe { sys::clone3(target.flags, join.unified.as_ref().map(AsFd::as_fd)) };
    if matches!(forked, Ok(Forked::Child)) {
        drop(near);
        let Target { surroundings, joined, user_namespace, .. } = target;
        let launch =
            Launch { surroundings, process, stdio, terminal, join, report: far, joined, user_namespace };
        init::run(launch);
    }
    match forked {
        Ok(Forked::Parent { pid, pidfd }) => Ok(Launched { pid, pidfd, report: Report::new(near, joins) }),
        Ok(Forked::Child) => Err("unreachable".to_owned()),
        Err(error) => Err(fail("clone", error)),
    }
}
