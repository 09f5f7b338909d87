//! A container's view of the file system: root, mounts, devices, masked and read-only paths.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::Failure;
use crate::containers::mount_api::{self, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_RDONLY};
use crate::containers::spec::{
    Bind, ContainerSpec, Device, Mount, MountKind, PidMode, Propagation, ResolvedDevice,
};
use crate::containers::sys::{self, cstring, errno_text, path_cstring};

const SAFE: libc::c_ulong = libc::MS_NOSUID | libc::MS_NOEXEC | libc::MS_NODEV;

/// What a container does not see of the kernel, unless its procMount is Unmasked: as containerd and the kubelet have it.
pub const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// What of it cannot be written to.
pub const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Standard devices: name, major, minor.
const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// More than a machine has; keeps a strange /dev from growing without bound.
const MAX_HOST_DEVICES: usize = 8192;

pub struct RootfsPlan {
    rootfs: PathBuf,
    readonly: bool,
    privileged: bool,
    mounts: Vec<Planned>,
    devices: Vec<ResolvedDevice>,
    masked: Vec<String>,
    read_only: Vec<String>,
    /// v1 hierarchies as mount options; empty on v2.
    cgroup_hierarchies: Vec<String>,
}

struct Planned {
    destination: String,
    what: What,
}

enum What {
    Given(MountKind),
    Dev,
    Devpts,
    Cgroup,
}

impl RootfsPlan {
    /// Default mounts where the spec has none of its own, outer ones first.
    pub fn of(
        spec: &ContainerSpec,
        shm: &Path,
        devices: Vec<ResolvedDevice>,
        cgroup_hierarchies: Vec<String>,
    ) -> Self {
        let mut mounts: Vec<Planned> = spec
            .mounts
            .iter()
            .map(|Mount { destination, kind }| Planned {
                destination: clean(destination),
                what: What::Given(kind.clone()),
            })
            .collect();
        let shm = Bind { source: shm.to_owned(), ..Bind::default() };
        let defaults = [
            ("/proc", What::Given(MountKind::Proc)),
            ("/dev", What::Dev),
            ("/dev/pts", What::Devpts),
            ("/dev/shm", What::Given(MountKind::Bind(shm))),
            ("/dev/mqueue", What::Given(MountKind::Mqueue)),
            ("/sys", What::Given(MountKind::Sysfs { read_only: !spec.privileged })),
            ("/sys/fs/cgroup", What::Cgroup),
        ];
        for (destination, what) in defaults {
            if !mounts.iter().any(|mount| mount.destination == destination) {
                mounts.push(Planned { destination: destination.to_owned(), what });
            }
        }
        mounts.sort_by_key(|mount| mount.destination.split('/').filter(|part| !part.is_empty()).count());
        let list = |given: &Option<Vec<String>>, default: &[&str]| match given {
            _ if spec.privileged => Vec::new(),
            Some(given) => given.clone(),
            None => default.iter().map(|path| (*path).to_owned()).collect(),
        };
        Self {
            rootfs: spec.rootfs.clone(),
            readonly: spec.readonly_rootfs,
            privileged: spec.privileged,
            mounts,
            devices,
            masked: list(&spec.masked_paths, &MASKED),
            read_only: list(&spec.readonly_paths, &READ_ONLY),
            cgroup_hierarchies,
        }
    }
}

/// Removes doubled and trailing slashes and `.` and `..` by text.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The clone flags a container's first process needs beside those of its sandbox.
pub fn clone_flags(pid_mode: PidMode) -> u64 {
    let pid = if pid_mode == PidMode::Container { libc::CLONE_NEWPID } else { 0 };
    (libc::CLONE_NEWNS | pid) as u64
}

