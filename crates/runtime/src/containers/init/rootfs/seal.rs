//! The last changes to a container's root: read-only and masked paths, a read-only root.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::super::root::{Links, Root, is_folder};
use super::super::{Failure, null_device};
use super::mounts::SAFE;
use super::plan::RootfsPlan;
use crate::containers::mount_api::{self, MOUNT_ATTR_RDONLY};

/// A mount of the host's null device, which covers masked files.
pub struct NullCover {
    tree: OwnedFd,
    attached: bool,
}

impl NullCover {
    /// Mounts the device; must be called before the container's root is entered.
    pub fn open() -> io::Result<Self> {
        Ok(Self { tree: null_device::mount_of_host()?, attached: false })
    }

    /// Opens the device itself for standard streams; must also be called before the container's root is
    /// entered.
    pub fn device(&self) -> io::Result<OwnedFd> {
        null_device::of_host(self.tree.as_fd())
    }

    fn attach(&mut self, target: BorrowedFd<'_>) -> io::Result<()> {
        if self.attached {
            let copy = mount_api::open_tree_of(self.tree.as_fd(), false)?;
            return mount_api::move_mount(copy.as_fd(), target);
        }
        self.attached = true;
        mount_api::move_mount(self.tree.as_fd(), target)
    }
}

/// Applies the changes; all mounts must be attached already.
pub fn seal(plan: &RootfsPlan, root: &Root, mut null: NullCover) -> Result<(), Failure> {
    for path in &plan.read_only {
        make_read_only(root, path).map_err(Failure::step(format!("make {path:?} read-only")))?;
    }
    for path in &plan.masked {
        mask(root, path, &mut null).map_err(Failure::step(format!("mask {path:?}")))?;
    }
    if plan.readonly {
        mount_api::set_attributes(root.fd(), MOUNT_ATTR_RDONLY, 0, false)
            .map_err(Failure::step("make the root read-only"))?;
    }
    Ok(())
}

/// Returns the path's descriptor, if this kernel has the path.
fn present(root: &Root, path: &str) -> io::Result<Option<OwnedFd>> {
    match root.find(path, Links::Refuse) {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn make_read_only(root: &Root, path: &str) -> io::Result<()> {
    let Some(target) = present(root, path)? else { return Ok(()) };
    let tree = mount_api::open_tree_of(target.as_fd(), true)?;
    mount_api::set_attributes(tree.as_fd(), MOUNT_ATTR_RDONLY, 0, true)?;
    mount_api::move_mount(tree.as_fd(), target.as_fd())
}

fn mask(root: &Root, path: &str, null: &mut NullCover) -> io::Result<()> {
    let Some(target) = present(root, path)? else { return Ok(()) };
    if !is_folder(target.as_fd())? {
        return null.attach(target.as_fd());
    }
    let empty = mount_api::new_mount(c"tmpfs", "size=0k,nr_inodes=2", MOUNT_ATTR_RDONLY | SAFE)?;
    mount_api::move_mount(empty.as_fd(), target.as_fd())
}
