//! The kernel's descriptor-based mount calls (open_tree, move_mount, mount_setattr) and pivot_root.
//!
//! Bind sources are opened as detached trees before pivot_root and attached after it, so that a
//! destination can never lead out of the container's root through a symbolic link.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::sys::check;

pub const MOUNT_ATTR_RDONLY: u64 = 0x1;
pub const MOUNT_ATTR_NOEXEC: u64 = 0x8;

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;

/// As `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A detached copy of the mount at `path`; with `recursive`, of all mounts below it too.
pub fn open_tree(path: &CStr, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    // SAFETY: path is NUL-terminated.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Attaches a detached tree at `path`.
pub fn move_mount(tree: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    // SAFETY: both paths are NUL-terminated.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            path.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Changes attributes and, where not 0, propagation of the tree behind a descriptor.
pub fn set_attributes(
    tree: BorrowedFd<'_>,
    set: u64,
    propagation: libc::c_ulong,
    recursive: bool,
) -> io::Result<()> {
    let attr = MountAttr { attr_set: set, propagation, ..MountAttr::default() };
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: attr is valid for its size.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            std::mem::size_of::<MountAttr>(),
        )
    };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub fn mount(
    source: &CStr,
    target: &CStr,
    fstype: &CStr,
    flags: libc::c_ulong,
    data: &CStr,
) -> io::Result<()> {
    // SAFETY: all strings are NUL-terminated.
    check(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), fstype.as_ptr(), flags, data.as_ptr().cast())
    })
    .map(drop)
}

pub fn unmount_detach(target: &CStr) -> io::Result<()> {
    // SAFETY: target is NUL-terminated.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) }).map(drop)
}

/// Makes the current directory, a mount point, the root, and drops the old root.
pub fn pivot_to_cwd() -> io::Result<()> {
    // SAFETY: constant NUL-terminated paths.
    if unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // The old root now lies over the new one at "."; detaching it leaves the new one.
    // SAFETY: constant NUL-terminated path.
    check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) })?;
    // SAFETY: constant NUL-terminated path.
    check(unsafe { libc::chdir(c"/".as_ptr()) }).map(drop)
}