/// Takes the container's root and makes all its mounts. Everything after pivot_root happens inside, so
/// that symbolic links in the image cannot lead anywhere else.
pub fn enter(plan: &RootfsPlan) -> Result<(), Failure> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").map_err(Failure::step("read mountinfo"))?;
    let mut binds: Vec<Option<OwnedFd>> = Vec::with_capacity(plan.mounts.len());
    for mount in &plan.mounts {
        binds.push(match &mount.what {
            What::Given(MountKind::Bind(bind)) => Some(open_bind(bind, &mount.destination, &mountinfo)?),
            _ => None,
        });
    }
    if !plan.privileged {
        sys::unshare(libc::CLONE_NEWCGROUP).map_err(Failure::step("unshare the cgroup namespace"))?;
    }
    let slave = libc::MS_SLAVE | libc::MS_REC;
    mount_api::mount(c"none", c"/", c"", slave, c"").map_err(Failure::step("make the root mount a slave"))?;
    pivot(&plan.rootfs).map_err(Failure::step(format!("enter rootfs {:?}", plan.rootfs)))?;
    for (mount, bind) in plan.mounts.iter().zip(&binds) {
        attach(plan, mount, bind.as_ref()).map_err(|error| Failure {
            message: format!("error mounting to rootfs at {:?}: {}", mount.destination, errno_text(&error)),
            exit_code: 128,
        })?;
    }
    make_devices(plan)
}

/// The last changes, which need /dev complete: masked and read-only paths, read-only root.
pub fn seal(plan: &RootfsPlan) -> Result<(), Failure> {
    for path in &plan.read_only {
        make_read_only(path).map_err(Failure::step(format!("make {path:?} read-only")))?;
    }
    for path in &plan.masked {
        mask(path).map_err(Failure::step(format!("mask {path:?}")))?;
    }
    if plan.readonly {
        remount_root_read_only().map_err(Failure::step("make the root read-only"))?;
    }
    Ok(())
}

fn open_bind(bind: &Bind, destination: &str, mountinfo: &str) -> Result<OwnedFd, Failure> {
    let source = &bind.source;
    let what = || format!("error mounting {source:?} to rootfs at {destination:?}");
    let path = path_cstring(source).map_err(Failure::step(what()))?;
    let tree = mount_api::open_tree(&path, true).map_err(Failure::step(what()))?;
    let propagation = match bind.propagation {
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::HostToContainer => libc::MS_SLAVE,
        Propagation::Bidirectional => {
            if let Some(mount_point) = not_shared(source, mountinfo) {
                let message =
                    format!("path {source:?} is mounted on {mount_point:?} but it is not a shared mount");
                return Err(Failure { message, exit_code: 128 });
            }
            libc::MS_SHARED
        }
    };
    mount_api::set_attributes(tree.as_fd(), 0, propagation, true).map_err(Failure::step(what()))?;
    if bind.read_only {
        let recursive = bind.recursive_read_only;
        mount_api::set_attributes(tree.as_fd(), MOUNT_ATTR_RDONLY, 0, recursive)
            .map_err(Failure::step(what()))?;
    }
    if bind.no_exec {
        mount_api::set_attributes(tree.as_fd(), MOUNT_ATTR_NOEXEC, 0, false)
            .map_err(Failure::step(what()))?;
    }
    Ok(tree)
}

/// The mount point that `path` lies on, if mounts made there do not reach other namespaces.
fn not_shared(path: &Path, mountinfo: &str) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let mut best: Option<(String, bool)> = None;
    for line in mountinfo.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let Some(point) = fields.get(4) else { continue };
        let point = point.replace("\\040", " ");
        // Of several mounts on one point the last covers the others.
        if path.starts_with(&point) && best.as_ref().is_none_or(|(known, _)| point.len() >= known.len()) {
            let optional = fields.iter().skip(6).take_while(|field| **field != "-");
            best = Some((point, optional.into_iter().any(|field| field.starts_with("shared:"))));
        }
    }
    best.and_then(|(point, shared)| (!shared).then_some(point))
}

fn pivot(rootfs: &Path) -> io::Result<()> {
    let path = path_cstring(rootfs)?;
    mount_api::mount(&path, &path, c"", libc::MS_BIND | libc::MS_REC, c"")?;
    std::env::set_current_dir(rootfs)?;
    mount_api::pivot_to_cwd()
}

