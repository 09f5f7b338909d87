//! Device nodes: the standard ones, and the host's devices that a container gets.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::symlinkat;

use super::super::Failure;
use super::super::root::{Links, Root};
use crate::containers::mount_api;
use crate::containers::spec::{ContainerSpec, Device, ResolvedDevice};
use crate::containers::sys::{self, cstring, errno_text, path_cstring};

/// Standard devices: name, major, minor.
const STANDARD: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// More than a machine has; bounds the work for an unusual /dev.
const MAX_HOST_DEVICES: usize = 8192;

/// Links of a standard /dev: target, name.
const LINKS: [(&str, &str); 6] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("/proc/kcore", "core"),
    ("pts/ptmx", "ptmx"),
];

/// The devices of a container. In a user namespace no device node can be created, so the host's devices are
/// opened and mounted instead.
pub struct Devices {
    standard: Vec<Source>,
    given: Vec<Source>,
}

enum Source {
    Make,
    Mount(OwnedFd),
}

impl Devices {
    /// Opens the devices; must be called while the host's file system is still accessible.
    pub fn open(given: &[ResolvedDevice], in_user_namespace: bool) -> Result<Self, Failure> {
        let open = |path: &Path| {
            if !in_user_namespace {
                return Ok(Source::Make);
            }
            let tree = path_cstring(path).and_then(|path| mount_api::open_tree(&path, false));
            tree.map(Source::Mount).map_err(Failure::step(format!("open {path:?}")))
        };
        Ok(Self {
            standard: STANDARD
                .iter()
                .map(|(name, ..)| open(&Path::new("/dev").join(name)))
                .collect::<Result<_, _>>()?,
            given: given.iter().map(|device| open(&device.host_path)).collect::<Result<_, _>>()?,
        })
    }

    /// Creates the standard devices and links in a /dev that the runtime has mounted.
    pub fn make_standard(&self, dev: &OwnedFd) -> Result<(), Failure> {
        for ((name, major, minor), source) in STANDARD.into_iter().zip(&self.standard) {
            let node = Node { block: false, major, minor, mode: 0o666, uid: 0, gid: 0 };
            node.make(dev.as_fd(), name, source).map_err(Failure::step(format!("make /dev/{name}")))?;
        }
        for (target, name) in LINKS {
            symlinkat(target, dev, name)
                .map_err(|errno| Failure::step(format!("make /dev/{name}"))(errno.into()))?;
        }
        Ok(())
    }

    /// Creates the devices that the container gets, at the paths that its spec gives.
    pub fn make_given(&self, root: &Root, devices: &[ResolvedDevice]) -> Result<(), Failure> {
        for (device, source) in devices.iter().zip(&self.given) {
            let path = &device.container_path;
            let make = || {
                let (parent, name) = path.rsplit_once('/').unwrap_or(("/", path));
                let folder = root.folder(parent, Links::Follow)?;
                Node::of(device).make(folder.as_fd(), name, source)
            };
            make().map_err(Failure::step(format!("make {path}")))?;
        }
        Ok(())
    }
}

struct Node {
    block: bool,
    major: u32,
    minor: u32,
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Node {
    fn of(device: &ResolvedDevice) -> Self {
        Self {
            block: device.block,
            major: device.major,
            minor: device.minor,
            mode: device.mode,
            uid: device.uid,
            gid: device.gid,
        }
    }

    /// Creates the node; one that already exists stays unchanged.
    fn make(&self, folder: BorrowedFd<'_>, name: &str, source: &Source) -> io::Result<()> {
        match source {
            Source::Make => self.make_node(folder, name),
            Source::Mount(tree) => mount_device(folder, name, tree),
        }
    }

    fn make_node(&self, folder: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        let kind = if self.block { libc::S_IFBLK } else { libc::S_IFCHR };
        let name = cstring(name)?;
        let device = libc::makedev(self.major, self.minor);
        match sys::mknod_at(folder, &name, kind | self.mode, device) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            other => other?,
        }
        if (self.uid, self.gid) != (0, 0) {
            sys::chown_at(folder, &name, self.uid, self.gid)?;
        }
        Ok(())
    }
}

fn mount_device(folder: BorrowedFd<'_>, name: &str, tree: &OwnedFd) -> io::Result<()> {
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match openat(folder, name, flags, Mode::from_bits_truncate(0o644)) {
        Ok(target) => mount_api::move_mount(tree.as_fd(), target.as_fd()),
        Err(nix::errno::Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads the type and numbers of a host device; the path must be a device node.
fn resolve_device(device: &Device) -> io::Result<ResolvedDevice> {
    let metadata = fs::metadata(&device.host_path)?;
    let kind = metadata.file_type();
    if !kind.is_block_device() && !kind.is_char_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a device node"));
    }
    Ok(ResolvedDevice {
        host_path: device.host_path.clone(),
        container_path: device.container_path.clone(),
        block: kind.is_block_device(),
        major: libc::major(metadata.rdev()),
        minor: libc::minor(metadata.rdev()),
        mode: metadata.mode() & 0o777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        access: device.access.clone(),
    })
}

/// Returns the devices that a container gets: those listed, and with `privileged` all of the host's.
pub fn host_devices(spec: &ContainerSpec) -> Result<Vec<ResolvedDevice>, String> {
    let mut out = Vec::new();
    for device in &spec.devices {
        let resolved = resolve_device(device)
            .map_err(|error| format!("device {:?}: {}", device.host_path, errno_text(&error)))?;
        out.push(resolved);
    }
    if spec.privileged {
        walk_devices(Path::new("/dev"), &mut out, 0);
    }
    Ok(out)
}

fn walk_devices(folder: &Path, out: &mut Vec<ResolvedDevice>, depth: u32) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if out.len() >= MAX_HOST_DEVICES {
            return;
        }
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth < 8 {
            if !["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"]
                .iter()
                .any(|skip| name == *skip)
            {
                walk_devices(&path, out, depth + 1);
            }
        } else if (kind.is_block_device() || kind.is_char_device()) && name != "console" {
            let container_path = path.to_string_lossy().into_owned();
            let device = Device { host_path: path, container_path, access: "rwm".to_owned() };
            out.extend(resolve_device(&device).ok());
        }
    }
}
