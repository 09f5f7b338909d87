//! Thin safe wrappers over the system calls that the shim and its children make.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// Turns a libc return value into a `Result`.
pub fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn check_long(ret: libc::c_long) -> io::Result<libc::c_long> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// Converts bytes to a C string; fails on a NUL byte.
pub fn cstring(bytes: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "string contains a NUL byte"))
}

pub fn path_cstring(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    cstring(path.as_os_str().as_bytes())
}

/// Returns the text of an errno in runc's lower case, without Rust's "(os error N)".
pub fn errno_text(error: &io::Error) -> String {
    errno_text_of(&error.to_string())
}

/// Like [`errno_text`], for an error that was already formatted.
pub fn errno_text_of(text: &str) -> String {
    let text = text.split(" (os error").next().unwrap_or(text);
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().collect::<String>() + chars.as_str(),
        None => String::new(),
    }
}

/// The two sides of a fork.
pub enum Forked {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// Calls clone3(2) as a fork: the child has a copy of the memory and shares only what `flags` request. It
/// starts in `cgroup`, a cgroup v2 directory, which avoids a migration.
///
/// # Safety
/// The caller must be single-threaded: the child continues to run Rust code that allocates.
pub unsafe fn clone3(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: an all-zero clone_args is valid.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(fd) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = fd.as_raw_fd() as u64;
    }
    let mut pidfd: libc::c_int = -1;
    args.flags |= libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    // SAFETY: args outlives the call; without CLONE_VM the child has its own copy of everything.
    let pid = check_long(unsafe {
        libc::syscall(libc::SYS_clone3, &raw const args, std::mem::size_of::<libc::clone_args>())
    })?;
    // SAFETY: in the parent, the kernel stored a new descriptor in pidfd.
    Ok(unsafe { forked(pid, pidfd) })
}

/// Forks a process that becomes a child of the caller's parent, so that the parent is notified of its exit.
///
/// Uses clone(2), because seccomp filters that cannot inspect clone3's arguments refuse that call.
///
/// # Safety
/// As for [`clone3`].
pub unsafe fn clone_sibling(flags: u64) -> io::Result<Forked> {
    let mut pidfd: libc::c_int = -1;
    // With CLONE_PARENT, the child's exit signal is the same as the caller's.
    let flags = flags | (libc::CLONE_PARENT | libc::CLONE_PIDFD) as u64;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: guaranteed by the caller; without CLONE_VM the child continues on a copy of the stack.
    let pid = check_long(unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) })?;
    // SAFETY: in the parent, the kernel stored a new descriptor in pidfd.
    Ok(unsafe { forked(pid, pidfd) })
}

/// # Safety
/// In the parent, `pidfd` is a new descriptor that no other code owns.
unsafe fn forked(pid: libc::c_long, pidfd: RawFd) -> Forked {
    match pid {
        0 => Forked::Child,
        // SAFETY: guaranteed by the caller.
        pid => Forked::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } },
    }
}

pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

pub fn setns(fd: BorrowedFd<'_>, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor.
    check(unsafe { libc::setns(fd.as_raw_fd(), flags) }).map(drop)
}

pub fn setsid() -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::setsid() }).map(drop)
}

pub fn prctl(option: libc::c_int, arg2: libc::c_ulong, arg3: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: only options that take integers are passed here.
    check(unsafe { libc::prctl(option, arg2, arg3, 0 as libc::c_ulong, 0 as libc::c_ulong) })
}

/// Sets the name that `ps` and /proc/PID/comm show.
pub fn set_name(name: &CStr) -> io::Result<()> {
    // SAFETY: name is NUL-terminated; the kernel reads 16 bytes at the most.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) }).map(drop)
}

pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the result is a new descriptor, close-on-exec.
    check_long(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Returns the pid, in the caller's namespace, of the process that a pidfd refers to.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    (pid > 0).then_some(pid)
}

/// Opens the pid namespace of the process that a pidfd refers to, even if its pid is reused meanwhile.
pub fn pid_namespace_of(pidfd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let gone = || io::Error::from_raw_os_error(libc::ESRCH);
    let pid = pid_of(pidfd).ok_or_else(gone)?;
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/pid"))?;
    // A pid is reused only after its process was reaped, so the pid was still this process's when the file was
    // opened.
    if pid_of(pidfd) != Some(pid) {
        return Err(gone());
    }
    Ok(namespace.into())
}

pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo is allowed.
    check_long(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, std::ptr::null::<u8>(), 0)
    })
    .map(drop)
}

/// Reaps one exited child, if there is one, and returns its pid and raw wait status.
pub fn reap_one() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: status is a valid pointer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Waits until one child has ended.
pub fn wait_for(pid: i32) {
    let mut status = 0;
    // SAFETY: status is a valid pointer.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// Decodes a wait status into the exit code that a shell reports (128 + signal) and the signal.
pub fn decode_wait_status(status: i32) -> (i32, Option<i32>) {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        (128 + signal, Some(signal))
    } else {
        (libc::WEXITSTATUS(status), None)
    }
}

pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain system calls on an open descriptor.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

pub fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid for its length.
    let n = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

