//! Removes folders that containers filled, whatever they contain: however deep, with links, with mounts.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::dir::{Dir, OwningIter, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// The number of folders that are kept open on the way down. Parents above them are opened again on the way up.
const KEPT_OPEN: usize = 16;
/// How often a folder is read again because entries were missed, or were created while it was emptied.
const MAX_AGAIN: u32 = 64;

/// Deletes a folder with its content. Succeeds if it does not exist; if it is a link, deletes only the link.
///
/// The depth costs a few bytes of memory per level, but neither stack nor descriptors nor ever longer paths. No
/// link is followed. Nothing that is mounted below the folder is touched: a mount is an error.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    let opened = match open(path, folder_flags(), Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return fine_if_gone(fs::remove_file(path)),
        Err(error) => return Err(error.into()),
    };
    let mut removal = Removal { levels: Vec::new(), again: 0 };
    removal.push(opened, CString::default())?;
    removal.empty()?;
    fine_if_gone(fs::remove_dir(path))
}

fn fine_if_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn folder_flags() -> OFlag {
    OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// A folder on the path from the first one to the one that is being emptied.
struct Level {
    /// `None` if it was closed on the way down.
    entries: Option<OwningIter>,
    /// Device and inode. A subvolume of btrfs has its own device number and is not a mount.
    identity: (u64, u64),
    /// Its name in the folder above.
    name: CString,
}

struct Removal {
    levels: Vec<Level>,
    again: u32,
}

fn descriptor(entries: &OwningIter) -> BorrowedFd<'_> {
    // SAFETY: the folder stays open as long as it is borrowed.
    unsafe { BorrowedFd::borrow_raw(entries.as_raw_fd()) }
}

impl Removal {
    fn push(&mut self, folder: OwnedFd, name: CString) -> io::Result<()> {
        let found = fstat(&folder)?;
        let identity = (found.st_dev, found.st_ino);
        let entries = Some(Dir::from_fd(folder)?.into_iter());
        if let Some(at) = self.levels.len().checked_sub(KEPT_OPEN) {
            self.levels[at].entries = None;
        }
        self.levels.push(Level { entries, identity, name });
        Ok(())
    }

