//! The kernel's descriptor-based mount calls (open_tree, move_mount, mount_setattr) and pivot_root.
//!
//! Bind sources are opened as detached trees before pivot_root and attached after it. Every mount is created
//! detached and attached by descriptor, so that a path cannot change its meaning between lookup and mount.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::sys::{check, cstring};

pub const MOUNT_ATTR_RDONLY: u64 = 0x1;
pub const MOUNT_ATTR_NOSUID: u64 = 0x2;
pub const MOUNT_ATTR_NODEV: u64 = 0x4;
pub const MOUNT_ATTR_NOEXEC: u64 = 0x8;
pub const MOUNT_ATTR_STRICTATIME: u64 = 0x20;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

const OPEN_TREE_CLONE: libc::c_uint = 1;
const OPEN_TREE_CLOEXEC: libc::c_uint = libc::O_CLOEXEC as libc::c_uint;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

/// Mirrors `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Returns a detached copy of the mount at `path`; with `recursive`, also of all mounts below it.
pub fn open_tree(path: &CStr, recursive: bool) -> io::Result<OwnedFd> {
    clone_tree(libc::AT_FDCWD, path, recursive, 0)
}

/// Like [`open_tree`], but copies the mount that a descriptor refers to.
pub fn open_tree_of(fd: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    clone_tree(fd.as_raw_fd(), c"", recursive, libc::AT_EMPTY_PATH as libc::c_uint)
}

fn clone_tree(fd: libc::c_int, path: &CStr, recursive: bool, flags: libc::c_uint) -> io::Result<OwnedFd> {
    let recursive = if recursive { libc::AT_RECURSIVE as libc::c_uint } else { 0 };
    let flags = flags | recursive | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
    // SAFETY: path is NUL-terminated.
    fresh(unsafe { libc::syscall(libc::SYS_open_tree, fd, path.as_ptr(), flags) })
}

fn fresh(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system call returned this descriptor as a new one, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn done(ret: libc::c_long) -> io::Result<()> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Creates a detached mount of a file system. `options` are separated by commas, with or without a value.
pub fn new_mount(fstype: &CStr, options: &str, attributes: u64) -> io::Result<OwnedFd> {
    // SAFETY: fstype is NUL-terminated.
    let context = fresh(unsafe { libc::syscall(libc::SYS_fsopen, fstype.as_ptr(), FSOPEN_CLOEXEC) })?;
    configure(&context, FSCONFIG_SET_STRING, Some(c"source"), Some(fstype))?;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some((key, value)) => {
                configure(&context, FSCONFIG_SET_STRING, Some(&cstring(key)?), Some(&cstring(value)?))?;
            }
            None => configure(&context, FSCONFIG_SET_FLAG, Some(&cstring(option)?), None)?,
        }
    }
    configure(&context, FSCONFIG_CMD_CREATE, None, None)?;
    // SAFETY: integer arguments only.
    fresh(unsafe {
        libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes as libc::c_uint)
    })
}

fn configure(
    context: &OwnedFd,
    command: libc::c_uint,
    key: Option<&CStr>,
    value: Option<&CStr>,
) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: key and value are NULL or NUL-terminated.
    done(unsafe {
        libc::syscall(
            libc::SYS_fsconfig,
            context.as_raw_fd(),
            command,
            pointer(key),
            pointer(value),
            0 as libc::c_int,
        )
    })
}

/// Attaches a detached tree at `target`, hiding what is mounted there.
pub fn move_mount(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both paths are empty and NUL-terminated.
    done(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH,
        )
    })
}

/// Changes the mount attributes of the tree behind a descriptor, and its propagation unless that is 0.
pub fn set_attributes(
    tree: BorrowedFd<'_>,
    set: u64,
    propagation: libc::c_ulong,
    recursive: bool,
) -> io::Result<()> {
    change(tree, MountAttr { attr_set: set, propagation, ..MountAttr::default() }, recursive)
}

/// Id-maps a detached tree: its files appear with the ids that the user namespace maps theirs to.
pub fn map_ids(tree: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    let userns_fd = user_namespace.as_raw_fd() as u64;
    change(tree, MountAttr { attr_set: MOUNT_ATTR_IDMAP, userns_fd, ..MountAttr::default() }, true)
}

fn change(tree: BorrowedFd<'_>, attr: MountAttr, recursive: bool) -> io::Result<()> {
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: attr is valid for its size.
    done(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            std::mem::size_of::<MountAttr>(),
        )
    })
}

/// Calls mount(2).
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

/// Unmounts lazily and does not follow a link.
pub fn unmount_detach(target: &CStr) -> io::Result<()> {
    // SAFETY: target is NUL-terminated.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) }).map(drop)
}

/// Makes a detached tree the root file system and unmounts the old root. The tree is attached at `/proc` of the
/// old root first, because every user may enter that folder.
pub fn pivot_to(tree: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: constant NUL-terminated path.
    let target = fresh(unsafe { libc::open(c"/proc".as_ptr(), flags) }.into())?;
    move_mount(tree, target.as_fd())?;
    // SAFETY: plain system call on an open descriptor.
    check(unsafe { libc::fchdir(tree.as_raw_fd()) })?;
    // SAFETY: constant NUL-terminated paths.
    done(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) })?;
    // The old root now lies over the new one at "."; detaching it leaves the new one.
    // SAFETY: constant NUL-terminated path.
    check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) })?;
    // SAFETY: constant NUL-terminated path.
    check(unsafe { libc::chdir(c"/".as_ptr()) }).map(drop)
}
