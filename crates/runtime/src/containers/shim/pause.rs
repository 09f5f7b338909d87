//! The first process of a pid namespace that a sandbox's containers share.
//!
//! It keeps the namespace and reaps what is orphaned in it. Containers see it as process 1, so it holds
//! nothing they could use: its root is empty, it has no capabilities and no descriptors, and it may make
//! only the system calls that it needs.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::containers::mount_api::{
    self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY,
};
use crate::containers::state::SandboxFolder;
use crate::containers::sys::{self, Forked, errno_text};
use crate::containers::{capabilities, seccomp};

/// As the user and group of Kubernetes' pause image.
const NOBODY: u32 = 65535;
/// `close` ends the report of the set-up; the others are the loop's and the end's.
const SYSTEM_CALLS: [&str; 7] =
    ["close", "wait4", "rt_sigtimedwait", "rt_sigreturn", "restart_syscall", "exit", "exit_group"];

pub struct Pause {
    pub pidfd: OwnedFd,
}

/// Clones the process and waits until it is confined. `folder` becomes the mount point of its root, in a
/// mount namespace of its own.
pub fn start(folder: &SandboxFolder) -> Result<Pause, String> {
    let fail = |error: io::Error| format!("make the shared pid namespace: {}", errno_text(&error));
    let (near, far) = sys::pipe().map_err(fail)?;
    // SAFETY: the shim has one thread.
    let pidfd = match unsafe { sys::clone3((libc::CLONE_NEWPID | libc::CLONE_NEWNS) as u64, None) } {
        Err(error) => return Err(fail(error)),
        Ok(Forked::Parent { pidfd, .. }) => pidfd,
        Ok(Forked::Child) => become_pause(folder, &far),
    };
    drop(far);
    let mut failure = String::new();
    std::fs::File::from(near).read_to_string(&mut failure).map_err(fail)?;
    if failure.is_empty() { Ok(Pause { pidfd }) } else { Err(failure) }
}

fn become_pause(folder: &SandboxFolder, report: &OwnedFd) -> ! {
    if let Err((what, error)) = confine(folder, report) {
        let message = format!("confine the pause process: {what}: {}", errno_text(&error));
        let _ = sys::write(report.as_fd(), message.as_bytes());
        sys::exit_now(1)
    }
    // SAFETY: nobody uses the descriptor again; its owner is never dropped.
    unsafe { libc::close(report.as_raw_fd()) };
    pause()
}

fn confine(folder: &SandboxFolder, report: &OwnedFd) -> Result<(), (&'static str, io::Error)> {
    let step = |what: &'static str| move |error: io::Error| (what, error);
    let _ = std::fs::write("/proc/self/comm", "pause");
    sys::close_all_but(&[report.as_raw_fd()]).map_err(step("close descriptors"))?;
    enter_empty_root(folder).map_err(step("enter an empty root"))?;
    // SAFETY: no groups, and plain system calls.
    unsafe {
        sys::check(libc::setgroups(0, std::ptr::null())).map_err(step("setgroups"))?;
        sys::check(libc::setresgid(NOBODY, NOBODY, NOBODY)).map_err(step("setgid"))?;
        capabilities::drop_bounding(&capabilities::CapabilitySets::default())
            .map_err(step("drop capabilities from the bounding set"))?;
        sys::check(libc::setresuid(NOBODY, NOBODY, NOBODY)).map_err(step("setuid"))?;
    }
    capabilities::drop_all().map_err(step("drop capabilities"))?;
    sys::make_undumpable().map_err(step("hide from other processes"))?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)
        .map_err(step("set the parent death signal"))?;
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map_err(step("set no_new_privs"))?;
    let filter = seccomp::only(&SYSTEM_CALLS).map_err(|error| ("seccomp filter", io::Error::other(error)))?;
    seccomp::install(&filter).map_err(step("load seccomp filter"))
}

fn enter_empty_root(folder: &SandboxFolder) -> io::Result<()> {
    mount_api::mount(c"none", c"/", c"", libc::MS_PRIVATE | libc::MS_REC, c"")?;
    let attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
    let empty = mount_api::new_mount(c"tmpfs", "size=0k,nr_inodes=1,mode=555", attributes)?;
    let target = OwnedFd::from(std::fs::File::open(folder.path())?);
    mount_api::move_mount(empty.as_fd(), target.as_fd())?;
    std::env::set_current_dir(folder.path())?;
    mount_api::pivot_to_cwd()
}

/// SIGCHLD is blocked since before the clone, so none is missed between reaping and waiting.
fn pause() -> ! {
    loop {
        while sys::reap_one().is_some() {}
        // SAFETY: the set is initialised before use.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGCHLD);
            libc::sigwaitinfo(&raw const set, std::ptr::null_mut());
        }
    }
}
