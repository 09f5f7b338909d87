//! Code that runs in a newly cloned process before it executes the container's program.
//!
//! The process is a copy of the single-threaded shim, so it may allocate. It reports over a SOCK_SEQPACKET
//! socket: the terminal's master descriptor if there is one, and a [`Failure`] if it cannot continue. The
//! socket is closed by execve when the program starts.

mod app_armor;
mod failure;
pub(super) mod null_device;
mod process;
mod root;
mod rootfs;
mod sibling;
mod standard_streams;
mod terminal;
mod user_namespace;
mod working_folder;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::cgroups::JoinHandles;
use super::spec::IdRange;
use super::status::TerminalSize;
use super::sys;
pub use failure::{Failure, MAX_REPORT_BYTES, report_failure};
use process::Entry;
pub use process::Process;
use root::Root;
pub use rootfs::{MASKED, Planned, Procfs, READ_ONLY, RootfsPlan, Shared, What, clone_flags, host_devices};
pub use sibling::SIBLING_REPORT;
pub use standard_streams::Stdio;
pub use terminal::TERMINAL_REPORT;
pub use user_namespace::enter as enter_user_namespace;

/// How the process gets its root and namespaces.
pub enum Surroundings<'a> {
    /// Create them: for a container's first process, cloned into new mount (and pid) namespaces.
    New(&'a RootfsPlan),
    /// Join the namespaces of a container's first process.
    Join { init: BorrowedFd<'a> },
}

/// The pid namespace that a process joins, where other processes of the pod see it.
#[derive(Clone, Copy)]
pub struct JoinedPids<'a> {
    /// A process in the namespace.
    pub pidfd: BorrowedFd<'a>,
    /// Whether one of its processes may trace the new one although that is not dumpable.
    pub traced: bool,
}

/// Everything that a cloned process needs to become the program.
pub struct Launch<'a> {
    pub surroundings: Surroundings<'a>,
    pub process: &'a Process,
    pub stdio: Stdio,
    /// If set, the process gets a terminal instead of `stdio`.
    pub terminal: Option<Option<TerminalSize>>,
    pub join: JoinHandles,
    pub report: OwnedFd,
    pub joined: Option<JoinedPids<'a>>,
    /// The sandbox's own user namespace, if it has one.
    pub user_namespace: Option<UserNamespace<'a>>,
}

/// The user namespace that a process enters.
#[derive(Clone, Copy)]
pub struct UserNamespace<'a> {
    pub fd: BorrowedFd<'a>,
    pub ids: IdRange,
    /// Whether the process gets a pid namespace of its own inside the user namespace.
    pub new_pid_namespace: bool,
}

/// Executes the program; never returns.
pub fn run(launch: Launch<'_>) -> ! {
    let failure = match prepare_and_exec(&launch) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    let exit_code = failure.exit_code;
    report_failure(launch.report.as_fd(), failure);
    sys::exit_now(exit_code)
}

fn prepare_and_exec(launch: &Launch<'_>) -> Result<std::convert::Infallible, Failure> {
    sys::reset_signals();
    // SAFETY: plain system call.
    unsafe { libc::umask(0) };
    launch.join.enter().map_err(Failure::step("join cgroup"))?;
    sys::make_undumpable().map_err(Failure::step("hide from other processes"))?;
    // From here on, only the host descriptors that the process itself needs are open.
    sys::close_all_but(&launch.kept()).map_err(Failure::step("close inherited descriptors"))?;
    launch.process.set_oom_score_adj()?;
    launch.process.set_rlimits()?;
    if let Some(profile) = &launch.process.app_armor {
        app_armor::on_exec(profile)?;
    }
    launch.stdio.give_to(launch.outside_uid()?);
    let cover = rootfs::NullCover::open().map_err(Failure::step("open /dev/null"))?;
    let null = cover.device().map_err(Failure::step("open /dev/null"))?;
    // Replaces the shim's own streams, one of which is its log on the host.
    Stdio::default().set(&null)?;
    if let Some(joined) = launch.joined {
        // Applies to processes that are cloned from now on. Done with the host's rights, which a user namespace
        // would take away.
        sys::setns(joined.pidfd, libc::CLONE_NEWPID).map_err(Failure::step("join the pid namespace"))?;
    }
    let root = launch.enter_surroundings()?;
    match launch.terminal {
        Some(size) => {
            let console = matches!(launch.surroundings, Surroundings::New(_));
            terminal::open(&root, launch.report.as_fd(), size, launch.process.user.uid, console)?;
        }
        None => {
            let null = null_device::inside(&root, &null).map_err(Failure::step("open /dev/null"))?;
            launch.stdio.set(&null)?;
        }
    }
    if let Surroundings::New(plan) = &launch.surroundings {
        rootfs::seal(plan, &root, cover)?;
    }
    launch.process.exec(&root, &Entry { joined: launch.joined, report: launch.report.as_fd() })
}

impl Launch<'_> {
    /// Returns the descriptors to keep open: the standard streams, old and new, the report socket, and the
    /// processes to join.
    fn kept(&self) -> Vec<RawFd> {
        let mut kept = vec![0, 1, 2, self.report.as_raw_fd()];
        kept.extend(self.stdio.descriptors());
        if let Surroundings::Join { init } = &self.surroundings {
            kept.push(init.as_raw_fd());
        }
        kept.extend(self.joined.map(|joined| joined.pidfd.as_raw_fd()));
        kept.extend(self.user_namespace.map(|namespace| namespace.fd.as_raw_fd()));
        kept
    }

    /// Returns the user id as the host sees it.
    fn outside_uid(&self) -> Result<u32, Failure> {
        let uid = self.process.user.uid;
        let Some(namespace) = self.user_namespace else { return Ok(uid) };
        namespace.ids.outside(uid).ok_or_else(|| Failure {
            message: format!("user {uid} is beyond the {} ids of the user namespace", namespace.ids.count),
            exit_code: 128,
        })
    }

    /// Enters the process's namespaces and the container's root. With a new pid namespace inside a user
    /// namespace, a sibling continues.
    fn enter_surroundings(&self) -> Result<Root, Failure> {
        let keyring = || sys::new_session_keyring().map_err(Failure::step("make a session keyring"));
        match &self.surroundings {
            Surroundings::New(plan) => {
                let namespace = self.user_namespace;
                let from = rootfs::FromHost::open(
                    plan,
                    namespace.map(|namespace| namespace.fd),
                    self.joined.map(|joined| joined.pidfd),
                )?;
                if let Some(UserNamespace { fd, new_pid_namespace, .. }) = namespace {
                    user_namespace::enter(fd, new_pid_namespace, self.report.as_fd())?;
                }
                keyring()?;
                rootfs::enter(plan, from)
            }
            Surroundings::Join { init } => {
                let user = if self.user_namespace.is_some() { libc::CLONE_NEWUSER } else { 0 };
                sys::setns(*init, user | libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP)
                    .map_err(Failure::step("join the container's namespaces"))?;
                if user != 0 {
                    user_namespace::become_root()?;
                }
                keyring()?;
                Root::of_process().map_err(Failure::step("open the root"))
            }
        }
    }
}
