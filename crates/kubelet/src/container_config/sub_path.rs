//! `subPath` of volume mounts: a part of a volume, reached without following links out of it.
//!
//! A container may have written links into the volume. So the part is opened inside the volume's root, and the
//! open descriptor is bound to a place of the kubelet's own, from which the container is given it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::Mode;

/// As upstream makes a missing part of a volume.
const NEW_FOLDER_MODE: u32 = 0o750;

#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    #[error("subPath {0:?} must be a relative path without \"..\"")]
    Outside(String),
    #[error("failed to prepare subPath {path:?}: {source}")]
    Io { path: String, source: io::Error },
}

/// Binds `sub_path` of the volume at `volume` to `target`, making missing folders. A bind from before is replaced.
pub fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<(), SubPathError> {
    let parts = parts(sub_path).ok_or_else(|| SubPathError::Outside(sub_path.to_owned()))?;
    let error = |source: io::Error| SubPathError::Io { path: sub_path.to_owned(), source };
    let part = open_part(volume, &parts).map_err(error)?;
    bind_descriptor(&part, target).map_err(error)
}

fn parts(sub_path: &str) -> Option<Vec<&std::ffi::OsStr>> {
    let components = Path::new(sub_path).components().filter(|c| !matches!(c, Component::CurDir));
    components
        .map(|c| match c {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect()
}

fn open_part(volume: &Path, parts: &[&std::ffi::OsStr]) -> io::Result<OwnedFd> {
    let root = File::open(volume)?;
    let beneath = |path: &Path| {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(root.as_fd(), path, how)
    };
    let whole: PathBuf = parts.iter().collect();
    if whole.as_os_str().is_empty() {
        return Ok(root.into());
    }
    match beneath(&whole) {
        Err(nix::Error::ENOENT) => {}
        other => return other.map_err(io::Error::from),
    }
    let mut so_far = PathBuf::new();
    let mut folder: OwnedFd = root.try_clone()?.into();
    for part in parts {
        so_far.push(part);
        folder = match beneath(&so_far) {
            Err(nix::Error::ENOENT) => {
                nix::sys::stat::mkdirat(&folder, Path::new(part), Mode::from_bits_truncate(NEW_FOLDER_MODE))?;
                beneath(&so_far)?
            }
            other => other?,
        };
    }
    Ok(folder)
}

fn bind_descriptor(part: &OwnedFd, target: &Path) -> io::Result<()> {
    unmount(target)?;
    let is_folder = {
        let stat = nix::sys::stat::fstatat(part, "", AtFlags::AT_EMPTY_PATH)?;
        stat.st_mode & libc::S_IFMT == libc::S_IFDIR
    };
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::symlink_metadata(target) {
        Ok(meta) if meta.is_dir() != is_folder => {
            if meta.is_dir() {
                fs::remove_dir(target)?
            } else {
                fs::remove_file(target)?
            }
        }
        _ => {}
    }
    if is_folder {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        File::create(target)?;
    }
    let source = format!("/proc/self/fd/{}", part.as_raw_fd());
    mount(Some(source.as_str()), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

fn unmount(target: &Path) -> io::Result<()> {
    match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Takes down all binds below `folder` (`<volume>/<container>/<index>`) and removes it.
pub fn remove_all(folder: &Path) -> io::Result<()> {
    for volume in entries(folder)? {
        for container in entries(&volume)? {
            for bind in entries(&container)? {
                unmount(&bind)?;
                if bind.is_dir() { fs::remove_dir(&bind)? } else { fs::remove_file(&bind)? }
            }
            fs::remove_dir(&container)?;
        }
        fs::remove_dir(&volume)?;
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(list) => list.map(|entry| entry.map(|e| e.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("knarr-subpath-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn parts_stay_inside() {
        for (path, inside) in
            [("a/b", true), ("./a", true), ("../a", false), ("a/../../b", false), ("/etc", false)]
        {
            assert_eq!(parts(path).is_some(), inside, "{path}");
        }
    }

    #[test]
    fn links_out_of_the_volume_are_not_followed() {
        let dir = scratch("links");
        let volume = dir.join("volume");
        fs::create_dir_all(volume.join("..data")).unwrap();
        fs::write(volume.join("..data/key"), "value").unwrap();
        std::os::unix::fs::symlink("..data/key", volume.join("key")).unwrap();
        std::os::unix::fs::symlink("/etc", volume.join("evil")).unwrap();
        let name = |n: &'static str| std::ffi::OsStr::new(n);
        assert!(open_part(&volume, &[name("key")]).is_ok());
        assert!(open_part(&volume, &[name("evil")]).is_err());
        assert!(open_part(&volume, &[name("evil"), name("passwd")]).is_err());
        assert!(open_part(&volume, &[name("new"), name("folder")]).is_ok());
        assert!(volume.join("new/folder").is_dir());
        fs::remove_dir_all(dir).unwrap();
    }
}
