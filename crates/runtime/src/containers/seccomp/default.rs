//! The RuntimeDefault profile, which allows what containerd and Docker allow.

use super::profile::{Action, Arg, Operator, Profile, Rule};
use crate::containers::capabilities;

/// Calls that are allowed to every container.
const ALWAYS: &str = "
    accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown
    clock_adjtime clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range
    creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2
    epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2
    fadvise64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync
    fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex
    futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu
    getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp
    getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname
    getsockopt gettid gettimeofday getuid getxattr getxattrat inotify_add_watch inotify_init
    inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit ioctl
    ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown
    lgetxattr link linkat listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat
    madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat
    mlock mlock2 mlockall mmap modify_ldt mprotect mq_getsetattr mq_notify mq_open mq_timedreceive
    mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock munlockall munmap
    name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal pipe
    pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64
    process_mrelease process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read
    readahead readlink readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr
    removexattrat rename renameat renameat2 restart_syscall rmdir rseq rt_sigaction rt_sigpending
    rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
    sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg
    sendmsg sendto set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups
    setitimer setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt
    setuid setxattr setxattrat shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4
    socketpair splice stat statfs statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs
    sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
    timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat
    utime utimensat utimes vfork vmsplice wait4 waitid write writev
";

/// Calls that are allowed to a container with the capability.
const BY_CAPABILITY: &[(&str, &str)] = &[
    ("DAC_READ_SEARCH", "open_by_handle_at"),
    (
        "SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr \
         move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog \
         umount2 unshare",
    ),
    ("SYS_BOOT", "reboot"),
    ("SYS_CHROOT", "chroot"),
    ("SYS_MODULE", "delete_module init_module finit_module"),
    ("SYS_PACCT", "acct"),
    ("SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("SYS_RAWIO", "iopl ioperm"),
    ("SYS_TIME", "settimeofday clock_settime"),
    ("SYS_TTY_CONFIG", "vhangup"),
    ("SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    ("SYSLOG", "syslog"),
    ("BPF", "bpf"),
    ("PERFMON", "perf_event_open"),
];

/// Flags of clone(2) that create namespaces.
const NAMESPACE_FLAGS: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP) as u64;

/// personality(2) values that programs need: Linux, 32-bit addresses, UNAME26, both, and the query.
const PERSONALITIES: [u64; 5] = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

fn allow(names: &str, args: Vec<Arg>) -> Rule {
    Rule { names: names.split_whitespace().map(str::to_owned).collect(), action: Action::Allow, args }
}

/// Returns the profile for a container with these capabilities in its bounding set.
pub fn profile(bounding: u64) -> Profile {
    let arg = |index, operator, value, value_two| vec![Arg { index, operator, value, value_two }];
    let mut rules = vec![allow(ALWAYS, vec![])];
    rules.push(allow("socket", arg(0, Operator::NotEqual, libc::AF_VSOCK as u64, 0)));
    for value in PERSONALITIES {
        rules.push(allow("personality", arg(0, Operator::Equal, value, 0)));
    }
    for (capability, names) in BY_CAPABILITY {
        if capabilities::holds(bounding, capability) {
            rules.push(allow(names, vec![]));
        }
    }
    if !capabilities::holds(bounding, "SYS_ADMIN") {
        rules.push(allow("clone", arg(0, Operator::MaskedEqual, NAMESPACE_FLAGS, 0)));
        // A filter cannot read clone3's flags, which are in memory; ENOSYS makes C libraries fall back to
        // clone.
        rules.push(Rule {
            names: vec!["clone3".to_owned()],
            action: Action::Errno(libc::ENOSYS as u16),
            args: vec![],
        });
    }
    Profile { default_action: Action::Errno(libc::EPERM as u16), rules }
}

#[cfg(test)]
mod tests {
    use super::super::syscalls;
    use super::*;

    #[test]
    fn every_name_is_known() {
        let names =
            ALWAYS.split_whitespace().chain(BY_CAPABILITY.iter().flat_map(|(_, n)| n.split_whitespace()));
        // These calls exist on other architectures only.
        let foreign = ["sync_file_range2", "set_mempolicy_home_node"];
        for name in names.filter(|name| !foreign.contains(name)) {
            assert!(cfg!(not(target_arch = "x86_64")) || syscalls::number(name).is_some(), "{name}");
        }
    }
}
