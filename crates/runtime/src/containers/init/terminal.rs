//! A pseudo-terminal of the container's own devpts for the calling process.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::Failure;
use super::root::{Links, Root};
use crate::containers::status::TerminalSize;
use crate::containers::{mount_api, socket, sys};

/// The first byte of the report that carries the master descriptor.
pub const TERMINAL_REPORT: u8 = b't';

const DEVPTS_SUPER_MAGIC: i64 = 0x1cd1;

/// Opens a terminal, sends its master to the shim and sets it as the standard streams; with `console` also as
/// /dev/console.
pub fn open(
    root: &Root,
    report: BorrowedFd<'_>,
    size: Option<TerminalSize>,
    uid: u32,
    console: bool,
) -> Result<(), Failure> {
    let (master, peer) = open_pair(root).map_err(Failure::step("open a terminal"))?;
    if let Some(size) = size {
        let _ = sys::set_window_size(master.as_fd(), size.columns, size.rows);
    }
    let _ = sys::fchown(peer.as_fd(), uid, u32::MAX);
    if console {
        bind_console(root, &peer).map_err(Failure::step("set up /dev/console"))?;
    }
    socket::send(report, &[TERMINAL_REPORT], &[master.as_fd()])
        .map_err(Failure::step("hand over the terminal"))?;
    for target in 0..3 {
        sys::dup_to(peer.as_raw_fd(), target).map_err(Failure::step("set up standard streams"))?;
    }
    Ok(())
}

/// Makes the standard input the controlling terminal; only for the leader of a session.
pub fn take_control() -> Result<(), Failure> {
    // SAFETY: integer argument.
    sys::check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })
        .map(drop)
        .map_err(Failure::step("set the controlling terminal"))
}

/// Opens the multiplexer. The container may have mounted anything at /dev/pts; only a devpts is accepted.
fn open_multiplexer(root: &Root) -> std::io::Result<OwnedFd> {
    let folder = root.find("/dev/pts", Links::Refuse)?;
    if sys::file_system_of(folder.as_fd())? != DEVPTS_SUPER_MAGIC {
        return Err(std::io::Error::from_raw_os_error(libc::ENOTTY));
    }
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    Ok(openat(&folder, "ptmx", flags, Mode::empty())?)
}

fn open_pair(root: &Root) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    let master = open_multiplexer(root)?;
    let unlock: libc::c_int = 0;
    // SAFETY: the pointer is valid for the call.
    sys::check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock) })?;
    // SAFETY: integer argument; the result is a new descriptor.
    let peer = unsafe {
        OwnedFd::from_raw_fd(sys::check(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags))?)
    };
    Ok((master, peer))
}

/// Binds the terminal to /dev/console by its descriptor, because the path /dev/pts/N may refer to another file
/// by now.
fn bind_console(root: &Root, peer: &OwnedFd) -> std::io::Result<()> {
    let tree = mount_api::open_tree_of(peer.as_fd(), false)?;
    let console = root.file("/dev/console", Links::Refuse)?;
    mount_api::move_mount(tree.as_fd(), console.as_fd())
}
