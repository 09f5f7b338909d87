//! Standard streams of a process without a terminal.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::Failure;
use crate::containers::sys;

/// `None` stands for the null device.
#[derive(Default)]
pub struct Stdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

impl Stdio {
    /// Returns the numbers of the open descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        [&self.stdin, &self.stdout, &self.stderr].into_iter().flatten().map(AsRawFd::as_raw_fd)
    }

    /// Changes the owner of the streams to the user, so that a program that is not root can reopen /dev/stdout.
    /// `uid` is the id outside of any user namespace.
    pub fn give_to(&self, uid: u32) {
        for fd in [&self.stdin, &self.stdout, &self.stderr].into_iter().flatten() {
            let _ = sys::fchown(fd.as_fd(), uid, u32::MAX);
        }
    }

    /// Moves the streams to descriptors 0, 1 and 2.
    pub fn set(&self, null: &OwnedFd) -> Result<(), Failure> {
        for (target, fd) in [(0, &self.stdin), (1, &self.stdout), (2, &self.stderr)] {
            let fd = fd.as_ref().unwrap_or(null);
            sys::dup_to(fd.as_raw_fd(), target).map_err(Failure::step("set up standard streams"))?;
        }
        Ok(())
    }
}
