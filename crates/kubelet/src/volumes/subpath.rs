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

/// Opens the path without ever leaving the volume; links inside the volume are followed.
fn open_beneath(volume: &Path, relative: &Path) -> Result<OwnedFd> {
    let fault = |errno: nix::Error| Error::file("open", &volume.join(relative))(errno.into());
    let root = open(volume, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(fault)?;
    let mut so_far = PathBuf::from(".");
    for part in relative.components() {
        let parent = so_far.clone();
        so_far.push(part);
        match openat2(&root, &so_far, beneath(OFlag::O_PATH)) {
            Ok(_) => {}
            Err(nix::Error::ENOENT) => {
                let parent =
                    openat2(&root, &parent, beneath(OFlag::O_PATH | OFlag::O_DIRECTORY)).map_err(fault)?;
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
    openat2(&root, &so_far, beneath(OFlag::O_PATH)).map_err(fault)
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
}
