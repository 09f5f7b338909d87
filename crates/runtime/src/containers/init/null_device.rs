//! The null device, found where nothing of the container's can stand in for it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::fcntl::OFlag;

use super::root::{Links, Root};
use crate::containers::sys;

const PATH: &str = "/dev/null";

/// The host's null device, to be opened before the container's root is entered.
pub fn of_host() -> io::Result<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: constant NUL-terminated path; the result is a fresh descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(sys::check(libc::open(c"/dev/null".as_ptr(), flags))?) };
    verify(fd.as_fd())?;
    Ok(fd)
}

/// The container's own null device if that is what its /dev/null is, else `host`.
pub fn inside(root: &Root, host: &OwnedFd) -> io::Result<OwnedFd> {
    match open_inside(root) {
        Ok(fd) => Ok(fd),
        Err(_) => host.try_clone(),
    }
}

/// A volume may lie at /dev, and other containers may change it: what is there is only opened once it is
/// known to be a null device, and looked at again.
fn open_inside(root: &Root) -> io::Result<OwnedFd> {
    verify(root.find(PATH, Links::Refuse)?.as_fd())?;
    let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let fd = root.open(PATH, flags, Links::Refuse)?;
    verify(fd.as_fd())?;
    // SAFETY: plain system call on an open descriptor.
    sys::check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR) })?;
    Ok(fd)
}

fn verify(fd: BorrowedFd<'_>) -> io::Result<()> {
    let stat = sys::stat_of(fd)?;
    if stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "/dev/null is not the null device"))
}
