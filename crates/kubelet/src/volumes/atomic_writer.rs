//! Writes a set of files so that readers see either all of the old or all of the new ones.
//!
//! ```text
//! VOLUME/..data -> ..2026_01_02_03_04_05.123456      swapped by one rename
//! VOLUME/..2026_01_02_03_04_05.123456/dir/file
//! VOLUME/dir -> ..data/dir                           one link per first part of a path
//! ```
//!
//! Source: `k8s.io/kubernetes/pkg/volume/util`, AtomicWriter.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::error::{Error, Result};
use super::payload::Payload;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// Names tried for a new data folder.
const ATTEMPTS: u32 = 16;

/// Brings `dir` to `payload`, whose paths are clean ([`super::payload::validated`]). Says whether anything was
/// written. `ownership` runs over the whole volume before the new files become visible.
pub fn write(
    dir: &Path,
    payload: &Payload,
    now: Timestamp,
    ownership: impl FnOnce(&Path) -> Result<()>,
) -> Result<bool> {
    let data = dir.join(DATA);
    let old = match fs::read_link(&data) {
        Ok(target) => Some(dir.join(target)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::file("read", &data)(error)),
    };
    let changed = old.as_ref().is_none_or(|old| !holds(old, payload));
    if changed {
        let new = new_data_dir(dir, now)?;
        let swapped = fill(&new, payload).and_then(|()| ownership(dir)).and_then(|()| swap(dir, &new));
        if let Err(error) = swapped {
            let _ = knarr_runtime::remove_folder(&new);
            return Err(error);
        }
    }
    link_visible(dir, payload)?;
    remove_stale(dir)?;
    Ok(changed)
}

/// Whether the folder has just these files with this content and, but for what fsGroup added, mode.
fn holds(data: &Path, payload: &Payload) -> bool {
    let mut found = BTreeSet::new();
    if list_files(data, data, &mut found).is_err() {
        return false;
    }
    if found.len() != payload.len() || !found.iter().all(|path| payload.contains_key(path)) {
        return false;
    }
    payload.iter().all(|(path, file)| {
        let path = data.join(path);
        let mode = fs::metadata(&path).map(|m| m.permissions().mode() & 0o777);
        mode.is_ok_and(|mode| mode & file.mode == file.mode && mode & !file.mode & !0o660 == 0)
            && fs::read(&path).is_ok_and(|bytes| bytes == file.data)
    })
}

fn list_files(root: &Path, dir: &Path, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_dir() {
            list_files(root, &path, found)?;
        } else if let Ok(inner) = path.strip_prefix(root) {
            found.insert(inner.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn new_data_dir(dir: &Path, now: Timestamp) -> Result<PathBuf> {
    let stamp = now.strftime("..%Y_%m_%d_%H_%M_%S");
    let mut failure = io::Error::from_raw_os_error(libc::EEXIST);
    for _ in 0..ATTEMPTS {
        let path = dir.join(format!("{stamp}.{:010}", fastrand::u32(..)));
        match fs::DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => {
                // Not left to the umask.
                chmod(&path, 0o755)?;
                return Ok(path);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => failure = error,
            Err(error) => return Err(Error::file("create", &path)(error)),
        }
    }
    Err(Error::file("create a data folder in", dir)(failure))
}

fn chmod(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(Error::file("change the mode of", path))
}

fn fill(data: &Path, payload: &Payload) -> Result<()> {
    for (name, file) in payload {
        let path = data.join(name);
        if let Some(parent) = path.parent().filter(|p| *p != data) {
            make_dirs(data, parent)?;
        }
        let open = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut handle = open.map_err(Error::file("create", &path))?;
        handle.write_all(&file.data).map_err(Error::file("write", &path))?;
        if file.uid.is_some() {
            chown(&path, file.uid, None).map_err(Error::file("change the owner of", &path))?;
        }
        chmod(&path, file.mode)?;
    }
    Ok(())
}

fn make_dirs(root: &Path, dir: &Path) -> Result<()> {
    if dir == root || dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_dirs(root, parent)?;
    }
    fs::create_dir(dir).map_err(Error::file("create", dir))?;
    chmod(dir, 0o755)
}

fn swap(dir: &Path, new: &Path) -> Result<()> {
    let (link, target) = (dir.join(NEW_DATA), new.file_name().unwrap_or_default());
    let _ = fs::remove_file(&link);
    symlink(target, &link).map_err(Error::file("create", &link))?;
    let data = dir.join(DATA);
    fs::rename(&link, &data).map_err(Error::file("rename to", &data))
}

fn first_part(path: &str) -> &str {
    path.split_once('/').map_or(path, |(first, _)| first)
}

fn link_visible(dir: &Path, payload: &Payload) -> Result<()> {
    let visible: BTreeSet<&str> = payload.keys().map(|path| first_part(path)).collect();
    for name in visible {
        let link = dir.join(name);
        match symlink(Path::new(DATA).join(name), &link) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::file("create", &link)(error)),
        }
    }
    Ok(())
}

/// Removes links whose target is gone and data folders that are not the current one.
fn remove_stale(dir: &Path) -> Result<()> {
    let data = dir.join(DATA);
    let current = fs::read_link(&data).map_err(Error::file("read", &data))?;
    for entry in fs::read_dir(dir).map_err(Error::file("read", dir))? {
        let entry = entry.map_err(Error::file("read", dir))?;
        let (name, path) = (entry.file_name(), entry.path());
        let text = name.to_string_lossy();
        if text == DATA || name == current.as_os_str() {
            continue;
        }
        let kind = entry.file_type().map_err(Error::file("read", &path))?;
        if text.starts_with("..") && kind.is_dir() {
            knarr_runtime::remove_folder(&path).map_err(Error::file("remove", &path))?;
        } else if kind.is_symlink() {
            let ours = fs::read_link(&path).is_ok_and(|target| target.starts_with(DATA));
            if text == NEW_DATA || ours && !path.exists() {
                fs::remove_file(&path).map_err(Error::file("remove", &path))?;
            }
        }
    }
    Ok(())
}
