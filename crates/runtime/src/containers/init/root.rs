//! Paths inside a container's root, resolved by the kernel so that none of them leads out of it.
//!
//! Images, volumes and other processes of the pod decide what a path in here means. Therefore each path is
//! resolved once, to a descriptor, and the descriptor is used: magic links of procfs (`/proc/1/root`,
//! `/proc/self/fd/7`) are never followed, and `..` stops at the root.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::sys::stat::{Mode, mkdirat};

use crate::containers::sys;

/// The same as the kernel's limit for one path.
const MAX_LINKS: u32 = 40;
/// openat2 fails with EAGAIN when a rename elsewhere makes a `..` unsafe; the call may be repeated.
const MAX_RETRIES: u32 = 64;

/// How symbolic links in a path are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Links are followed, within the root.
    Follow,
    /// Links are an error (ELOOP): for paths that the runtime itself mounts, such as /proc and /dev.
    Refuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
}

/// A handle to a container's root, for resolving paths in it.
pub struct Root {
    fd: OwnedFd,
}

impl Root {
    /// Opens the root of the calling process.
    pub fn of_process() -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { fd: nix::fcntl::open("/", flags, Mode::empty())? })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns a handle (O_PATH) of the file at `path`.
    pub fn find(&self, path: &str, links: Links) -> io::Result<OwnedFd> {
        self.open(path, OFlag::O_PATH, links)
    }

    /// Opens the file at `path`.
    pub fn open(&self, path: &str, flags: OFlag, links: Links) -> io::Result<OwnedFd> {
        let resolve = match links {
            Links::Follow => ResolveFlag::empty(),
            Links::Refuse => ResolveFlag::RESOLVE_NO_SYMLINKS,
        };
        self.open_with(path, flags, resolve)
    }

    /// Returns a handle of the file at `path` if it is on the file system of the root itself, not in a volume
    /// or procfs.
    pub fn find_in_image(&self, path: &str) -> io::Result<OwnedFd> {
        self.open_with(path, OFlag::O_PATH, ResolveFlag::RESOLVE_NO_XDEV)
    }

    fn open_with(&self, path: &str, flags: OFlag, resolve: ResolveFlag) -> io::Result<OwnedFd> {
        let resolve = resolve | ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
        for _ in 0..MAX_RETRIES {
            match openat2(&self.fd, path, how) {
                Err(nix::errno::Errno::EAGAIN) => {}
                other => return Ok(other?),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    /// Returns a handle of the folder at `path`; creates it and its parents (0755) if they are missing.
    pub fn folder(&self, path: &str, links: Links) -> io::Result<OwnedFd> {
        self.make(path, links, Kind::Folder)
    }

    /// Returns a handle of the file at `path`; creates it (0644) and its parents if they are missing.
    pub fn file(&self, path: &str, links: Links) -> io::Result<OwnedFd> {
        self.make(path, links, Kind::File)
    }

    fn make(&self, path: &str, links: Links, kind: Kind) -> io::Result<OwnedFd> {
        let mut todo: Vec<String> = components(path);
        let mut done = String::new();
        let mut parent = self.find("/", links)?;
        let mut budget = MAX_LINKS;
        while let Some(name) = todo.pop() {
            let next = format!("{done}/{name}");
            match self.find(&next, links) {
                Ok(found) => {
                    (parent, done) = (found, next);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let kind = if todo.is_empty() { kind } else { Kind::Folder };
            match make_in(&parent, &name, kind) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            budget = budget.checked_sub(1).ok_or_else(|| io::Error::from_raw_os_error(libc::ELOOP))?;
            // A dangling link: create its target instead.
            match readlinkat(&parent, name.as_str()) {
                Ok(_) if links == Links::Refuse => return Err(io::Error::from_raw_os_error(libc::ELOOP)),
                Ok(target) => {
                    let target = target.into_string().map_err(|_| io::ErrorKind::InvalidFilename)?;
                    if target.starts_with('/') {
                        (parent, done) = (self.find("/", links)?, String::new());
                    }
                    todo.extend(components(&target));
                }
                Err(_) => todo.push(name),
            }
        }
        Ok(parent)
    }
}

/// Returns the components of a path, last one first.
fn components(path: &str) -> Vec<String> {
    path.split('/').filter(|part| !matches!(*part, "" | ".")).rev().map(str::to_owned).collect()
}

fn make_in(parent: &OwnedFd, name: &str, kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Folder => mkdirat(parent, name, Mode::from_bits_truncate(0o755))?,
        Kind::File => {
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW;
            let flags = flags | OFlag::O_CLOEXEC;
            drop(nix::fcntl::openat(parent, name, flags, Mode::from_bits_truncate(0o644))?);
        }
    }
    Ok(())
}

/// Returns whether a descriptor refers to a folder.
pub fn is_folder(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(sys::stat_of(fd)?.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

/// Makes a folder the current working directory.
pub fn enter(folder: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain system call on an open descriptor.
    sys::check(unsafe { libc::fchdir(folder.as_raw_fd()) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    struct Tree {
        base: PathBuf,
        root: Root,
    }

    impl Tree {
        fn new(name: &str) -> Self {
            let base = std::env::temp_dir().join(format!("knarr-root-{}-{name}", std::process::id()));
            fs::create_dir_all(base.join("root/a/b")).unwrap();
            fs::create_dir_all(base.join("outside")).unwrap();
            let fd = OwnedFd::from(fs::File::open(base.join("root")).unwrap());
            Self { base, root: Root { fd } }
        }

        fn path(&self, path: &str) -> PathBuf {
            self.base.join("root").join(path)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.base);
        }
    }

    fn where_is(fd: &OwnedFd) -> PathBuf {
        fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
    }

    #[test]
    fn links_stay_inside() {
        let tree = Tree::new("inside");
        symlink("/../../../a", tree.path("absolute")).unwrap();
        symlink("../../../../outside", tree.path("a/relative")).unwrap();
        symlink("/run/deep", tree.path("dangling")).unwrap();
        symlink("../x/y", tree.path("a/up")).unwrap();
        for (path, lands) in [
            ("/absolute/b", "a/b"),
            ("/a/../../../a", "a"),
            ("/a/relative/new", "outside/new"),
            ("/dangling/er", "run/deep/er"),
            ("/a/up/z", "x/y/z"),
        ] {
            let fd = tree.root.folder(path, Links::Follow).unwrap();
            assert_eq!(where_is(&fd), tree.path(lands), "{path}");
        }
        assert!(!tree.base.join("outside/new").exists());
        let file = tree.root.file("/dangling/file", Links::Follow).unwrap();
        assert_eq!(where_is(&file), tree.path("run/deep/file"));
        assert!(Path::is_file(&tree.path("run/deep/file")));
    }

    #[test]
    fn magic_links_and_loops_are_refused() {
        let tree = Tree::new("refused");
        symlink("loop", tree.path("loop")).unwrap();
        symlink("a", tree.path("link")).unwrap();
        let errno = |result: io::Result<OwnedFd>| result.unwrap_err().raw_os_error().unwrap();
        assert_eq!(errno(tree.root.folder("/loop/x", Links::Follow)), libc::ELOOP);
        assert_eq!(errno(tree.root.find("/link/b", Links::Refuse)), libc::ELOOP);
        assert_eq!(errno(tree.root.folder("/link/new", Links::Refuse)), libc::ELOOP);
        let host = Root::of_process().unwrap();
        for path in ["/proc/self/root/etc", "/proc/self/cwd", "/proc/self/fd/0"] {
            assert_eq!(errno(host.find(path, Links::Follow)), libc::ELOOP, "{path}");
        }
        assert_eq!(errno(host.find_in_image("/proc/self")), libc::EXDEV);
    }
}
