//! Attaches a plan's mounts inside the container's root.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::symlinkat;

use super::super::Failure;
use super::super::root::{Links, Root, is_folder};
use super::devices;
use super::plan::{Planned, RootfsPlan, What};
use crate::containers::mount_api::{
    self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MOUNT_ATTR_STRICTATIME,
};
use crate::containers::spec::MountKind;
use crate::containers::sys;

pub const SAFE: u64 = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV;

const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Files of procfs that a volume may cover, as runc has them: what lxcfs and others show in their place.
const COVERABLE: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
];

/// Attaches one mount; `bind` is its tree if it is a bind mount.
pub fn attach(
    plan: &RootfsPlan,
    root: &Root,
    mount: &Planned,
    bind: Option<&OwnedFd>,
) -> Result<(), Failure> {
    let destination = mount.destination.as_str();
    let fail = |error| Failure::step(format!("error mounting to rootfs at {destination:?}"))(error);
    if let Some(tree) = bind {
        return attach_bind(root, destination, tree).map_err(fail);
    }
    match &mount.what {
        What::Dev => {
            let dev = place(root, destination, new(c"tmpfs", "mode=755,size=65536k", DEV)).map_err(fail)?;
            devices::make_standard(&dev)
        }
        What::Cgroup => mount_cgroups(plan, root, destination).map_err(fail),
        What::Devpts => {
            let options = "newinstance,ptmxmode=0666,mode=0620,gid=5";
            let mounted = new(c"devpts", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
            place(root, destination, mounted).map(drop).map_err(fail)
        }
        What::Given(kind) => place(root, destination, given(kind)).map(drop).map_err(fail),
    }
}

const DEV: u64 = MOUNT_ATTR_NOSUID | MOUNT_ATTR_STRICTATIME;

fn new(fstype: &std::ffi::CStr, options: &str, attributes: u64) -> io::Result<OwnedFd> {
    mount_api::new_mount(fstype, options, attributes)
}

fn read_only(yes: bool) -> u64 {
    if yes { MOUNT_ATTR_RDONLY } else { 0 }
}

fn given(kind: &MountKind) -> io::Result<OwnedFd> {
    match kind {
        // Bind mounts have their tree already.
        MountKind::Bind(_) => Err(io::ErrorKind::InvalidInput.into()),
        MountKind::Proc => new(c"proc", "", SAFE),
        MountKind::Sysfs { read_only: ro } => new(c"sysfs", "", SAFE | read_only(*ro)),
        MountKind::Mqueue => new(c"mqueue", "", SAFE),
        MountKind::Tmpfs { size_bytes, mode, read_only: ro } => {
            let size = size_bytes.map_or(String::new(), |bytes| format!(",size={bytes}"));
            let attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | read_only(*ro);
            new(c"tmpfs", &format!("mode={mode:o}{size}"), attributes)
        }
    }
}

/// Attaches what the runtime itself mounts. Where the image has a symbolic link in the way the container
/// does not start: what is masked and made read-only later would lie elsewhere.
fn place(root: &Root, destination: &str, mounted: io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let mounted = mounted?;
    let target = root.folder(destination, Links::Refuse)?;
    mount_api::move_mount(mounted.as_fd(), target.as_fd())?;
    Ok(mounted)
}

fn attach_bind(root: &Root, destination: &str, tree: &OwnedFd) -> io::Result<()> {
    check_destination(destination, tree)?;
    let target = if is_folder(tree.as_fd())? {
        root.folder(destination, Links::Follow)?
    } else {
        root.file(destination, Links::Follow)?
    };
    if sys::file_system_of(target.as_fd())? == PROC_SUPER_MAGIC && !coverable(destination) {
        return Err(refused("it would cover a part of /proc"));
    }
    mount_api::move_mount(tree.as_fd(), target.as_fd())
}

fn check_destination(destination: &str, tree: &OwnedFd) -> io::Result<()> {
    if destination == "/" {
        return Err(refused("the root itself cannot be mounted over"));
    }
    if destination == "/proc" && sys::file_system_of(tree.as_fd())? != PROC_SUPER_MAGIC {
        return Err(refused("only a procfs can be mounted at /proc"));
    }
    Ok(())
}

fn coverable(destination: &str) -> bool {
    destination == "/proc" || COVERABLE.contains(&destination)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn mount_cgroups(plan: &RootfsPlan, root: &Root, destination: &str) -> io::Result<()> {
    let attributes = SAFE | read_only(!plan.privileged);
    if plan.cgroup_hierarchies.is_empty() {
        return place(root, destination, new(c"cgroup2", "", attributes)).map(drop);
    }
    let base = place(root, destination, new(c"tmpfs", "mode=755", SAFE))?;
    for options in &plan.cgroup_hierarchies {
        mkdirat(&base, options.as_str(), Mode::from_bits_truncate(0o755))?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder = openat(&base, options.as_str(), flags, Mode::empty())?;
        mount_api::move_mount(new(c"cgroup", options, attributes)?.as_fd(), folder.as_fd())?;
        if options.contains(',') {
            for name in options.split(',') {
                symlinkat(options.as_str(), &base, name)?;
            }
        }
    }
    if plan.privileged {
        return Ok(());
    }
    mount_api::set_attributes(base.as_fd(), MOUNT_ATTR_RDONLY, 0, false)
}
