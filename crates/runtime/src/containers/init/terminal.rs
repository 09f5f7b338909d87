//! A pseudo-terminal of the container's own devpts for the calling process.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::Failure;
use crate::containers::status::TerminalSize;
use crate::containers::{mount_api, socket, sys};

/// First byte of the report that carries the master descriptor.
pub const TERMINAL_REPORT: u8 = b't';

/// Opens a terminal, hands its master to the shim, makes it the controlling terminal and standard
/// streams, and with `console` lets /dev/console be it.
pub fn open(
    report: BorrowedFd<'_>,
    size: Option<TerminalSize>,
    uid: u32,
    console: bool,
) -> Result<(), Failure> {
    let (master, peer) = open_pair().map_err(Failure::step("open a terminal"))?;
    if let Some(size) = size {
        let _ = sys::set_window_size(master.as_fd(), size.columns, size.rows);
    }
    let _ = sys::fchown(peer.as_fd(), uid, u32::MAX);
    // SAFETY: integer argument.
    sys::check(unsafe { libc::ioctl(peer.as_raw_fd(), libc::TIOCSCTTY, 0) })
        .map_err(Failure::step("set the controlling terminal"))?;
    if console {
        bind_console(&master).map_err(Failure::step("set up /dev/console"))?;
    }
    socket::send(report, &[TERMINAL_REPORT], &[master.as_fd()])
        .map_err(Failure::step("hand over the terminal"))?;
    for target in 0..3 {
        sys::dup_to(peer.as_raw_fd(), target).map_err(Failure::step("set up standard streams"))?;
    }
    Ok(())
}

fn open_pair() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: constant NUL-terminated path.
    let master = unsafe {
        let fd = sys::check(libc::open(c"/dev/pts/ptmx".as_ptr(), flags | libc::O_NOFOLLOW))?;
        OwnedFd::from_raw_fd(fd)
    };
    // The container may have put anything there; only the real multiplexer will do.
    let file = fs::File::from(master);
    let device = std::os::unix::fs::MetadataExt::rdev(&file.metadata()?);
    let master = OwnedFd::from(file);
    if device != libc::makedev(5, 2) {
        return Err(std::io::Error::from_raw_os_error(libc::ENOTTY));
    }
    let unlock: libc::c_int = 0;
    // SAFETY: the pointer is valid for the call.
    sys::check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock) })?;
    // SAFETY: integer argument; the result is a fresh descriptor.
    let peer = unsafe {
        OwnedFd::from_raw_fd(sys::check(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags))?)
    };
    Ok((master, peer))
}

fn bind_console(master: &OwnedFd) -> std::io::Result<()> {
    let mut number: libc::c_uint = 0;
    // SAFETY: the pointer is valid for the call.
    sys::check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTN, &raw mut number) })?;
    if fs::symlink_metadata("/dev/console").is_err() {
        fs::write("/dev/console", "")?;
    }
    let tree = mount_api::open_tree(&sys::cstring(format!("/dev/pts/{number}"))?, false)?;
    mount_api::move_mount(tree.as_fd(), c"/dev/console")
}