pub fn write(fd: BorrowedFd<'_>, buffer: &[u8]) -> io::Result<usize> {
    // SAFETY: the buffer is valid for its length.
    let n = unsafe { libc::write(fd.as_raw_fd(), buffer.as_ptr().cast(), buffer.len()) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Creates a pipe and returns (read end, write end), both close-on-exec.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fds has room for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: both descriptors are new.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Duplicates a descriptor onto `target`, without close-on-exec.
pub fn dup_to(fd: RawFd, target: RawFd) -> io::Result<()> {
    if fd == target {
        // SAFETY: plain system call. dup2 onto the same descriptor would keep close-on-exec.
        return check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }).map(drop);
    }
    // SAFETY: plain system call.
    check(unsafe { libc::dup2(fd, target) }).map(drop)
}

/// Marks every descriptor from `first` on as close-on-exec.
pub fn cloexec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: plain system call.
    check_long(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) })
        .map(drop)
}

/// Closes every descriptor from `first` on.
pub fn close_from(first: u32) -> io::Result<()> {
    close_range(first, u32::MAX)
}

/// Closes every descriptor except those listed.
///
/// Only for a newly cloned process that never drops objects inherited from its parent: their descriptors are
/// closed without their knowledge.
pub fn close_all_but(kept: &[RawFd]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    let mut first = 0;
    for fd in kept {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the callers make sure that none of these descriptors is used again.
    check_long(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) }).map(drop)
}

/// Prevents other processes from tracing this one and from opening its memory, program and descriptors through
/// /proc. Clones inherit this; execve reverts it, and a change of credentials may revert it, too.
pub fn make_undumpable() -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 0, 0).map(drop)
}

/// Gives the process a new, empty session keyring. Without one, all containers of the machine would share a
/// keyring and the keys in it.
///
/// A kernel without keys needs no keyring, and neither does a filter that denies the call to us and thereby to
/// all containers.
pub fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_ulong = 1;
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: a null name is allowed.
    let joined =
        check_long(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, anonymous) });
    match joined {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        other => other.map(drop),
    }
}

/// Blocks the signals that the shim reads from its signalfd and returns the descriptor.
pub fn child_signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised before use.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Resets a new process to the signal state that a program expects: no signal blocked, none ignored.
pub fn reset_signals() {
    // SAFETY: the set is initialised; SIG_DFL is valid for every signal, failures (KILL, STOP) are harmless.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Creates a node; `name` is one component below `folder`.
pub fn mknod_at(
    folder: BorrowedFd<'_>,
    name: &CStr,
    mode: libc::mode_t,
    device: libc::dev_t,
) -> io::Result<()> {
    // SAFETY: name is NUL-terminated.
    check(unsafe { libc::mknodat(folder.as_raw_fd(), name.as_ptr(), mode, device) }).map(drop)
}

/// Changes the owner; `name` is one component below `folder`. Of a symbolic link, the link itself is changed.
pub fn chown_at(folder: BorrowedFd<'_>, name: &CStr, uid: u32, gid: u32) -> io::Result<()> {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: name is NUL-terminated.
    check(unsafe { libc::fchownat(folder.as_raw_fd(), name.as_ptr(), uid, gid, flags) }).map(drop)
}

/// Returns the metadata of what a descriptor refers to, also if it was opened with O_PATH.
pub fn stat_of(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: an all-zero stat is valid and filled by the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd.as_raw_fd(), &raw mut stat))?;
        Ok(stat)
    }
}

/// Returns the magic number of the file system that a descriptor is on.
pub fn file_system_of(fd: BorrowedFd<'_>) -> io::Result<i64> {
    // SAFETY: an all-zero statfs is valid and filled by the call.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        check(libc::fstatfs(fd.as_raw_fd(), &raw mut stat))?;
        #[allow(clippy::unnecessary_cast, reason = "the type differs by architecture")]
        Ok(stat.f_type as i64)
    }
}

pub fn fchown(fd: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::fchown(fd.as_raw_fd(), uid, gid) }).map(drop)
}

/// Sets a terminal's size; fails without effect on any other file.
pub fn set_window_size(fd: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: size is valid for the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Brings up the loopback device of the calling process's network namespace.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: ifreq is zeroed and its name NUL-terminated; the socket is closed by OwnedFd.
    unsafe {
        let fd = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        let socket = OwnedFd::from_raw_fd(fd);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)).map(drop)
    }
}

pub fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: the pointer is valid for the length given.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Ends the process at once, without running destructors or exit handlers inherited from the parent.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: never returns.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_worded_as_go_words_it() {
        assert_eq!(errno_text(&io::Error::from_raw_os_error(libc::ENOENT)), "no such file or directory");
        assert_eq!(errno_text(&io::Error::from_raw_os_error(libc::EACCES)), "permission denied");
    }

    #[test]
    fn a_pid_namespace_is_that_of_its_process() {
        use std::os::fd::AsFd;
        use std::os::unix::fs::MetadataExt;
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = pidfd_open(child.id() as i32).unwrap();
        let found = std::fs::File::from(pid_namespace_of(pidfd.as_fd()).unwrap());
        let own = std::fs::metadata("/proc/self/ns/pid").unwrap();
        assert_eq!(found.metadata().unwrap().ino(), own.ino());
        child.kill().unwrap();
        child.wait().unwrap();
        let gone = pid_namespace_of(pidfd.as_fd()).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn wait_statuses() {
        assert_eq!(decode_wait_status(3 << 8), (3, None));
        assert_eq!(decode_wait_status(9), (137, Some(9)));
    }
}