fn attach(plan: &RootfsPlan, mount: &Planned, bind: Option<&OwnedFd>) -> io::Result<()> {
    let target = cstring(mount.destination.as_str())?;
    if let Some(tree) = bind {
        // SAFETY: an all-zero stat is valid and filled by the call.
        let directory = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            sys::check(libc::fstat(std::os::fd::AsRawFd::as_raw_fd(tree), &raw mut stat))?;
            stat.st_mode & libc::S_IFMT == libc::S_IFDIR
        };
        make_mount_point(&mount.destination, directory)?;
        return mount_api::move_mount(tree.as_fd(), &target);
    }
    make_mount_point(&mount.destination, true)?;
    let ro = |read_only: bool| if read_only { libc::MS_RDONLY } else { 0 };
    match &mount.what {
        What::Given(MountKind::Bind(_)) => Ok(()),
        What::Given(MountKind::Proc) => mount_api::mount(c"proc", &target, c"proc", SAFE, c""),
        What::Given(MountKind::Sysfs { read_only }) => {
            mount_api::mount(c"sysfs", &target, c"sysfs", SAFE | ro(*read_only), c"")
        }
        What::Given(MountKind::Mqueue) => mount_api::mount(c"mqueue", &target, c"mqueue", SAFE, c""),
        What::Given(MountKind::Tmpfs { size_bytes, mode, read_only }) => {
            let size = size_bytes.map_or(String::new(), |bytes| format!(",size={bytes}"));
            let data = cstring(format!("mode={mode:o}{size}"))?;
            let flags = libc::MS_NOSUID | libc::MS_NODEV | ro(*read_only);
            mount_api::mount(c"tmpfs", &target, c"tmpfs", flags, &data)
        }
        What::Dev => {
            let flags = libc::MS_NOSUID | libc::MS_STRICTATIME;
            mount_api::mount(c"tmpfs", &target, c"tmpfs", flags, c"mode=755,size=65536k")
        }
        What::Devpts => {
            let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
            let data = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
            mount_api::mount(c"devpts", &target, c"devpts", flags, data)
        }
        What::Cgroup => mount_cgroups(plan, &mount.destination),
    }
}

fn mount_cgroups(plan: &RootfsPlan, destination: &str) -> io::Result<()> {
    let flags = SAFE | if plan.privileged { 0 } else { libc::MS_RDONLY };
    let target = cstring(destination)?;
    if plan.cgroup_hierarchies.is_empty() {
        return mount_api::mount(c"cgroup", &target, c"cgroup2", flags, c"");
    }
    mount_api::mount(c"tmpfs", &target, c"tmpfs", SAFE, c"mode=755")?;
    for options in &plan.cgroup_hierarchies {
        let folder = format!("{destination}/{options}");
        fs::create_dir(&folder)?;
        mount_api::mount(c"cgroup", &cstring(folder)?, c"cgroup", flags, &cstring(options.as_str())?)?;
        if options.contains(',') {
            for name in options.split(',') {
                symlink(options, format!("{destination}/{name}"))?;
            }
        }
    }
    if !plan.privileged {
        let remount = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | SAFE;
        mount_api::mount(c"tmpfs", &target, c"", remount, c"")?;
    }
    Ok(())
}

fn make_mount_point(destination: &str, directory: bool) -> io::Result<()> {
    if fs::metadata(destination).is_ok() {
        return Ok(());
    }
    let builder = |path: &Path| {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o755).create(path)
    };
    let path = Path::new(destination);
    if directory {
        return builder(path);
    }
    if let Some(parent) = path.parent() {
        builder(parent)?;
    }
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path).map(drop)
}

fn make_devices(plan: &RootfsPlan) -> Result<(), Failure> {
    let own_dev = plan.mounts.iter().any(|mount| matches!(mount.what, What::Dev));
    if own_dev {
        for (name, major, minor) in DEVICES {
            make_node(&format!("/dev/{name}"), false, (major, minor), 0o666, (0, 0))
                .map_err(Failure::step(format!("make /dev/{name}")))?;
        }
        let links = [
            ("/proc/self/fd", "/dev/fd"),
            ("/proc/self/fd/0", "/dev/stdin"),
            ("/proc/self/fd/1", "/dev/stdout"),
            ("/proc/self/fd/2", "/dev/stderr"),
            ("/proc/kcore", "/dev/core"),
            ("pts/ptmx", "/dev/ptmx"),
        ];
        for (target, link) in links {
            let _ = symlink(target, link);
        }
    }
    for device in &plan.devices {
        let path = &device.container_path;
        if let Some(parent) = Path::new(path).parent() {
            make_mount_point(&parent.to_string_lossy(), true)
                .map_err(Failure::step(format!("make {path}")))?;
        }
        make_node(path, device.block, (device.major, device.minor), device.mode, (device.uid, device.gid))
            .map_err(Failure::step(format!("make {path}")))?;
    }
    Ok(())
}

