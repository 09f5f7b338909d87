//! Plans the mounts, devices, masked and read-only paths of a container's root; without side effects.

use std::path::{Path, PathBuf};

use crate::containers::spec::{Bind, ContainerSpec, Mount, MountKind, ResolvedDevice};

/// Paths of the kernel that are hidden from a container unless its procMount is Unmasked, as in containerd and
/// the kubelet.
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

/// Paths of the kernel that a container can read but not write.
pub const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The origin of a container's procfs, which shows the pid namespace of the process that created it.
pub enum Procfs {
    /// The container creates one.
    Own,
    /// A clone of the procfs that is mounted at this path.
    Mounted(PathBuf),
    /// A clone of the procfs of the process whose pid namespace is joined.
    OfJoined,
}

/// What the containers of a sandbox share.
pub struct Shared<'a> {
    pub shm: &'a Path,
    pub procfs: Procfs,
}

/// The plan of a container's root.
pub struct RootfsPlan {
    pub procfs: Procfs,
    pub rootfs: PathBuf,
    pub rootfs_has_outside_ids: bool,
    pub readonly: bool,
    pub privileged: bool,
    pub mounts: Vec<Planned>,
    pub devices: Vec<ResolvedDevice>,
    pub masked: Vec<String>,
    pub read_only: Vec<String>,
    /// v1 hierarchies as mount options; empty on v2.
    pub cgroup_hierarchies: Vec<String>,
}

/// A mount with its destination.
pub struct Planned {
    pub destination: String,
    pub what: What,
}

/// What is mounted.
pub enum What {
    Given(MountKind),
    Dev,
    Devpts,
    Cgroup,
}

impl RootfsPlan {
    /// Plans the root of a container. Default mounts are added unless the spec has one of its own; outer mounts
    /// come first.
    pub fn of(
        spec: &ContainerSpec,
        shared: Shared<'_>,
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
        let shm = Bind { source: shared.shm.to_owned(), has_outside_ids: true, ..Bind::default() };
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
            procfs: shared.procfs,
            rootfs: spec.rootfs.clone(),
            rootfs_has_outside_ids: spec.rootfs_has_outside_ids,
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

/// Removes doubled and trailing slashes, `.` and `..`, without reading the file system.
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
        let plan =
            RootfsPlan::of(&spec, Shared { shm: Path::new("/shm"), procfs: Procfs::Own }, vec![], vec![]);
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
}
