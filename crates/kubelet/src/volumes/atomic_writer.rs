//! Writes a set of files atomically: readers see either all of the old files or all of the new ones.
//!
//! ```text
//! VOLUME/..data -> ..2026_01_02_03_04_05.123456      swapped by one rename
//! VOLUME/..2026_01_02_03_04_05.123456/dir/file
//! VOLUME/dir -> ..data/dir                           one link per first part of a path
//! ```
//!
//! Source: `k8s.io/kubernetes/pkg/volume/util`, AtomicWriter. Unlike upstream, files are created and read through
//! descriptors: a container that can make the volume writable for itself might place links where the kubelet
//! writes as root.

use std::collections::BTreeSet;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nix::dir::Type;

use super::beneath::Folder;
use super::error::{Error, Result};
use super::payload::{FileProjection, Payload};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// How many random names are tried for a new data folder.
const ATTEMPTS: u32 = 16;

/// Replaces the files in `dir` by `payload`, whose paths are clean ([`super::payload::validated`]). Returns
/// whether anything was written. `ownership` runs over the whole volume before the new files become visible.
pub fn write(
    dir: &Path,
    payload: &Payload,
    now: Timestamp,
    ownership: impl FnOnce(&Path) -> Result<()>,
) -> Result<bool> {
    let volume = Folder::open(dir).map_err(Error::file("open", dir))?;
    let old = match volume.read_link(DATA) {
        // A link that leads out of the volume was not made by the kubelet.
        Ok(target) => volume.folder(target).ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(Error::file("read", &volume.path_of(DATA))(error)),
    };
    let changed = old.as_ref().is_none_or(|old| !holds(old, payload).unwrap_or(false));
    if changed {
        let (name, data) = new_data_dir(&volume, now)?;
        let swapped = fill(&data, payload).and_then(|()| ownership(dir)).and_then(|()| swap(&volume, &name));
        if let Err(error) = swapped {
            let _ = knarr_runtime::remove_folder(&volume.path_of(&name));
            return Err(error);
        }
    }
    link_visible(&volume, payload)?;
    remove_stale(&volume)?;
    Ok(changed)
}

