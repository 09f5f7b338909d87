//! `subPath`: a file or folder inside a volume, pinned for one container so that it cannot be replaced by a link.
//!
//! The path is opened beneath the volume, and the opened file is bind mounted to a path of its own. Links that
//! another container puts into the volume meanwhile do not affect a container that mounts this path.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, mkdirat};

use super::error::{Error, Result};
use super::mounts;
use crate::config::PodDirs;

/// The same limit as the runtime's for paths in a container's root.
const MAX_RETRIES: u32 = 64;

/// Identifies one mount of one container.
#[derive(Debug, Clone, Copy)]
pub struct SubPath<'a> {
    pub pod_uid: &'a str,
    pub volume: &'a str,
    pub container: &'a str,
    /// The index of the mount in the container's list.
    pub index: usize,
}

/// Prepares `sub_path` of the volume at `volume_path` for one mount of one container, and returns the path to
/// mount. Creates missing folders. The pod's unmount undoes it. Idempotent.
pub fn prepare(dirs: &PodDirs, mount: SubPath<'_>, volume_path: &Path, sub_path: &str) -> Result<PathBuf> {
    let relative = checked(sub_path)?;
    let inside = open_beneath(volume_path, &relative)?;
    let target = dirs
        .pod_dir(mount.pod_uid)
        .join("volume-subpaths")
        .join(mount.volume)
        .join(mount.container)
        .join(mount.index.to_string());
    let source = PathBuf::from(format!("/proc/self/fd/{}", inside.as_raw_fd()));
    let is_dir = fs::metadata(&source).map_err(Error::file("read", &source))?.is_dir();
    make_target(&target, is_dir)?;
    mounts::bind(&source, &target)?;
    Ok(target)
}

fn checked(sub_path: &str) -> Result<PathBuf> {
    let path = Path::new(sub_path);
    let inside = path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if !inside || sub_path.contains('\0') {
        return Err(Error::failed(format!("subPath {sub_path:?} must be a relative path without '..'")));
    }
    Ok(path.components().filter(|c| matches!(c, Component::Normal(_))).collect())
}

fn beneath(flags: OFlag) -> OpenHow {
    OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS)
}

/// Opens `path` beneath the folder. openat2 fails with EAGAIN while a rename elsewhere on the machine makes
/// following a `..` unsafe; the call may be repeated, but containers can rename forever.
fn open_again(root: &OwnedFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    again(|| openat2(root, path, beneath(flags)))
}

/// Repeats calls that fail with EAGAIN, a bounded number of times.
fn again<T>(mut attempt: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    for _ in 0..MAX_RETRIES {
        match attempt() {
            Err(nix::Error::EAGAIN) => {}
            other => return other,
        }
    }
    Err(nix::Error::EAGAIN)
}

/// Opens the path without leaving the volume; links inside the volume are followed.
fn open_beneath(volume: &Path, relative: &Path) -> Result<OwnedFd> {
    let fault = |errno: nix::Error| Error::file("open", &volume.join(relative))(errno.into());
    let root = open(volume, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(fault)?;
    let mut so_far = PathBuf::from(".");
    for part in relative.components() {
        let parent = so_far.clone();
        so_far.push(part);
        match open_again(&root, &so_far, OFlag::O_PATH) {
            Ok(_) => {}
            Err(nix::Error::ENOENT) => {
                let parent = open_again(&root, &parent, OFlag::O_PATH | OFlag::O_DIRECTORY).map_err(fault)?;
                let name: &Path = part.as_ref();
                match mkdirat(&parent, name, Mode::from_bits_truncate(0o750)) {
                    Ok(()) | Err(nix::Error::EEXIST) => {}
                    Err(errno) => return Err(fault(errno)),
                }
            }
            Err(nix::Error::EXDEV) => {
                let (inner, outer) = (relative.display(), volume.display());
                return Err(Error::failed(format!(
                    "subpath {:?} not within volume path {:?}",
                    inner.to_string(),
                    outer.to_string()
                )));
            }
            Err(errno) => return Err(fault(errno)),
        }
    }
    open_again(&root, &so_far, OFlag::O_PATH).map_err(fault)
}

/// Creates an empty file or folder to mount on; unmounts what an earlier container had mounted there.
fn make_target(target: &Path, is_dir: bool) -> Result<()> {
    mounts::unmount(target)?;
    if let Ok(meta) = fs::symlink_metadata(target) {
        if meta.is_dir() == is_dir {
            return Ok(());
        }
        let removed = if meta.is_dir() { fs::remove_dir(target) } else { fs::remove_file(target) };
        removed.map_err(Error::file("remove", target))?;
    }
    let dir = if is_dir { Some(target) } else { target.parent() };
    if let Some(dir) = dir {
        fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
    }
    if !is_dir {
        fs::File::create(target).map_err(Error::file("create", target))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative() {
        for (path, want) in [
            ("a/b", Some("a/b")),
            ("./a", Some("a")),
            ("", Some("")),
            ("..", None),
            ("/a", None),
            ("a/../b", None),
        ] {
            assert_eq!(checked(path).ok(), want.map(PathBuf::from), "{path}");
        }
    }

    #[test]
    fn a_rename_elsewhere_is_waited_out_but_not_for_ever() {
        let mut left = MAX_RETRIES - 1;
        let opened = again(|| match left {
            0 => Ok("it"),
            _ => {
                left -= 1;
                Err(nix::Error::EAGAIN)
            }
        });
        assert_eq!(opened, Ok("it"));
        let mut asked = 0;
        let mut fails = |error| {
            let failed = again(|| {
                asked += 1;
                Err::<(), _>(error)
            });
            (failed, std::mem::take(&mut asked))
        };
        assert_eq!(fails(nix::Error::EAGAIN), (Err(nix::Error::EAGAIN), MAX_RETRIES));
        assert_eq!(fails(nix::Error::ENOENT), (Err(nix::Error::ENOENT), 1));
    }

    /// A container that renames files all the time does not keep another pod from its subPath.
    #[test]
    fn a_path_through_links_opens_while_others_rename() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let root = std::env::temp_dir().join(format!("knarr-subpath-{:016x}", fastrand::u64(..)));
        let (volume, other) = (root.join("volume"), root.join("other"));
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir_all(volume.join("c")).unwrap();
        fs::create_dir_all(other.join("x")).unwrap();
        std::os::unix::fs::symlink("a/b/../../c", volume.join("link")).unwrap();
        let done = AtomicBool::new(false);
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    fs::rename(other.join("x"), other.join("y")).unwrap();
                    fs::rename(other.join("y"), other.join("x")).unwrap();
                }
            });
            let failed = (0..2000).find_map(|_| open_beneath(&volume, Path::new("link")).err());
            done.store(true, Ordering::Relaxed);
            failed
        });
        fs::remove_dir_all(&root).unwrap();
        assert!(failed.is_none(), "{failed:?}");
    }
}
