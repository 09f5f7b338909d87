//! Attaches a plan's mounts inside the container's root.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::symlinkat;

use super::super::Failure;
use super::super::root::{Links, Root, is_folder};
use super::devices::Devices;
use super::plan::{RootfsPlan, What};
use crate::containers::mount_api::{
    self, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_NOSUID, MOUNT_ATTR_RDONLY, MOUNT_ATTR_STRICTATIME,
};
use crate::containers::spec::MountKind;
use crate::containers::sys;

pub const SAFE: u64 = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODEV;

const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// Files of procfs that a volume may cover, as in runc: lxcfs and similar file systems replace them.
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

/// A mount that is created but not yet attached.
pub enum Made {
    Bind(OwnedFd),
    Own(OwnedFd),
    Dev(OwnedFd),
    Cgroup(Cgroup),
}

/// The cgroup file system of v2; or, for v1, a folder and the hierarchies with their options.
pub enum Cgroup {
    V2(OwnedFd),
    V1 { folder: OwnedFd, hierarchies: Vec<(String, OwnedFd)> },
}

/// Creates one mount; `tree` is what was opened on the host for it: the tree of a bind mount, or the sandbox's
/// procfs.
///
/// All mounts are created while the host's file system is still accessible: in a user namespace, the kernel
/// creates a procfs or sysfs only if the process sees another, fully visible one.
pub fn make(plan: &RootfsPlan, what: &What, tree: Option<OwnedFd>) -> io::Result<Made> {
    Ok(match (what, tree) {
        (What::Given(MountKind::Proc), Some(procfs)) => Made::Own(procfs),
        (_, Some(tree)) => Made::Bind(tree),
        (what, None) => return make_own(plan, what),
    })
}

fn make_own(plan: &RootfsPlan, what: &What) -> io::Result<Made> {
    Ok(match what {
        What::Dev => Made::Dev(new(c"tmpfs", "mode=755,size=65536k", DEV)?),
        What::Cgroup => Made::Cgroup(make_cgroups(plan)?),
        What::Devpts => {
            let options = "newinstance,ptmxmode=0666,mode=0620,gid=5";
            Made::Own(new(c"devpts", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)?)
        }
        What::Given(kind) => Made::Own(given(kind)?),
    })
}

/// Attaches one mount at its destination.
pub fn attach(
    plan: &RootfsPlan,
    root: &Root,
    destination: &str,
    made: &Made,
    devices: &Devices,
) -> Result<(), Failure> {
    let attached = match made {
        Made::Bind(tree) => attach_bind(root, destination, tree),
        Made::Own(mount) => place(root, destination, mount),
        Made::Dev(dev) => {
            place(root, destination, dev).map_err(failed(destination))?;
            return devices.make_standard(dev);
        }
        Made::Cgroup(cgroup) => attach_cgroups(plan, root, destination, cgroup),
    };
    attached.map_err(failed(destination))
}

/// Describes a failed mount at `destination`.
pub fn failed(destination: &str) -> impl FnOnce(io::Error) -> Failure {
    Failure::step(format!("error mounting to rootfs at {destination:?}"))
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
        // Bind mounts already have their tree.
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

/// Attaches a mount of the runtime itself. If the image has a symbolic link on the path, the container does not
/// start, because paths that are masked or made read-only later would be elsewhere.
fn place(root: &Root, destination: &str, mount: &OwnedFd) -> io::Result<()> {
    let target = root.folder(destination, Links::Refuse)?;
    mount_api::move_mount(mount.as_fd(), target.as_fd())
}

fn attach_bind(root: &Root, destination: &str, tree: &OwnedFd) -> io::Result<()> {
    if destination == "/proc" && sys::file_system_of(tree.as_fd())? != PROC_SUPER_MAGIC {
        return Err(refused("only a procfs can be mounted at /proc"));
    }
    let target = if is_folder(tree.as_fd())? {
        root.folder(destination, Links::Follow)?
    } else {
        root.file(destination, Links::Follow)?
    };
    if is_same(target.as_fd(), root.fd())? {
        return Err(refused("the root itself cannot be mounted over"));
    }
    if sys::file_system_of(target.as_fd())? == PROC_SUPER_MAGIC && !coverable(destination) {
        return Err(refused("it would cover a part of /proc"));
    }
    mount_api::move_mount(tree.as_fd(), target.as_fd())
}

/// Returns whether two descriptors refer to the same file, whatever their paths.
fn is_same(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    let (one, other) = (sys::stat_of(one)?, sys::stat_of(other)?);
    Ok((one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}

fn coverable(destination: &str) -> bool {
    destination == "/proc" || COVERABLE.contains(&destination)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn make_cgroups(plan: &RootfsPlan) -> io::Result<Cgroup> {
    let attributes = SAFE | read_only(!plan.privileged);
    if plan.cgroup_hierarchies.is_empty() {
        return Ok(Cgroup::V2(new(c"cgroup2", "", attributes)?));
    }
    let mut hierarchies = Vec::with_capacity(plan.cgroup_hierarchies.len());
    for options in &plan.cgroup_hierarchies {
        hierarchies.push((options.clone(), new(c"cgroup", options, attributes)?));
    }
    Ok(Cgroup::V1 { folder: new(c"tmpfs", "mode=755", SAFE)?, hierarchies })
}

fn attach_cgroups(plan: &RootfsPlan, root: &Root, destination: &str, cgroup: &Cgroup) -> io::Result<()> {
    let (base, hierarchies) = match cgroup {
        Cgroup::V2(mount) => return place(root, destination, mount),
        Cgroup::V1 { folder, hierarchies } => (folder, hierarchies),
    };
    place(root, destination, base)?;
    for (options, mount) in hierarchies {
        mkdirat(base, options.as_str(), Mode::from_bits_truncate(0o755))?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder = openat(base, options.as_str(), flags, Mode::empty())?;
        mount_api::move_mount(mount.as_fd(), folder.as_fd())?;
        if options.contains(',') {
            for name in options.split(',') {
                symlinkat(options.as_str(), base, name)?;
            }
        }
    }
    if plan.privileged {
        return Ok(());
    }
    mount_api::set_attributes(base.as_fd(), MOUNT_ATTR_RDONLY, 0, false)
}