/// Returns whether the folder has exactly these files with this content and mode, except for bits that fsGroup added.
/// Returns false without reading on at the first file or folder that is not expected.
fn holds(data: &Folder, payload: &Payload) -> io::Result<bool> {
    let folders: BTreeSet<&str> = payload.keys().flat_map(|path| folders_of(path)).collect();
    let (mut files, mut todo) = (0, vec![PathBuf::from(".")]);
    while let Some(at) = todo.pop() {
        for entry in data.folder(&at)?.entries()? {
            let (name, kind) = entry?;
            let path = if at == Path::new(".") { name } else { at.join(name) };
            let known = path.to_str().is_some_and(|path| match kind {
                Type::Directory => folders.contains(path),
                _ => payload.contains_key(path),
            });
            match kind {
                _ if !known => return Ok(false),
                Type::Directory => todo.push(path),
                _ => files += 1,
            }
        }
    }
    if files != payload.len() {
        return Ok(false);
    }
    for (path, file) in payload {
        if !is_as_wanted(data.file(path)?, file)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the parent folders of a file, the outermost first.
fn folders_of(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

fn is_as_wanted(found: File, wanted: &FileProjection) -> io::Result<bool> {
    let metadata = found.metadata()?;
    let (mode, size) = (metadata.permissions().mode() & 0o777, wanted.data.len() as u64);
    if mode & wanted.mode != wanted.mode || mode & !wanted.mode & !0o660 != 0 || metadata.len() != size {
        return Ok(false);
    }
    let mut bytes = Vec::with_capacity(wanted.data.len());
    found.take(size + 1).read_to_end(&mut bytes)?;
    Ok(bytes == wanted.data)
}

fn new_data_dir(volume: &Folder, now: Timestamp) -> Result<(String, Folder)> {
    let stamp = now.strftime("..%Y_%m_%d_%H_%M_%S");
    let mut failure = io::Error::from_raw_os_error(libc::EEXIST);
    for _ in 0..ATTEMPTS {
        let name = format!("{stamp}.{:010}", fastrand::u32(..));
        match volume.make_folder(&name, 0o755) {
            Ok(made) => return Ok((name, made)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => failure = error,
            Err(error) => return Err(Error::file("create", &volume.path_of(name))(error)),
        }
    }
    Err(Error::file("create a data folder in", &volume.path_of(""))(failure))
}

fn fill(data: &Folder, payload: &Payload) -> Result<()> {
    for (path, file) in payload {
        let at = data.path_of(path);
        let fault = |what| Error::file(what, &at);
        let (folders, name) = path.rsplit_once('/').unwrap_or((".", path));
        let folder = data.make_folders(folders, 0o755).map_err(fault("create the folder of"))?;
        let mut made = folder.create(name).map_err(fault("create"))?;
        made.write_all(&file.data).map_err(fault("write"))?;
        if file.uid.is_some() {
            fchown(&made, file.uid, None).map_err(fault("change the owner of"))?;
        }
        made.set_permissions(Permissions::from_mode(file.mode)).map_err(fault("change the mode of"))?;
    }
    Ok(())
}

fn swap(volume: &Folder, new: &str) -> Result<()> {
    let _ = volume.unlink(NEW_DATA);
    volume.link(new, NEW_DATA).map_err(Error::file("create", &volume.path_of(NEW_DATA)))?;
    volume.rename(NEW_DATA, DATA).map_err(Error::file("rename to", &volume.path_of(DATA)))
}

fn first_part(path: &str) -> &str {
    path.split_once('/').map_or(path, |(first, _)| first)
}

fn link_visible(volume: &Folder, payload: &Payload) -> Result<()> {
    let visible: BTreeSet<&str> = payload.keys().map(|path| first_part(path)).collect();
    for name in visible {
        match volume.link(Path::new(DATA).join(name), name) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::file("create", &volume.path_of(name))(error)),
        }
    }
    Ok(())
}

/// Removes links whose target is missing, and data folders other than the current one.
fn remove_stale(volume: &Folder) -> Result<()> {
    let current = volume.read_link(DATA).map_err(Error::file("read", &volume.path_of(DATA)))?;
    let unreadable = |error| Error::file("read", &volume.path_of(""))(error);
    for entry in volume.entries().map_err(unreadable)? {
        let (name, kind) = entry.map_err(unreadable)?;
        if name == Path::new(DATA) || name == current {
            continue;
        }
        let path = volume.path_of(&name);
        if name.as_os_str().as_encoded_bytes().starts_with(b"..") && kind == Type::Directory {
            knarr_runtime::remove_folder(&path).map_err(Error::file("remove", &path))?;
        } else if kind == Type::Symlink {
            let ours = volume.read_link(&name).is_ok_and(|target| target.starts_with(DATA));
            if name == Path::new(NEW_DATA) || ours && !volume.leads_inside(&name) {
                volume.unlink(&name).map_err(Error::file("remove", &path))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

    use super::*;

    /// A volume, and a folder beside it that the writer must not touch.
    struct Lab {
        root: PathBuf,
        volume: PathBuf,
        outside: PathBuf,
    }

    impl Lab {
        fn new() -> Self {
            let root = std::env::temp_dir().join(format!("knarr-writer-{:016x}", fastrand::u64(..)));
            let (volume, outside) = (root.join("volume"), root.join("outside"));
            for dir in [&volume, &outside] {
                fs::create_dir_all(dir).unwrap();
            }
            Self { root, volume, outside }
        }

        fn write(&self, payload: &Payload) -> Result<bool> {
            write(&self.volume, payload, Timestamp::UNIX_EPOCH, |_| Ok(()))
        }

        fn outside(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.outside).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Lab {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |text: &str| FileProjection {
            data: Bytes::copy_from_slice(text.as_bytes()),
            mode: 0o644,
            uid: None,
        };
        files.iter().map(|(path, text)| ((*path).to_owned(), file(text))).collect()
    }

    #[test]
    fn what_holds_and_what_does_not() {
        let lab = Lab::new();
        let files = payload(&[("a", "1"), ("d/e/f", "2"), ("d/g", "3")]);
        assert!(lab.write(&files).unwrap());
        assert!(!lab.write(&files).unwrap(), "nothing to do");
        assert_eq!(fs::read_to_string(lab.volume.join("d/e/f")).unwrap(), "2");
        let data = lab.volume.join(fs::read_link(lab.volume.join(DATA)).unwrap());
        let changes: [&dyn Fn(&Path); 6] = [
            &|data| fs::write(data.join("a"), "longer").unwrap(),
            &|data| fs::write(data.join("a"), "x").unwrap(),
            &|data| fs::write(data.join("more"), "").unwrap(),
            &|data| fs::create_dir(data.join("folder")).unwrap(),
            &|data| fs::set_permissions(data.join("a"), Permissions::from_mode(0o600)).unwrap(),
            &|data| {
                fs::remove_file(data.join("a")).unwrap();
                symlink("d/g", data.join("a")).unwrap();
            },
        ];
        let mut at = data;
        for (number, change) in changes.iter().enumerate() {
            change(&at);
            assert!(lab.write(&files).unwrap(), "change {number}");
            at = lab.volume.join(fs::read_link(lab.volume.join(DATA)).unwrap());
        }
        assert!(lab.write(&payload(&[("d/g", "3")])).unwrap());
        let mut names: Vec<_> = fs::read_dir(&lab.volume)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.retain(|name| !name.starts_with("..1970"));
        names.sort();
        assert_eq!(names, ["..data", "d"]);
    }

    #[test]
    fn a_data_link_that_leads_out_is_replaced() {
        let lab = Lab::new();
        let files = payload(&[("a", "1")]);
        fs::write(lab.outside.join("a"), "1").unwrap();
        symlink(&lab.outside, lab.volume.join(DATA)).unwrap();
        assert!(lab.write(&files).unwrap(), "the files of another folder were taken for the volume's");
        assert!(fs::read_link(lab.volume.join(DATA)).unwrap().is_relative());
        assert_eq!(lab.outside(), ["a"]);
    }

    /// A container replaces the folder that is being filled by a link to another one.
    #[test]
    fn links_swapped_in_do_not_lead_out() {
        let names: Vec<String> = (0..80).map(|n| format!("d{n}/file")).collect();
        let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "text")).collect();
        for _ in 0..10 {
            let lab = Lab::new();
            let link = lab.root.join("link");
            symlink(&lab.outside, &link).unwrap();
            let (watching, done) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let made = fs::read_dir(&lab.volume).unwrap().flatten().next();
                        watching.store(true, Ordering::Relaxed);
                        if let Some(made) = made {
                            let exchange = RenameFlags::RENAME_EXCHANGE;
                            let _ = renameat2(AT_FDCWD, &made.path(), AT_FDCWD, &link, exchange);
                            return;
                        }
                    }
                });
                while !watching.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                // Writing may fail: the folder is replaced meanwhile.
                let _ = lab.write(&payload(&files));
                done.store(true, Ordering::Relaxed);
            });
            assert!(lab.outside().is_empty(), "{:?}", lab.outside());
        }
    }
}
