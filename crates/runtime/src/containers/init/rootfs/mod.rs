//! A container's view of the file system: root, mounts, devices, masked and read-only paths.

mod binds;
mod devices;
mod mounts;
mod plan;
mod procfs;
mod seal;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::Failure;
use super::root::Root;
use crate::containers::mount_api;
use crate::containers::spec::{MountKind, PidMode};
use crate::containers::sys::{self, path_cstring};
use devices::Devices;
pub use devices::host_devices;
pub use plan::{MASKED, Planned, Procfs, READ_ONLY, RootfsPlan, Shared, What};
pub use seal::{NullCover, seal};

/// Returns the clone flags that a container's first process needs in addition to its sandbox's namespaces. With
/// a user namespace there are none: the process creates its namespaces after it has entered that one.
pub fn clone_flags(pid_mode: &PidMode, in_user_namespace: bool) -> u64 {
    if in_user_namespace {
        return 0;
    }
    let pid = if *pid_mode == PidMode::Container { libc::CLONE_NEWPID } else { 0 };
    (libc::CLONE_NEWNS | pid) as u64
}

/// Descriptors that were opened in the host's file system.
pub struct FromHost {
    root: OwnedFd,
    binds: Vec<Option<OwnedFd>>,
    devices: Devices,
}

impl FromHost {
    /// Opens them with the host's rights, which id-mapping requires. `user_namespace` is the sandbox's, if it
    /// has one; `joined` is a process of the pid namespace that the container joins.
    pub fn open(
        plan: &RootfsPlan,
        user_namespace: Option<BorrowedFd<'_>>,
        joined: Option<BorrowedFd<'_>>,
    ) -> Result<Self, Failure> {
        let mountinfo =
            fs::read_to_string("/proc/self/mountinfo").map_err(Failure::step("read mountinfo"))?;
        let mut opened = Vec::with_capacity(plan.mounts.len());
        for mount in &plan.mounts {
            opened.push(match &mount.what {
                What::Given(MountKind::Bind(bind)) => {
                    Some(binds::open(bind, &mount.destination, &mountinfo, user_namespace)?)
                }
                What::Given(MountKind::Proc) => match (&plan.procfs, joined) {
                    (Procfs::Mounted(path), _) => Some(procfs::mounted(path)),
                    (Procfs::OfJoined, Some(joined)) => Some(procfs::of_process(joined)),
                    (Procfs::Own, _) | (Procfs::OfJoined, None) => None,
                }
                .transpose()
                .map_err(mounts::failed(&mount.destination))?,
                _ => None,
            });
        }
        let what = || format!("open rootfs {:?}", plan.rootfs);
        let path = path_cstring(&plan.rootfs).map_err(Failure::step(what()))?;
        let root = mount_api::open_tree(&path, true).map_err(Failure::step(what()))?;
        if let Some(namespace) = user_namespace.filter(|_| !plan.rootfs_has_outside_ids) {
            binds::map_ids(&root, &plan.rootfs, namespace)?;
        }
        let devices = Devices::open(&plan.devices, user_namespace.is_some())?;
        Ok(Self { root, binds: opened, devices })
    }
}

/// Enters the container's root and attaches all its mounts. Everything after pivot_root happens inside, on
/// descriptors, so that symbolic links of the image and of volumes cannot lead anywhere else.
pub fn enter(plan: &RootfsPlan, from: FromHost) -> Result<Root, Failure> {
    if !plan.privileged {
        sys::unshare(libc::CLONE_NEWCGROUP).map_err(Failure::step("unshare the cgroup namespace"))?;
    }
    let slave = libc::MS_SLAVE | libc::MS_REC;
    mount_api::mount(c"none", c"/", c"", slave, c"").map_err(Failure::step("make the root mount a slave"))?;
    let mut made = Vec::with_capacity(plan.mounts.len());
    for (mount, bind) in plan.mounts.iter().zip(from.binds) {
        let failed = mounts::failed(&mount.destination);
        made.push(mounts::make(plan, &mount.what, bind).map_err(failed)?);
    }
    mount_api::pivot_to(from.root.as_fd())
        .map_err(Failure::step(format!("enter rootfs {:?}", plan.rootfs)))?;
    let root = Root::of_process().map_err(Failure::step("open the root"))?;
    for (mount, made) in plan.mounts.iter().zip(&made) {
        mounts::attach(plan, &root, &mount.destination, made, &from.devices)?;
    }
    from.devices.make_given(&root, &plan.devices)?;
    Ok(root)
}
