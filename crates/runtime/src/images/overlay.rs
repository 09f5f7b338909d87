//! Mounts and unmounts overlayfs, with any number of layers.

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

/// The user namespace to whose ids a mount's files are mapped.
#[derive(Debug, Clone)]
pub struct MappedIds {
    pub user_namespace: Arc<OwnedFd>,
    /// The host id of the namespace's root.
    pub root: u32,
}

/// The parts of an overlay: `lowerdirs`, topmost first, and `upper`, `work` and `rootfs` in `dir`.
#[derive(Debug, Clone)]
pub struct OverlayMount {
    /// Contains `upper`, `work`, `rootfs` (the target) and `l`, short links to the lower directories.
    pub dir: PathBuf,
    pub lowerdirs: Vec<PathBuf>,
}

impl OverlayMount {
    /// Returns the mount point.
    pub fn target(&self) -> PathBuf {
        self.dir.join("rootfs")
    }

    /// Creates the links that keep the option string short: mount(2) takes at most one page, which absolute
    /// paths of about sixty layers fill.
    pub fn prepare(dir: &Path, lowerdirs: &[PathBuf]) -> io::Result<()> {
        for name in ["upper", "work", "rootfs", "l"] {
            fs::create_dir(dir.join(name))?;
        }
        for (n, lower) in lowerdirs.iter().enumerate() {
            symlink(lower, dir.join("l").join(n.to_string()))?;
        }
        Ok(())
    }

    /// Mounts the overlay unless it is mounted already. A read-only overlay does not use the upper directory.
    pub fn mount(&self) -> io::Result<()> {
        if self.is_mounted()? {
            return Ok(());
        }
        let (options, target) = (self.options("l"), self.target());
        in_directory(self.dir.clone(), move || overlay(&target, &options))
    }

    /// Like [`OverlayMount::mount`], with the layers' files id-mapped to a user namespace. Files that are
    /// written get the host ids.
    ///
    /// overlayfs itself cannot be id-mapped, so its layers are: in a mount namespace of a thread, which ends
    /// with the thread together with their mounts, also after an error. Only the overlay mount is taken out of
    /// that namespace.
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

    /// Returns the mount options; `layers` is the folder with a short name for each layer.
    fn options(&self, layers: &str) -> String {
        let lower: Vec<String> = (0..self.lowerdirs.len()).map(|n| format!("{layers}/{n}")).collect();
        format!("index=off,lowerdir={},upperdir=upper,workdir=work", lower.join(":"))
    }

    /// Unmounts the overlay, lazily if it is in use; does nothing if it is not mounted.
    pub fn unmount(&self) -> io::Result<()> {
        /// The same target can have been mounted several times by mistake, but hardly more often than this.
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

    /// Returns whether the overlay is mounted: a mounted overlay has its own device number.
    pub fn is_mounted(&self) -> io::Result<bool> {
        let outside = fs::symlink_metadata(&self.dir)?;
        match fs::symlink_metadata(self.target()) {
            Ok(inside) => Ok(inside.dev() != outside.dev()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            // An overlay whose layers were removed is still mounted.
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

/// Runs `work` with `dir` as working directory, on a thread that does not share its working directory.
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
