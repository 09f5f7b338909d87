//! Sets up a sandbox: namespaces, host name, sysctls, shared memory, socket.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use super::pause;
use super::serve::{Namespaces, Shim};
use super::user_namespace::UserNamespace;
use crate::containers::mount_api;
use crate::containers::spec::SandboxConfig;
use crate::containers::state::{self, SandboxFolder, SandboxRecord};
use crate::containers::sys::{self, errno_text, path_cstring};

/// A score with which the kernel kills every other process first, where the machine permits it.
const SHIM_OOM_SCORE_ADJ: &str = "-998";

fn step(what: &str) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("{what}: {}", errno_text(&error))
}

/// Sets up the sandbox in the calling process, which becomes its shim.
pub fn sandbox(folder: SandboxFolder, record: SandboxRecord) -> Result<Shim, String> {
    let config = &record.config;
    // SAFETY: plain system call.
    unsafe { libc::umask(0o022) };
    sys::setsid().map_err(step("setsid"))?;
    // Containers can see a process cloned from the shim before it has executed their program.
    sys::make_undumpable().map_err(step("hide from other processes"))?;
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).map_err(step("become subreaper"))?;
    let _ = fs::write("/proc/self/comm", "knarr-shim");
    let _ = fs::write("/proc/self/oom_score_adj", SHIM_OOM_SCORE_ADJ);
    fs::write(folder.pid_file(), std::process::id().to_string()).map_err(step("write pid file"))?;
    let user_namespace = config.user_namespace.map(UserNamespace::make).transpose()?;
    make_namespaces(config)?;
    if let Some(namespace) = &user_namespace {
        keep_namespace(&format!("/proc/self/fd/{}", namespace.fd().as_raw_fd()), &folder.userns())?;
    }
    if !config.host_network {
        keep_namespace("/proc/self/ns/net", &folder.netns())?;
    }
    let shm = if config.host_ipc { PathBuf::from("/dev/shm") } else { mount_shm(&folder.shm(), config)? };
    let signals = sys::child_signal_fd().map_err(step("signalfd"))?;
    let pause = if config.shared_pid { Some(pause::start(user_namespace.as_ref())?) } else { None };
    if let Some(pause) = &pause {
        mount_procfs(&folder.procfs(), &pause.procfs).map_err(step("mount the procfs of the sandbox"))?;
    }
    let listener = listen(&folder)?;
    state::make_private_folder(&folder.containers()).map_err(step("make state folder"))?;
    let namespaces = Namespaces { pause, user_namespace };
    Ok(Shim::new(folder, record, shm, signals, listener, namespaces))
}

/// Creates the remaining namespaces. With a user namespace, those for network, IPC and UTS already exist.
fn make_namespaces(config: &SandboxConfig) -> Result<(), String> {
    let mut flags = 0;
    if !config.host_network {
        flags |= libc::CLONE_NEWNET | libc::CLONE_NEWUTS;
    }
    if !config.host_ipc {
        flags |= libc::CLONE_NEWIPC;
    }
    if config.user_namespace.is_none() {
        sys::unshare(flags).map_err(step("make namespaces"))?;
    }
    if !config.host_network {
        sys::loopback_up().map_err(step("bring lo up"))?;
        if !config.hostname.is_empty() {
            sys::set_hostname(&config.hostname).map_err(step("set the host name"))?;
        }
    }
    for (name, value) in &config.sysctls {
        set_sysctl(config, name, value)?;
    }
    Ok(())
}

/// Sets a sysctl. Only those of the sandbox's own namespaces are accepted; others would change the host.
fn set_sysctl(config: &SandboxConfig, name: &str, value: &str) -> Result<(), String> {
    let ipc = name.starts_with("kernel.shm")
        || name.starts_with("kernel.msg")
        || name.starts_with("fs.mqueue.")
        || name == "kernel.sem";
    let own = (name.starts_with("net.") && !config.host_network) || (ipc && !config.host_ipc);
    if !own || name.contains("..") {
        return Err(format!("sysctl {name:?} is not in a separate kernel namespace"));
    }
    let path = if name.contains('/') { name.to_owned() } else { name.replace('.', "/") };
    fs::write(Path::new("/proc/sys").join(path), value).map_err(step(&format!("set sysctl {name:?}")))
}

fn keep_namespace(namespace: &str, path: &Path) -> Result<(), String> {
    let step = || step("keep the namespace");
    fs::File::create(path).map_err(step())?;
    let target = path_cstring(path).map_err(step())?;
    let source = sys::cstring(namespace).map_err(step())?;
    mount_api::mount(&source, &target, c"", libc::MS_BIND, c"").map_err(step())
}

fn mount_shm(path: &Path, config: &SandboxConfig) -> Result<PathBuf, String> {
    fs::create_dir_all(path).map_err(step("make shm folder"))?;
    let target = path_cstring(path).map_err(step("shm"))?;
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_NODEV;
    let root = config.user_namespace.map_or(0, |ids| ids.first);
    let data = format!("mode=1777,size={},uid={root},gid={root}", config.shm_bytes);
    let data = sys::cstring(data).map_err(step("shm"))?;
    mount_api::mount(c"shm", &target, c"tmpfs", flags, &data).map_err(step("mount shm"))?;
    Ok(path.to_owned())
}

/// Mounts the procfs where containers find it: before Linux 6.15 a detached mount cannot be cloned.
fn mount_procfs(path: &Path, procfs: &OwnedFd) -> io::Result<()> {
    state::make_private_folder(path)?;
    mount_api::move_mount(procfs.as_fd(), fs::File::open(path)?.as_fd())
}

/// Binds the socket by a relative name, because the full path may be longer than a socket address allows.
fn listen(folder: &SandboxFolder) -> Result<UnixListener, String> {
    std::env::set_current_dir(folder.path()).map_err(step("enter state folder"))?;
    let _ = fs::remove_file("shim.sock");
    let listener = UnixListener::bind("shim.sock").map_err(step("bind socket"))?;
    fs::set_permissions("shim.sock", fs::Permissions::from_mode(0o600)).map_err(step("protect socket"))?;
    listener.set_nonblocking(true).map_err(step("socket"))?;
    std::env::set_current_dir("/").map_err(step("leave state folder"))?;
    Ok(listener)
}

/// Redirects standard input and output to /dev/null. This closes the server's pipe, which signals that the shim
/// is ready.
pub fn leave_standard_streams() {
    if let Ok(null) = fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for target in 0..2 {
            let _ = sys::dup_to(std::os::fd::AsRawFd::as_raw_fd(&null.as_fd()), target);
        }
    }
}

/// Unmounts the sandbox's mounts; its namespaces end with the process.
pub fn tear_down(folder: &SandboxFolder) {
    for path in [folder.netns(), folder.userns(), folder.shm(), folder.procfs()] {
        if let Ok(target) = path_cstring(&path) {
            let _ = mount_api::unmount_detach(&target);
        }
    }
    let _ = fs::remove_file(folder.socket());
}
