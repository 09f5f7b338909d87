//! Clones an existing procfs, for a container that joins the pid namespace that it shows.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

use crate::containers::mount_api;
use crate::containers::sys::{self, path_cstring};

/// Clones the procfs that is mounted at `path` on the host.
pub fn mounted(path: &Path) -> io::Result<OwnedFd> {
    mount_api::open_tree(&path_cstring(path)?, false)
}

/// Clones the procfs at `/proc` of a container's process, without mounts that cover parts of it. The lookup is
/// done from outside of the pid namespace: processes of the container cannot see the process that does it.
pub fn of_process(pidfd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let own = File::open("/proc/self/ns/mnt")?;
    sys::setns(pidfd, libc::CLONE_NEWNS)?;
    let found = in_this_namespace();
    sys::setns(own.as_fd(), libc::CLONE_NEWNS)?;
    found
}

/// Clones the procfs at `/proc` of this mount namespace; refuses anything that the container may have mounted
/// in its place.
fn in_this_namespace() -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let folder = openat2(AT_FDCWD, "/proc", how)?;
    if fstatfs(&folder)?.filesystem_type() != PROC_SUPER_MAGIC {
        return Err(io::Error::other("the target container has no procfs at /proc"));
    }
    mount_api::open_tree_of(folder.as_fd(), false)
}
