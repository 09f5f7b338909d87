//! A process goes on as another child of its parent, born in the pid namespace that was chosen before.
//!
//! Filters that allow what common programs do allow this, too.

use std::os::fd::{AsFd, BorrowedFd};

use super::Failure;
use crate::containers::socket;
use crate::containers::sys::{self, Forked};

/// First byte of the report that a sibling goes on; its pid follows (little endian), and its pidfd.
pub const SIBLING_REPORT: u8 = b's';

/// Returns in the sibling. The calling process reports it, and ends.
///
/// The sibling waits for that: the shim must know it before it can end.
pub fn go_on(flags: u64, report: BorrowedFd<'_>) -> Result<(), Failure> {
    let (go, release) = sys::pipe().map_err(Failure::step("pipe"))?;
    // SAFETY: this process has one thread.
    match unsafe { sys::clone_sibling(flags) }.map_err(Failure::step("clone"))? {
        Forked::Child => {
            drop(release);
            match sys::read(go.as_fd(), &mut [0]) {
                Ok(1) => Ok(()),
                // Nobody knows of this process.
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
