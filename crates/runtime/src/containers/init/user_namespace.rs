//! Moves a process into its sandbox's user namespace.

use std::os::fd::BorrowedFd;

use super::Failure;
use super::sibling;
use crate::containers::sys;

/// Enters the namespace as its root user, and a mount namespace that belongs to it.
///
/// The pid namespace must belong to it, too, or no procfs could be mounted. A process cannot move itself into
/// a new pid namespace: with `new_pid_namespace` a sibling continues, which is a child of the shim like this
/// process. This process reports the sibling to the shim and ends.
pub fn enter(
    namespace: BorrowedFd<'_>,
    new_pid_namespace: bool,
    report: BorrowedFd<'_>,
) -> Result<(), Failure> {
    sys::setns(namespace, libc::CLONE_NEWUSER).map_err(Failure::step("join the user namespace"))?;
    become_root()?;
    if !new_pid_namespace {
        return sys::unshare(libc::CLONE_NEWNS).map_err(Failure::step("make a mount namespace"));
    }
    sys::unshare(libc::CLONE_NEWPID).map_err(Failure::step("make a pid namespace"))?;
    sibling::go_on(libc::CLONE_NEWNS as u64, report)
}

/// Becomes root of the user namespace just entered, where ids from outside have no meaning.
pub fn become_root() -> Result<(), Failure> {
    // SAFETY: no groups, and plain system calls.
    unsafe {
        sys::check(libc::setgroups(0, std::ptr::null())).map_err(Failure::step("setgroups"))?;
        sys::check(libc::setresgid(0, 0, 0)).map_err(Failure::step("setgid"))?;
        sys::check(libc::setresuid(0, 0, 0)).map_err(Failure::step("setuid"))?;
    }
    // The change of ids may have made the process dumpable.
    sys::make_undumpable().map_err(Failure::step("hide from other processes"))
}
