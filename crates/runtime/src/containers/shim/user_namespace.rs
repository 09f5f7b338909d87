//! A sandbox's own user namespace, with the network, IPC and UTS namespaces that belong to it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::containers::spec::IdRange;
use crate::containers::sys::{self, Forked, errno_text};

/// A user namespace and its range of host ids.
pub struct UserNamespace {
    fd: OwnedFd,
    pub ids: IdRange,
}

impl UserNamespace {
    /// Creates the namespaces and enters all except the user namespace: the shim keeps the host's ids.
    pub fn make(ids: IdRange) -> Result<Self, String> {
        let fail = |error: io::Error| format!("make the user namespace: {}", errno_text(&error));
        let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let (wait, release) = sys::pipe().map_err(fail)?;
        // SAFETY: the shim has one thread.
        let (pid, pidfd) = match unsafe { sys::clone3(flags as u64, None) }.map_err(fail)? {
            Forked::Parent { pid, pidfd } => (pid, pidfd),
            Forked::Child => {
                drop(release);
                let _ = File::from(wait).read(&mut [0]);
                sys::exit_now(0)
            }
        };
        let entered = map_ids(pid, ids).and_then(|()| {
            sys::setns(pidfd.as_fd(), libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS)?;
            File::open(format!("/proc/{pid}/ns/user"))
        });
        // The child ends; its namespaces live on because the shim has entered or opened them.
        drop(release);
        sys::wait_for(pid);
        Ok(Self { fd: OwnedFd::from(entered.map_err(fail)?), ids })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn map_ids(pid: i32, ids: IdRange) -> io::Result<()> {
    let map = format!("0 {} {}", ids.first, ids.count);
    fs::write(format!("/proc/{pid}/uid_map"), &map)?;
    fs::write(format!("/proc/{pid}/gid_map"), &map)
}