    /// Empties the first folder.
    fn empty(&mut self) -> io::Result<()> {
        while let Some(Level { entries: Some(entries), .. }) = self.levels.last_mut() {
            let Some(entry) = entries.next() else {
                if !self.go_up()? {
                    return Ok(());
                }
                continue;
            };
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let folder = descriptor(entries);
            // Some file systems do not report the type of an entry.
            let mut refusal = Errno::EISDIR;
            if entry.file_type() != Some(Type::Directory) {
                match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => continue,
                    // POSIX specifies EPERM for folders, and some file systems return it.
                    Err(error @ (Errno::EISDIR | Errno::EPERM)) => refusal = error,
                    Err(error) => return Err(error.into()),
                }
            }
            match open_child(folder, name) {
                Ok(child) => self.push(child, name.to_owned())?,
                Err(Errno::ENOENT) => {}
                Err(Errno::EXDEV) => return Err(io::ErrorKind::ResourceBusy.into()),
                Err(Errno::ENOTDIR | Errno::ELOOP) => return Err(refusal.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes the folder that was emptied, and continues in the one above; returns false at the first one.
    fn go_up(&mut self) -> io::Result<bool> {
        let [.., above, Level { entries: Some(entries), name, .. }] = self.levels.as_mut_slice() else {
            return Ok(false);
        };
        if above.entries.is_none() {
            let parent = openat(descriptor(entries), "..", folder_flags(), Mode::empty())?;
            let found = fstat(&parent)?;
            if (found.st_dev, found.st_ino) != above.identity {
                return Err(io::Error::other("a folder was moved while it was removed"));
            }
            above.entries = Some(Dir::from_fd(parent)?.into_iter());
        }
        let Some(parent) = &above.entries else { return Ok(false) };
        match unlinkat(descriptor(parent), name.as_c_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {
                self.levels.pop();
            }
            // Reading a folder may miss entries while others are being deleted.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if self.again < MAX_AGAIN => {
                self.again += 1;
                let child = open_child(descriptor(parent), name)?;
                *entries = Dir::from_fd(child)?.into_iter();
            }
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }
}

/// Opens a folder without following links or entering a mount.
fn open_child(folder: BorrowedFd<'_>, name: &CStr) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_XDEV
        | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    openat2(folder, name, OpenHow::new().flags(folder_flags()).resolve(resolve))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::fixture::TempDir;
    use nix::sys::resource::{Resource, setrlimit};
    use nix::sys::stat::mkdirat;
    use std::os::unix::fs::symlink;

    const DEPTH: u32 = 20_000;
    const DEEP: &str = "KNARR_TEST_DEEP_FOLDER";

    /// Creates a chain of folders that is too deep for any path.
    fn dig(top: &Path) {
        let mut at = open(top, folder_flags(), Mode::empty()).unwrap();
        for _ in 0..DEPTH {
            mkdirat(&at, "d", Mode::S_IRWXU).unwrap();
            at = openat(&at, "d", folder_flags(), Mode::empty()).unwrap();
        }
        std::os::unix::fs::symlink("..", format!("/proc/self/fd/{}/link", at.as_raw_fd())).unwrap();
    }

    /// Removes the chain in a separate process, because a stack overflow would end it.
    #[test]
    fn a_deep_folder_needs_neither_stack_nor_descriptors() {
        if let Some(folder) = std::env::var_os(DEEP) {
            setrlimit(Resource::RLIMIT_NOFILE, 40, 40).unwrap();
            let small = std::thread::Builder::new().stack_size(256 << 10);
            small.spawn(move || remove_folder(Path::new(&folder)).unwrap()).unwrap().join().unwrap();
            return;
        }
        let dir = TempDir::new();
        let folder = dir.path().join("deep");
        fs::create_dir(&folder).unwrap();
        dig(&folder);
        let name = "removal::tests::a_deep_folder_needs_neither_stack_nor_descriptors";
        let own = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(DEEP, &folder)
            .output()
            .unwrap();
        let gone = !folder.exists();
        // Removed here as well, so that a failure leaves nothing behind.
        remove_folder(&folder).unwrap();
        assert!(own.status.success() && gone, "{}", String::from_utf8_lossy(&own.stdout));
    }

    #[test]
    fn everything_goes_and_no_link_is_followed() {
        let dir = TempDir::new();
        let (folder, outside) = (dir.path().join("folder"), dir.path().join("outside"));
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        for name in ["a/b/c", "a/e", "wide"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        for number in 0..2000 {
            fs::create_dir(folder.join(format!("wide/{number}"))).unwrap();
            fs::write(folder.join(format!("wide/{number}/file")), "").unwrap();
        }
        symlink(&outside, folder.join("a/b/link")).unwrap();
        symlink("nowhere", folder.join("a/dangling")).unwrap();
        nix::unistd::mkfifo(&folder.join("a/pipe"), Mode::S_IRWXU).unwrap();
        remove_folder(&folder).unwrap();
        assert!(!folder.exists() && outside.join("kept").exists());
        remove_folder(&folder).unwrap();

        let link = dir.path().join("link");
        symlink(&outside, &link).unwrap();
        remove_folder(&link).unwrap();
        assert!(fs::symlink_metadata(&link).is_err() && outside.join("kept").exists());
    }

    /// Runs in a mount namespace of a separate thread.
    #[test]
    fn what_is_mounted_stays() {
        use nix::mount::{MsFlags, mount};
        let dir = TempDir::new();
        let (folder, other) = (dir.path().join("folder"), dir.path().join("other"));
        fs::create_dir_all(folder.join("a/mounted")).unwrap();
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("kept"), "").unwrap();
        let (inside, of_other) = (folder.join("a/mounted"), other.clone());
        let none = None::<&str>;
        let removed = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            // A bind mount of the same file system, which has the same device number.
            mount(Some(&of_other), &inside, none, MsFlags::MS_BIND, none).unwrap();
            remove_folder(&folder)
        });
        let error = removed.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(other.join("kept").exists());
    }
}
