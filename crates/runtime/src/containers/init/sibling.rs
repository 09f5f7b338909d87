//! Continues a process in a sibling: another child of its parent, created in the pid namespace that was chosen
//! before.
//!
//! Seccomp filters that allow the calls of common programs also allow this.

use std::os::fd::{AsFd, BorrowedFd};

use super::Failure;
use crate::containers::socket;
use crate::containers::sys::{self, Forked};

/// The first byte of the report of a sibling; its pid (little endian) and its pidfd follow.
pub const SIBLING_REPORT: u8 = b's';

/// Returns in the sibling. The calling process reports the sibling to the shim, and ends.
///
/// The sibling waits for the report: the shim must know it before it can exit.
pub fn go_on(flags: u64, report: BorrowedFd<'_>) -> Result<(), Failure> {
    let (go, release) = sys::pipe().map_err(Failure::step("pipe"))?;
    // SAFETY: this process has one thread.
    match unsafe { sys::clone_sibling(flags) }.map_err(Failure::step("clone"))? {
        Forked::Child => {
            drop(release);
            match sys::read(go.as_fd(), &mut [0]) {
                Ok(1) => Ok(()),
                // The sibling was not reported, so no process knows of it.
                _ => sys::exit_now(128),
            }
        }
        Forked::Parent { pid, pidfd } => {
            let mut message = vec![SIBLING_REPORT];
            message.extend(pid.to_le_bytes());
            socket::send(report, &message, &[pidfd.as_fd()])
                .and_then(|_| sys::write(release.as_fd(), &[1]))
                .map_err(Failure::step("report the process"))?;
            sys::exit_now(0)
        }
    }
}
