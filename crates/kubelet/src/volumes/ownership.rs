//! `fsGroup`: changes the group of a volume's files to the pod's group.
//!
//! Source: `k8s.io/kubernetes/pkg/volume`, SetVolumeOwnership.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::{Gid, fchownat};

use super::error::{Error, Result};

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const TRAVERSE: u32 = 0o110;
const SETGID: u32 = 0o2000;
/// The deepest level of folders that is changed.
const MAX_DEPTH: usize = 512;

/// Returns the mode that a file gets.
fn new_mode(mode: u32, is_dir: bool, read_only: bool) -> u32 {
    let mask = if read_only { READ_ONLY } else { READ_WRITE };
    mode | mask | if is_dir { SETGID | TRAVERSE } else { 0 }
}

/// Returns whether the root of a volume has the group and mode that [`set_ownership`] sets.
fn root_matches(mode: u32, gid: u32, is_dir: bool, group: u32, read_only: bool) -> bool {
    let wanted = if read_only { READ_ONLY } else { READ_WRITE } | TRAVERSE | SETGID;
    is_dir && gid == group && mode & wanted == wanted
}

/// Changes the group and modes of all files in the volume; with `on_root_mismatch` only if its root differs.
pub fn set_ownership(dir: &Path, group: u32, read_only: bool, on_root_mismatch: bool) -> Result<()> {
    if on_root_mismatch {
        let root = fs::metadata(dir).map_err(Error::file("read", dir))?;
        if root_matches(root.mode(), root.gid(), root.is_dir(), group, read_only) {
            return Ok(());
        }
    }
    let opened = open(dir, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty());
    let root = opened.map_err(|errno| Error::file("open", dir)(errno.into()))?;
    let stat = fstat(&root).map_err(|errno| Error::file("read", dir)(errno.into()))?;
    let walk = Walk { root: &root, dir, group, read_only };
    if kind(&stat) != libc::S_IFDIR {
        walk.change(root.as_fd(), &stat, Path::new(""));
        return Ok(());
    }
    walk.go(Path::new("."), 0)
}

/// One pass over a volume that containers may change at the same time: every file is opened beneath the volume's
/// root without following links, and changed through its descriptor. A link that is put in place of a file leads
/// nowhere.
struct Walk<'a> {
    root: &'a OwnedFd,
    dir: &'a Path,
    group: u32,
    read_only: bool,
}

impl Walk<'_> {
    /// Changes everything below a path, and then the path itself, so that a matching root shows that the pass was
    /// completed.
    fn go(&self, path: &Path, depth: usize) -> Result<()> {
        let fault = |what, error: nix::Error| Error::file(what, &self.dir.join(path))(error.into());
        let file = match self.open(path, OFlag::O_PATH) {
            Ok(file) => file,
            Err(error) if has_gone(error) => return Ok(()),
            Err(error) => return Err(fault("open", error)),
        };
        let stat = fstat(&file).map_err(|error| fault("read", error))?;
        if kind(&stat) == libc::S_IFDIR && depth < MAX_DEPTH {
            drop(file);
            let names = match self.names(path) {
                Ok(names) => names,
                Err(error) if has_gone(error) => return Ok(()),
                Err(error) => return Err(fault("read", error)),
            };
            for name in names {
                self.go(&path.join(name), depth + 1)?;
            }
            // Descriptors are not kept while descending: a deep tree would exhaust the limit of the process.
            return match self.open(path, OFlag::O_PATH) {
                Ok(folder) => fstat(&folder)
                    .map(|stat| self.change(folder.as_fd(), &stat, path))
                    .map_err(|error| fault("read", error)),
                Err(error) if has_gone(error) => Ok(()),
                Err(error) => Err(fault("open", error)),
            };
        }
        self.change(file.as_fd(), &stat, path);
        Ok(())
    }

    fn open(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        openat2(self.root, path, how)
    }

    fn names(&self, path: &Path) -> nix::Result<Vec<OsString>> {
        let mut folder = Dir::from_fd(self.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)?;
        let mut names = Vec::new();
        for entry in folder.iter() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Changes one file. As in upstream, a file that cannot be changed (on a read-only file system) does not fail
    /// the volume.
    fn change(&self, file: BorrowedFd<'_>, stat: &FileStat, path: &Path) {
        let warn = |what: &str, error: io::Error| {
            tracing::warn!(path = %self.dir.join(path).display(), %error, "cannot change the {what}");
        };
        if stat.st_gid != self.group {
            let flags = AtFlags::AT_EMPTY_PATH | AtFlags::AT_SYMLINK_NOFOLLOW;
            if let Err(error) = fchownat(file, "", None, Some(Gid::from_raw(self.group)), flags) {
                warn("group", error.into());
            }
        }
        if kind(stat) == libc::S_IFLNK {
            return;
        }
        let old = stat.st_mode & 0o7777;
        let mode = new_mode(old, kind(stat) == libc::S_IFDIR, self.read_only);
        if mode != old || stat.st_gid != self.group {
            // The path below /proc is the only one that works with all kernels: it leads to the file itself, not
            // to its name.
            let own = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            if let Err(error) = fs::set_permissions(own, fs::Permissions::from_mode(mode)) {
                warn("mode", error);
            }
        }
    }
}

