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

pub fn cstring(bytes: impl Into<Vec<u8>>) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "string contains a NUL byte"))
}

pub fn path_cstring(path: &Path) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    cstring(path.as_os_str().as_bytes())
}

/// The text of an errno without Rust's "(os error N)" and in runc's lower case.
pub fn errno_text(error: &io::Error) -> String {
    errno_text_of(&error.to_string())
}

/// As [`errno_text`], for an error already printed.
pub fn errno_text_of(text: &str) -> String {
    let text = text.split(" (os error").next().unwrap_or(text);
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().collect::<String>() + chars.as_str(),
        None => String::new(),
    }
}

pub enum Forked {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// clone3(2) as a fork: copies memory, shares nothing but what `flags` say. `cgroup` is a cgroup v2
/// directory in which the child begins its life, which avoids a migration.
///
/// # Safety
/// The caller must be single-threaded: the child goes on running Rust code that allocates.
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
    // SAFETY: in the parent, the kernel stored a fresh descriptor in pidfd.
    Ok(unsafe { forked(pid, pidfd) })
}

/// A fork whose new process becomes a child of the caller's parent, which learns of its end.
///
/// By clone(2), because filters that cannot look into clone3's arguments refuse that one.
///
/// # Safety
/// As for [`clone3`].
pub unsafe fn clone_sibling(flags: u64) -> io::Result<Forked> {
    let mut pidfd: libc::c_int = -1;
    // The signal at its end is the caller's own.
    let flags = flags | (libc::CLONE_PARENT | libc::CLONE_PIDFD) as u64;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the caller's promise; without CLONE_VM the child goes on with a copy of the stack.
    let pid = check_long(unsafe { libc::syscall(libc::SYS_clone, flags, none, &raw mut pidfd, none, none) })?;
    // SAFETY: in the parent, the kernel stored a fresh descriptor in pidfd.
    Ok(unsafe { forked(pid, pidfd) })
}

/// # Safety
/// In the parent, `pidfd` is a fresh descriptor.
unsafe fn forked(pid: libc::c_long, pidfd: RawFd) -> Forked {
    match pid {
        0 => Forked::Child,
        // SAFETY: the caller's promise.
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

/// The name that `ps` and /proc/PID/comm show.
pub fn set_name(name: &CStr) -> io::Result<()> {
    // SAFETY: name is NUL-terminated; the kernel reads 16 bytes at the most.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) }).map(drop)
}

pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain system call.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the result is a fresh descriptor, close-on-exec.
    check_long(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The pid, in the caller's namespace, of the process that a pidfd stands for.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
    (pid > 0).then_some(pid)
}

/// The pid namespace of the process that a pidfd stands for, whatever becomes of its pid.
pub fn pid_namespace_of(pidfd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let gone = || io::Error::from_raw_os_error(libc::ESRCH);
    let pid = pid_of(pidfd).ok_or_else(gone)?;
    let namespace = std::fs::File::open(format!("/proc/{pid}/ns/pid"))?;
    // A pid is given to another process only once its own is reaped: it was this one's when the file was opened.
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

/// Reaps one exited child, if there is one: its pid and raw wait status.
pub fn reap_one() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: status is a valid pointer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

/// Waits for the end of one child.
pub fn wait_for(pid: i32) {
    let mut status = 0;
    // SAFETY: status is a valid pointer.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// Exit code as a shell counts it (128 + signal), and the signal.
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

/// A pipe, both ends close-on-exec: (read end, write end).
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: fds has room for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: both descriptors are fresh.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

pub fn dup_to(fd: RawFd, target: RawFd) -> io::Result<()> {
    if fd == target {
        // SAFETY: plain system call; dup2 onto itself would keep close-on-exec.
        return check(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }).map(drop);
    }
    // SAFETY: plain system call.
    check(unsafe { libc::dup2(fd, target) }).map(drop)
}

/// Marks every descriptor from `first` on close-on-exec.
pub fn cloexec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: plain system call.
    check_long(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) })
        .map(drop)
}

pub fn close_from(first: u32) -> io::Result<()> {
    close_range(first, u32::MAX)
}

/// Closes every descriptor but those listed.
///
/// For a freshly cloned process that never drops what it inherited: the copies of the parent's objects
/// name descriptors that are gone.
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
    // SAFETY: the callers know that none of these descriptors is used again.
    check_long(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) }).map(drop)
}

/// Keeps other processes from tracing this one and from opening its memory, program and descriptors
/// through /proc. Inherited by clones, undone by execve; a change of credentials may undo it, too.
pub fn make_undumpable() -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, 0, 0).map(drop)
}

/// Gives the process a new, empty session keyring; without it the whole machine's containers share one,
/// and with it what they keep there.
///
/// A kernel without keys, or a filter that keeps us and thereby all containers from them, needs none.
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

/// Gives a new process the signal state a program expects: nothing blocked, nothing ignored.
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

/// `name` is one component below `folder`.
pub fn mknod_at(
    folder: BorrowedFd<'_>,
    name: &CStr,
    mode: libc::mode_t,
    device: libc::dev_t,
) -> io::Result<()> {
    // SAFETY: name is NUL-terminated.
    check(unsafe { libc::mknodat(folder.as_raw_fd(), name.as_ptr(), mode, device) }).map(drop)
}

/// `name` is one component below `folder`; a symbolic link is changed itself.
pub fn chown_at(folder: BorrowedFd<'_>, name: &CStr, uid: u32, gid: u32) -> io::Result<()> {
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: name is NUL-terminated.
    check(unsafe { libc::fchownat(folder.as_raw_fd(), name.as_ptr(), uid, gid, flags) }).map(drop)
}

/// What a descriptor is, also one opened with O_PATH.
pub fn stat_of(fd: BorrowedFd<'_>) -> io::Result<libc::stat> {
    // SAFETY: an all-zero stat is valid and filled by the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd.as_raw_fd(), &raw mut stat))?;
        Ok(stat)
    }
}

/// The magic number of the file system that a descriptor lies on.
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

/// Sets a terminal's size; harmless on anything else.
pub fn set_window_size(fd: BorrowedFd<'_>, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: size is valid for the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Brings the loopback device of the calling process's network namespace up.
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

/// Ends the process at once, without destructors or exit handlers that belong to the parent.
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
