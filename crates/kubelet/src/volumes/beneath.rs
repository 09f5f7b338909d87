//! Files below a folder that containers may change at the same time: each file is opened beneath the folder,
//! without following links, and used through its descriptor.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, open, openat2, readlinkat, renameat};
use nix::sys::stat::{Mode, fchmod, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY);

/// A folder that is used through its descriptor, never by its path.
pub struct Folder {
    fd: OwnedFd,
    /// For error messages alone.
    path: PathBuf,
}

impl Folder {
    /// Opens a folder whose path the kubelet owns.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = open(path, FOLDER | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// Returns the path of an entry, for error messages.
    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    fn open_with(&self, path: &Path, flags: OFlag, mode: u32, resolve: ResolveFlag) -> io::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .mode(Mode::from_bits_truncate(mode))
            .resolve(resolve | ResolveFlag::RESOLVE_BENEATH);
        Ok(openat2(&self.fd, path, how)?)
    }

    fn plainly(&self, path: &Path, flags: OFlag, mode: u32) -> io::Result<OwnedFd> {
        self.open_with(path, flags, mode, ResolveFlag::RESOLVE_NO_SYMLINKS)
    }

    pub fn folder(&self, path: impl AsRef<Path>) -> io::Result<Folder> {
        let fd = self.plainly(path.as_ref(), FOLDER, 0)?;
        Ok(Self { fd, path: self.path_of(path) })
    }

    /// Opens a regular file for reading. Other types, such as FIFOs, do not block.
    pub fn file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let file = File::from(self.plainly(path.as_ref(), OFlag::O_RDONLY | OFlag::O_NONBLOCK, 0)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Creates a file in an existing folder for writing, with mode 0600.
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        Ok(File::from(self.plainly(path.as_ref(), flags, 0o600)?))
    }

    /// Creates a folder in this one; the mode does not depend on the umask.
    pub fn make_folder(&self, name: impl AsRef<Path>, mode: u32) -> io::Result<Folder> {
        mkdirat(&self.fd, name.as_ref(), Mode::from_bits_truncate(mode))?;
        let made = self.folder(name)?;
        fchmod(&made.fd, Mode::from_bits_truncate(mode))?;
        Ok(made)
    }

    /// Opens the folder at a path, and creates it and its parents where they are missing.
    pub fn make_folders(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<Folder> {
        let mut at = self.folder(".")?;
        for part in path.as_ref().components() {
            at = match at.make_folder(part, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => at.folder(part)?,
                made => made?,
            };
        }
        Ok(at)
    }

    /// Creates the missing folders of a path; follows links that stay beneath this folder.
    pub fn make_folders_by_links(&self, path: &Path) -> io::Result<()> {
        let mut done = PathBuf::new();
        for part in path.components() {
            let parent = if done.as_os_str().is_empty() { Path::new(".") } else { &done };
            let parent = self.open_with(parent, FOLDER, 0, ResolveFlag::RESOLVE_NO_MAGICLINKS)?;
            match mkdirat(&parent, part.as_os_str(), Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => done.push(part),
                Err(error) => return Err(error.into()),
            }
        }
        self.open_with(path, FOLDER, 0, ResolveFlag::RESOLVE_NO_MAGICLINKS).map(drop)
    }

    /// Lists the names in the folder, each with its type. Entries that are removed meanwhile are left out.
    pub fn entries(&self) -> io::Result<impl Iterator<Item = io::Result<(PathBuf, Type)>>> {
        let listed = Dir::from_fd(self.plainly(Path::new("."), FOLDER, 0)?)?;
        let folder = self.fd.try_clone()?;
        Ok(listed.into_iter().filter_map(move |entry| {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                return None;
            }
            // Not every file system returns the type with the name.
            let kind = entry.file_type().or_else(|| kind_of(&folder, name))?;
            Some(Ok((PathBuf::from(name), kind)))
        }))
    }

    pub fn read_link(&self, name: impl AsRef<Path>) -> io::Result<PathBuf> {
        Ok(readlinkat(&self.fd, name.as_ref())?.into())
    }

    pub fn link(&self, target: impl AsRef<Path>, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(symlinkat(target.as_ref(), &self.fd, name.as_ref())?)
    }

    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        Ok(renameat(&self.fd, from.as_ref(), &self.fd, to.as_ref())?)
    }

    pub fn unlink(&self, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name.as_ref(), UnlinkatFlags::NoRemoveDir)?)
    }

    /// Returns whether a name resolves, through links or not, to something beneath this folder.
    pub fn leads_inside(&self, name: impl AsRef<Path>) -> bool {
        self.open_with(name.as_ref(), OFlag::O_PATH, 0, ResolveFlag::RESOLVE_NO_MAGICLINKS).is_ok()
    }
}

fn kind_of(folder: &OwnedFd, name: &OsStr) -> Option<Type> {
    let stat = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
    Some(match stat.st_mode & libc::S_IFMT {
        libc::S_IFDIR => Type::Directory,
        libc::S_IFLNK => Type::Symlink,
        _ => Type::File,
    })
}
