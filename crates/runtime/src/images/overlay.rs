//! Mounting and unmounting overlayfs, with any number of layers.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::containers::mount_api::{self, MOUNT_ATTR_RDONLY};

/// The user namespace whose ids a mount's files are shown with.
#[derive(Debug, Clone)]
pub struct MappedIds {
    pub user_namespace: Arc<OwnedFd>,
    /// What its root is outside.
    pub root: u32,
}

/// What to stack: `lowerdirs` topmost first, all below `dir`'s `upper`, `work` and `rootfs`.
#[derive(Debug, Clone)]
pub struct OverlayMount {
    /// Holds `upper`, `work`, `rootfs` (the target) and `l`, short links to the lower directories.
    pub dir: PathBuf,
    pub lowerdirs: Vec<PathBuf>,
}

impl OverlayMount {
    pub fn target(&self) -> PathBuf {
        self.dir.join("rootfs")
    }

    /// Makes the links that keep the option string short: mount(2) takes one page of it, which absolute paths
    /// of some sixty layers fill.
    pub fn prepare(dir: &Path, lowerdirs: &[PathBuf]) -> io::Result<()> {
        for name in ["upper", "work", "rootfs", "l"] {
            fs::create_dir(dir.join(name))?;
        }
        for (n, lower) in lowerdirs.iter().enumerate() {
            symlink(lower, dir.join("l").join(n.to_string()))?;
        }
        Ok(())
    }

    /// Mounts unless it is mounted already. A read-only one leaves the upper directory out of use.
    pub fn mount(&self) -> io::Result<()> {
        if self.is_mounted()? {
            return Ok(());
        }
        let (options, target) = (self.options("l"), self.target());
        in_directory(self.dir.clone(), move || overlay(&target, &options))
    }

    /// As [`OverlayMount::mount`], with the layers' files shown with the ids of a user namespace. What is
    /// written carries the outside ids.
    ///
    /// overlayfs cannot be id-mapped itself, so its layers are: in a mount namespace of the thread's own,
    /// which ends with it and takes their mounts along, whatever happens on the way. The overlay alone is
    /// taken out of there.
    pub fn mount_mapped(&self, ids: &MappedIds) -> io::Result<()> {
        if self.is_mounted()? {
            return Ok(());
        }
        for name in ["upper", "work"] {
            chown(self.dir.join(name), Some(ids.root), Some(ids.root))?;
        }
        fs::create_dir_all(self.dir.join("m"))?;
        let (overlaid, ids) = (self.clone(), ids.clone());
        in_directory(self.dir.clone(), move || {
            let home = File::open("/proc/thread-self/ns/mnt")?;
            unshare(CloneFlags::CLONE_NEWNS)?;
            let private = MsFlags::MS_PRIVATE | MsFlags::MS_REC;
            mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
            for (n, layer) in overlaid.lowerdirs.iter().enumerate() {
                let target = overlaid.dir.join("m").join(n.to_string());
                fs::create_dir_all(&target)?;
                let tree = open_tree(layer)?;
                mount_api::set_attributes(tree.as_fd(), MOUNT_ATTR_RDONLY, 0, false)?;
                mount_api::map_ids(tree.as_fd(), ids.user_namespace.as_fd())?;
                mount_api::move_mount(tree.as_fd(), File::open(target)?.as_fd())?;
            }
            let target = overlaid.target();
            overlay(&target, &overlaid.options("m"))?;
            let tree = open_tree(&target)?;
            setns(home, CloneFlags::CLONE_NEWNS)?;
            mount_api::move_mount(tree.as_fd(), File::open(target)?.as_fd())
        })
    }

    /// `layers` is the folder with a short name for each of them.
    fn options(&self, layers: &str) -> String {
        let lower: Vec<String> = (0..self.lowerdirs.len()).map(|n| format!("{layers}/{n}")).collect();
        format!("index=off,lowerdir={},upperdir=upper,workdir=work", lower.join(":"))
    }

    /// Unmounts, detaching if something still uses it; fine if it is not mounted.
    pub fn unmount(&self) -> io::Result<()> {
        /// The same target can have been mounted over by mistake, hardly more often than this.
        const MAX_MOUNTS: usize = 8;
        let target = self.target();
        for _ in 0..MAX_MOUNTS {
            if !self.is_mounted()? {
                return Ok(());
            }
            match umount2(&target, MntFlags::UMOUNT_NOFOLLOW) {
                Ok(()) => {}
                Err(nix::Error::EINVAL) => return Ok(()),
                Err(nix::Error::EBUSY) => {
                    umount2(&target, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH)?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::Error::other("still mounted after unmounting it several times"))
    }

    /// A mounted overlay is a device of its own.
    pub fn is_mounted(&self) -> io::Result<bool> {
        let outside = fs::symlink_metadata(&self.dir)?;
        match fs::symlink_metadata(self.target()) {
            Ok(inside) => Ok(inside.dev() != outside.dev()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            // A mount whose layers were taken away is still one.
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => Ok(true),
            Err(e) => Err(e),
        }
    }
}

fn overlay(target: &Path, options: &str) -> io::Result<()> {
    let overlay = Some("overlay");
    Ok(mount(overlay, target, overlay, MsFlags::empty(), Some(options))?)
}

fn open_tree(path: &Path) -> io::Result<OwnedFd> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    mount_api::open_tree(&path, false)
}

/// Runs `work` with `dir` as working directory, on a thread whose working directory is its own.
fn in_directory<T: Send + 'static>(
    dir: PathBuf,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let thread = std::thread::Builder::new().name("overlay-mount".into()).spawn(move || {
        unshare(CloneFlags::CLONE_FS)?;
        std::env::set_current_dir(&dir)?;
        work()
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("mounting thread panicked")))
}
