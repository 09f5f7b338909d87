//! What runs in a freshly cloned process between the shim and the container's program.
//!
//! The process is a copy of the single-threaded shim, so it may allocate. It reports over a
//! SOCK_SEQPACKET socket: the terminal's master descriptor if there is one, a [`Failure`] if it cannot
//! go on; the socket closes by itself when the program takes over.

mod process;
mod rootfs;
mod terminal;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::cgroups::JoinHandles;
use super::socket;
use super::status::TerminalSize;
use super::sys::{self, errno_text};
pub use process::Process;
pub use rootfs::{MASKED, READ_ONLY, RootfsPlan, clone_flags, host_devices};
pub use terminal::TERMINAL_REPORT;

/// Why a process could not start; worded as runc words it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub message: String,
    pub exit_code: i32,
}

impl Failure {
    /// A step of the set-up that failed, as `what: errno`.
    fn step(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Failure {
        move |error| Failure { message: format!("{what}: {}", errno_text(&error)), exit_code: 128 }
    }
}

/// Standard streams of a process without a terminal; `None` is /dev/null.
#[derive(Default)]
pub struct Stdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// How the process gets to its surroundings.
pub enum Surroundings<'a> {
    /// Build them: a container's first process, cloned into new mount (and pid) namespaces.
    New(&'a RootfsPlan),
    /// Join those of a container's first process.
    Join { init: BorrowedFd<'a> },
}

pub struct Launch<'a> {
    pub surroundings: Surroundings<'a>,
    pub process: &'a Process,
    pub stdio: Stdio,
    /// A terminal takes the place of `stdio`.
    pub terminal: Option<Option<TerminalSize>>,
    pub join: JoinHandles,
    pub report: OwnedFd,
}

/// Becomes the program; never returns.
pub fn run(launch: Launch<'_>) -> ! {
    let failure = match prepare_and_exec(&launch) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    let text = serde_json::to_vec(&failure).unwrap_or_default();
    let _ = socket::send(launch.report.as_fd(), &text, &[]);
    sys::exit_now(failure.exit_code)
}

fn prepare_and_exec(launch: &Launch<'_>) -> Result<std::convert::Infallible, Failure> {
    sys::reset_signals();
    // SAFETY: plain system call.
    unsafe { libc::umask(0) };
    launch.join.enter().map_err(Failure::step("join cgroup"))?;
    sys::setsid().map_err(Failure::step("setsid"))?;
    launch.process.set_oom_score_adj()?;
    match &launch.surroundings {
        Surroundings::New(plan) => rootfs::enter(plan)?,
        Surroundings::Join { init } => sys::setns(*init, libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP)
            .map_err(Failure::step("join the container's namespaces"))?,
    }
    match launch.terminal {
        Some(size) => {
            let console = matches!(launch.surroundings, Surroundings::New(_));
            terminal::open(launch.report.as_fd(), size, launch.process.user.uid, console)?;
        }
        None => set_stdio(&launch.stdio, launch.process.user.uid)?,
    }
    if let Surroundings::New(plan) = &launch.surroundings {
        rootfs::seal(plan)?;
    }
    launch.process.exec()
}

fn set_stdio(stdio: &Stdio, uid: u32) -> Result<(), Failure> {
    for (target, fd) in [(0, &stdio.stdin), (1, &stdio.stdout), (2, &stdio.stderr)] {
        match fd {
            Some(fd) => {
                // So that the program can open /dev/stdout again although it is not root.
                let _ = sys::fchown(fd.as_fd(), uid, u32::MAX);
                sys::dup_to(fd.as_raw_fd(), target).map_err(Failure::step("set up standard streams"))?;
            }
            None => {
                // SAFETY: constant NUL-terminated path.
                let fd = sys::check(unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) })
                    .map_err(Failure::step("open /dev/null"))?;
                sys::dup_to(fd, target).map_err(Failure::step("set up standard streams"))?;
                if fd > 2 {
                    // SAFETY: opened above, owned by nobody else.
                    unsafe { libc::close(fd) };
                }
            }
        }
    }
    Ok(())
}