fn kind(stat: &FileStat) -> u32 {
    stat.st_mode & libc::S_IFMT
}

/// Returns whether a listed file was removed since, or replaced by something else.
fn has_gone(error: nix::Error) -> bool {
    matches!(error, nix::Error::ENOENT | nix::Error::ENOTDIR | nix::Error::ELOOP | nix::Error::EXDEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        let table = [
            (0o644, false, false, 0o664),
            (0o600, false, false, 0o660),
            (0o400, false, true, 0o440),
            (0o755, true, false, 0o2775),
            (0o700, true, true, 0o2750),
        ];
        for (mode, is_dir, read_only, want) in table {
            assert_eq!(new_mode(mode, is_dir, read_only), want, "{mode:o}");
        }
    }

    /// A container replaces a folder of its volume by a link and back while the volume is walked.
    #[test]
    fn links_swapped_in_do_not_lead_out() {
        use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
        use std::sync::atomic::{AtomicBool, Ordering};

        let root = std::env::temp_dir().join(format!("knarr-ownership-{:016x}", fastrand::u64(..)));
        let (volume, outside) = (root.join("volume"), root.join("outside"));
        let (folder, link) = (volume.join("folder"), root.join("link"));
        for dir in [&folder, &outside] {
            fs::create_dir_all(dir).unwrap();
            for n in 0..20 {
                fs::write(dir.join(n.to_string()), "").unwrap();
                fs::set_permissions(dir.join(n.to_string()), fs::Permissions::from_mode(0o600)).unwrap();
            }
        }
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        let modes = || -> Vec<u32> {
            let files = fs::read_dir(&outside).unwrap();
            files.map(|f| f.unwrap().metadata().unwrap().mode() & 0o7777).collect()
        };
        // SAFETY: plain system calls.
        let group = unsafe { libc::getegid() };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    renameat2(AT_FDCWD, &folder, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE).unwrap();
                }
            });
            for _ in 0..2000 {
                let walked = set_ownership(&volume, group, false, false);
                if walked.is_err() || modes().iter().any(|mode| *mode != 0o600) {
                    break;
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let (found, walked) = (modes(), set_ownership(&volume, group, false, false));
        fs::remove_dir_all(&root).unwrap();
        assert!(found.iter().all(|mode| *mode == 0o600), "{found:?}");
        walked.unwrap();
    }

    #[test]
    fn links_and_files_of_a_volume() {
        let root = std::env::temp_dir().join(format!("knarr-ownership-{:016x}", fastrand::u64(..)));
        let volume = root.join("volume");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::write(volume.join("a/b/file"), "").unwrap();
        fs::write(root.join("outside"), "").unwrap();
        for path in ["volume/a/b/file", "outside"] {
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o600)).unwrap();
        }
        for dir in ["volume", "volume/a", "volume/a/b"] {
            fs::set_permissions(root.join(dir), fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink("../../outside", volume.join("a/link")).unwrap();
        // SAFETY: plain system calls.
        let group = unsafe { libc::getegid() };
        set_ownership(&volume, group, false, false).unwrap();
        let mode = |path: &str| fs::metadata(root.join(path)).unwrap().mode() & 0o7777;
        let found = ["volume", "volume/a", "volume/a/b", "volume/a/b/file", "outside"].map(mode);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [0o2775, 0o2775, 0o2775, 0o660, 0o600]);
    }

    #[test]
    fn root_that_matches_is_left() {
        assert!(root_matches(0o2775, 7, true, 7, false));
        assert!(root_matches(0o2750, 7, true, 7, true));
        for (mode, gid, is_dir) in
            [(0o775, 7, true), (0o2750, 7, true), (0o2775, 8, true), (0o2775, 7, false)]
        {
            assert!(!root_matches(mode, gid, is_dir, 7, false));
        }
    }
}
