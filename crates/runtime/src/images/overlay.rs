//! Mounting and unmounting overlayfs, with any number of layers.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

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
        let lower = (0..self.lowerdirs.len()).map(|n| format!("l/{n}")).collect::<Vec<_>>().join(":");
        let options = format!("index=off,lowerdir={lower},upperdir=upper,workdir=work");
        let (dir, target) = (self.dir.clone(), self.target());
        in_directory(dir, move || {
            let overlay = Some("overlay");
            mount(overlay, &target, overlay, MsFlags::empty(), Some(options.as_str()))?;
            Ok(())
        })
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
