//! The first process of a pid namespace that a sandbox's containers share.
//!
//! It keeps the namespace alive and reaps its orphans. Containers see it as process 1, so it has nothing they
//! could use: its root is empty, it has no capabilities and no descriptors, and it may make only the system
//! calls that it needs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::user_namespace::UserNamespace;
use crate::containers::mount_api::{
    self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY,
};
use crate::containers::sys::{self, Forked, errno_text};
use crate::containers::{capabilities, init, seccomp, socket};

const SAFE: u64 = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
/// The user and group of Kubernetes' pause image.
const NOBODY: u32 = 65535;
/// `close` closes the report socket after the set-up; the loop and the exit use the other calls.
const SYSTEM_CALLS: [&str; 7] =
    ["close", "wait4", "rt_sigtimedwait", "rt_sigreturn", "restart_syscall", "exit", "exit_group"];

/// The first byte of the report that carries the namespace's procfs.
const PROCFS_REPORT: u8 = b'p';

/// The running pause process.
pub struct Pause {
    pub pidfd: OwnedFd,
    /// A detached mount. Only a process in the namespace can create one, and processes that enter it later may
    /// be traced.
    pub procfs: OwnedFd,
}

/// Clones the process, into the sandbox's user namespace if it has one, and waits until it is confined.
pub fn start(user_namespace: Option<&UserNamespace>) -> Result<Pause, String> {
    let fail = |error: io::Error| format!("make the shared pid namespace: {}", errno_text(&error));
    let (near, far) = socket::packet_pair().map_err(fail)?;
    let flags = if user_namespace.is_some() { 0 } else { libc::CLONE_NEWPID | libc::CLONE_NEWNS };
    // SAFETY: the shim has one thread.
    let (pid, mut pidfd) = match unsafe { sys::clone3(flags as u64, None) } {
        Err(error) => return Err(fail(error)),
        Ok(Forked::Parent { pid, pidfd }) => (pid, pidfd),
        Ok(Forked::Child) => become_pause(user_namespace, &far),
    };
    drop(far);
    if user_namespace.is_some() {
        sys::wait_for(pid);
    }
    let (mut failure, mut procfs) = (Vec::new(), None);
    loop {
        let (mut buffer, mut fds) = ([0; 1024], Vec::new());
        match socket::receive(near.as_fd(), &mut buffer, &mut fds).map_err(fail)? {
            0 => break,
            count => match fds.pop() {
                Some(mount) if buffer[0] == PROCFS_REPORT => procfs = Some(mount),
                Some(sibling) => pidfd = sibling,
                None => failure = buffer[..count].to_vec(),
            },
        }
    }
    match procfs.filter(|_| failure.is_empty()) {
        Some(procfs) => Ok(Pause { pidfd, procfs }),
        None if failure.is_empty() => Err("make the shared pid namespace: its first process died".to_owned()),
        None => Err(String::from_utf8_lossy(&failure).into_owned()),
    }
}

fn become_pause(user_namespace: Option<&UserNamespace>, report: &OwnedFd) -> ! {
    let entered = match user_namespace {
        Some(namespace) => init::enter_user_namespace(namespace.fd(), true, report.as_fd()),
        None => Ok(()),
    };
    let confined = entered
        .map_err(|failure| failure.message)
        .and_then(|()| confine(report).map_err(|(what, error)| format!("{what}: {}", errno_text(&error))));
    if let Err(message) = confined {
        let message = format!("confine the pause process: {message}");
        let _ = socket::send(report.as_fd(), message.as_bytes(), &[]);
        sys::exit_now(1)
    }
    // SAFETY: no code uses the descriptor again; its owner is never dropped.
    unsafe { libc::close(report.as_raw_fd()) };
    pause()
}

fn confine(report: &OwnedFd) -> Result<(), (&'static str, io::Error)> {
    let step = |what: &'static str| move |error: io::Error| (what, error);
    sys::set_name(c"pause").map_err(step("name the process"))?;
    sys::close_all_but(&[report.as_raw_fd()]).map_err(step("close descriptors"))?;
    let procfs = mount_api::new_mount(c"proc", "", SAFE).map_err(step("make a procfs"))?;
    socket::send(report.as_fd(), &[PROCFS_REPORT], &[procfs.as_fd()])
        .map_err(step("hand over the procfs"))?;
    drop(procfs);
    enter_empty_root().map_err(step("enter an empty root"))?;
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

fn enter_empty_root() -> io::Result<()> {
    mount_api::mount(c"none", c"/", c"", libc::MS_PRIVATE | libc::MS_REC, c"")?;
    let attributes = MOUNT_ATTR_RDONLY | SAFE;
    let empty = mount_api::new_mount(c"tmpfs", "size=0k,nr_inodes=1,mode=555", attributes)?;
    mount_api::pivot_to(empty.as_fd())
}

/// Reaps children for ever. SIGCHLD was blocked before the clone, so none is missed between reaping and
/// waiting.
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