fn make_node(
    path: &str,
    block: bool,
    (major, minor): (u32, u32),
    mode: u32,
    (uid, gid): (u32, u32),
) -> io::Result<()> {
    let kind = if block { libc::S_IFBLK } else { libc::S_IFCHR };
    let path = cstring(path)?;
    match sys::mknod(&path, kind | mode, libc::makedev(major, minor)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        other => other?,
    }
    if (uid, gid) != (0, 0) {
        sys::chown(&path, uid, gid)?;
    }
    Ok(())
}

/// What a device of the host is; the path must be a device node.
fn resolve_device(device: &Device) -> io::Result<ResolvedDevice> {
    let metadata = fs::metadata(&device.host_path)?;
    let kind = metadata.file_type();
    if !kind.is_block_device() && !kind.is_char_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a device node"));
    }
    Ok(ResolvedDevice {
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

/// The devices a container is given: those listed, with `privileged` all of the host's.
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

fn make_read_only(path: &str) -> io::Result<()> {
    let target = cstring(path)?;
    let tree = match mount_api::open_tree(&target, true) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    mount_api::set_attributes(tree.as_fd(), MOUNT_ATTR_RDONLY, 0, true)?;
    mount_api::move_mount(tree.as_fd(), &target)
}

fn mask(path: &str) -> io::Result<()> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    let target = cstring(path)?;
    if metadata.is_dir() {
        let flags = libc::MS_RDONLY | SAFE;
        return mount_api::mount(c"tmpfs", &target, c"tmpfs", flags, c"size=0k,nr_inodes=2");
    }
    let null = mount_api::open_tree(c"/dev/null", false)?;
    mount_api::move_mount(null.as_fd(), &target)
}

fn remount_root_read_only() -> io::Result<()> {
    let root = fs::File::open("/")?;
    mount_api::set_attributes(root.as_fd(), MOUNT_ATTR_RDONLY, 0, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_mounts_take_the_place_of_defaults() {
        let tmpfs = MountKind::Tmpfs { size_bytes: None, mode: 0o1777, read_only: false };
        let spec = ContainerSpec {
            mounts: vec![
                Mount { destination: "/data/a/b".into(), kind: tmpfs.clone() },
                Mount { destination: "/dev/shm/".into(), kind: tmpfs.clone() },
                Mount { destination: "/data".into(), kind: tmpfs },
            ],
            ..ContainerSpec::default()
        };
        let plan = RootfsPlan::of(&spec, Path::new("/shm"), vec![], vec![]);
        let order: Vec<&str> = plan.mounts.iter().map(|mount| mount.destination.as_str()).collect();
        let want = [
            "/data",
            "/proc",
            "/dev",
            "/sys",
            "/dev/shm",
            "/dev/pts",
            "/dev/mqueue",
            "/data/a/b",
            "/sys/fs/cgroup",
        ];
        assert_eq!(order, want);
        assert_eq!(plan.masked.len(), MASKED.len());
    }

    #[test]
    fn paths_are_cleaned() {
        for (path, want) in [("/a//b/", "/a/b"), ("/", "/"), ("/a/../../b/.", "/b")] {
            assert_eq!(clean(path), want);
        }
    }

    #[test]
    fn shared_mounts_are_recognised() {
        let info = "1 0 1:1 / / rw shared:1 - ext4 a rw\n2 1 1:2 / /tmp rw - tmpfs t rw\n";
        assert_eq!(not_shared(Path::new("/usr"), info), None);
        assert_eq!(not_shared(Path::new("/tmp"), info), Some("/tmp".to_owned()));
    }
}
