//! Opens the null device so that a container cannot substitute another file for it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::fcntl::OFlag;

use super::root::{Links, Root};
use crate::containers::mount_api::{self, MOUNT_ATTR_RDONLY};
use crate::containers::sys::{self, cstring};

const PATH: &str = "/dev/null";

/// Creates a detached mount of the host's null device; must be called before the container's root is entered.
///
/// The mount is read-only: data still passes, but root in a container cannot change the mode, owner or times of
/// the device that the whole host uses.
pub fn mount_of_host() -> io::Result<OwnedFd> {
    let null = open(c"/dev/null", libc::O_PATH | libc::O_NOFOLLOW)?;
    verify(null.as_fd())?;
    let tree = mount_api::open_tree_of(null.as_fd(), false)?;
    mount_api::set_attributes(tree.as_fd(), MOUNT_ATTR_RDONLY, 0, false)?;
    Ok(tree)
}

/// Opens the device through the mount of [`mount_of_host`]; the host's procfs must still be accessible.
pub fn of_host(mount: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let null = open(&cstring(format!("/proc/self/fd/{}", mount.as_raw_fd()))?, libc::O_RDWR)?;
    verify(null.as_fd())?;
    Ok(null)
}

fn open(path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: path is NUL-terminated; the result is a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(sys::check(libc::open(path.as_ptr(), flags | libc::O_CLOEXEC))?) })
}

/// Returns the container's own null device if its /dev/null is one, otherwise `host`.
pub fn inside(root: &Root, host: &OwnedFd) -> io::Result<OwnedFd> {
    match open_inside(root) {
        Ok(fd) => Ok(fd),
        Err(_) => host.try_clone(),
    }
}

/// Opens the container's /dev/null. A volume may be mounted at /dev, and other containers may change it: so the
/// file is opened only after it was verified to be a null device, and then verified again.
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
