//! Standard streams of a process without a terminal.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use super::Failure;
use crate::containers::sys;

/// `None` is the null device.
#[derive(Default)]
pub struct Stdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

impl Stdio {
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        [&self.stdin, &self.stdout, &self.stderr].into_iter().flatten().map(AsRawFd::as_raw_fd)
    }

    /// Makes the streams the user's, so that the program can open /dev/stdout again although it is not root.
    /// `uid` is the id outside of any user namespace.
    pub fn give_to(&self, uid: u32) {
        for fd in [&self.stdin, &self.stdout, &self.stderr].into_iter().flatten() {
            let _ = sys::fchown(fd.as_fd(), uid, u32::MAX);
        }
    }

    /// Puts the streams into their places.
    pub fn set(&self, null: &OwnedFd) -> Result<(), Failure> {
        for (target, fd) in [(0, &self.stdin), (1, &self.stdout), (2, &self.stderr)] {
            let fd = fd.as_ref().unwrap_or(null);
            sys::dup_to(fd.as_raw_fd(), target).map_err(Failure::step("set up standard streams"))?;
        }
        Ok(())
    }
}
