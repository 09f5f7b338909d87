//! `subPath`: a file or folder inside a volume, fixed for one container so that nobody can swap it for a link.
//!
//! The path is opened beneath the volume, and what was opened is bound to a place of its own. A container that mounts
//! that place cannot be led astray by links that another container puts into the volume meanwhile.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, mkdirat};

use super::error::{Error, Result};
use super::mounts;
use crate::config::PodDirs;

/// As the runtime has it for paths in a container's root.
const MAX_RETRIES: u32 = 64;

/// Which mount of which container.
#[derive(Debug, Clone, Copy)]
pub struct SubPath<'a> {
    pub pod_uid: &'a str,
    pub volume: &'a str,
    pub container: &'a str,
    /// The mount's place in the container's list.
    pub index: usize,
}

/// Makes `sub_path` of the volume at `volume_path` ready for one mount of one container and gives the path to mount.
/// Missing folders are made. Undone by the pod's unmount. May be repeated.
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

/// Opens what `path` names beneath the folder. openat2 answers EAGAIN while a rename elsewhere on the machine makes a
/// `..` of a link unsafe to follow; it may be asked again, and containers can rename for ever.
fn open_again(root: &OwnedFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    again(|| openat2(root, path, beneath(flags)))
}

/// Repeats what failed with EAGAIN, a bounded number of times.
fn again<T>(mut attempt: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    for _ in 0..MAX_RETRIES {
        match attempt() {
            Err(nix::Error::EAGAIN) => {}
            other => return other,
        }
    }
    Err(nix::Error::EAGAIN)
}

/// Opens the path without ever leaving the volume; links inside the volume are followed.
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

/// An empty folder or file to mount on; what an earlier container had mounted there goes.
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

    /// Whoever renames all the time, as a container may, keeps no other pod from its subPath.
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
