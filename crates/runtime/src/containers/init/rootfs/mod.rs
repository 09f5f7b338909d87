//! A container's view of the file system: root, mounts, devices, masked and read-only paths.

mod binds;
mod devices;
mod mounts;
mod plan;
mod seal;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::Failure;
use super::root::Root;
use crate::containers::mount_api;
use crate::containers::spec::{MountKind, PidMode};
use crate::containers::sys::{self, path_cstring};
pub use devices::host_devices;
use plan::What;
pub use plan::{MASKED, READ_ONLY, RootfsPlan};
pub use seal::{NullCover, seal};

/// The clone flags a container's first process needs beside those of its sandbox.
pub fn clone_flags(pid_mode: PidMode) -> u64 {
    let pid = if pid_mode == PidMode::Container { libc::CLONE_NEWPID } else { 0 };
    (libc::CLONE_NEWNS | pid) as u64
}

/// Takes the container's root and makes all its mounts. Everything after pivot_root happens inside, on
/// descriptors, so that symbolic links of the image and of volumes cannot lead anywhere else.
pub fn enter(plan: &RootfsPlan) -> Result<Root, Failure> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").map_err(Failure::step("read mountinfo"))?;
    let mut binds: Vec<Option<OwnedFd>> = Vec::with_capacity(plan.mounts.len());
    for mount in &plan.mounts {
        binds.push(match &mount.what {
            What::Given(MountKind::Bind(bind)) => Some(binds::open(bind, &mount.destination, &mountinfo)?),
            _ => None,
        });
    }
    if !plan.privileged {
        sys::unshare(libc::CLONE_NEWCGROUP).map_err(Failure::step("unshare the cgroup namespace"))?;
    }
    let slave = libc::MS_SLAVE | libc::MS_REC;
    mount_api::mount(c"none", c"/", c"", slave, c"").map_err(Failure::step("make the root mount a slave"))?;
    pivot(&plan.rootfs).map_err(Failure::step(format!("enter rootfs {:?}", plan.rootfs)))?;
    let root = Root::of_process().map_err(Failure::step("open the root"))?;
    for (mount, bind) in plan.mounts.iter().zip(&binds) {
        mounts::attach(plan, &root, mount, bind.as_ref())?;
    }
    devices::make_given(&root, &plan.devices)?;
    Ok(root)
}

fn pivot(rootfs: &Path) -> io::Result<()> {
    let path = path_cstring(rootfs)?;
    mount_api::mount(&path, &path, c"", libc::MS_BIND | libc::MS_REC, c"")?;
    std::env::set_current_dir(rootfs)?;
    mount_api::pivot_to_cwd()
}
