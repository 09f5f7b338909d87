//! Copies of a data folder from before a repair; they are durable before anything is changed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use knarr_storage::is_damaged_disk;

/// How deep folders are followed below `pki/`.
const DEPTH: usize = 4;
const BUFFER_BYTES: usize = 1024 * 1024;
/// The size of the blocks that are skipped where the disk cannot be read.
const BLOCK_BYTES: usize = 4096;

/// A folder with copies. It is removed on drop unless something was changed that it is needed for.
pub struct Kept {
    folder: PathBuf,
    is_needed: bool,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.is_needed {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Kept {
    /// Creates the folder, with a copy of `pki`.
    pub fn new(folder: &Path, pki: &Path) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(folder)?;
        let kept = Self { folder: folder.to_owned(), is_needed: false };
        copy_folder(pki, &folder.join("pki"), DEPTH)?;
        sync(folder)?;
        folder.parent().map_or(Ok(()), sync)?;
        Ok(kept)
    }

    /// Copies the store's file too. Returns how many bytes could not be read; the copy has zeros there.
    pub fn add_store(&self, file: &Path) -> io::Result<u64> {
        let unread = copy_file(file, &self.store())?;
        sync(&self.folder)?;
        Ok(unread)
    }

    /// Removes the copy of the store, which was not changed after all.
    pub fn drop_store(&self) {
        let _ = fs::remove_file(self.store());
    }

    fn store(&self) -> PathBuf {
        self.folder.join("store.redb")
    }

    /// Keeps the folder, because changes begin.
    pub fn need(&mut self) {
        self.is_needed = true;
    }

    pub fn is_needed(&self) -> bool {
        self.is_needed
    }
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Copies files, targets of links, and folders.
fn copy_folder(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    DirBuilder::new().mode(0o700).create(to)?;
    for entry in entries {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        // A link without a target has nothing to copy.
        let Ok(of) = fs::metadata(&path) else { continue };
        if of.is_file() {
            copy_file(&path, &target)?;
        } else if entry.file_type()?.is_dir() && depth > 0 {
            copy_folder(&path, &target, depth - 1)?;
        }
    }
    sync(to)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<u64> {
    let source = File::open(from)?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let unread = copy_bytes(|at, out| source.read_at(out, at), &mut target)?;
    target.sync_all()?;
    Ok(unread)
}

/// Copies what can be read, with zeros in place of the rest; returns how many bytes could not be read.
fn copy_bytes(
    read: impl Fn(u64, &mut [u8]) -> io::Result<usize>,
    target: &mut impl Write,
) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut at, mut unread) = (0u64, 0);
    loop {
        match read(at, &mut buffer) {
            Ok(0) => return Ok(unread),
            Ok(got) => {
                target.write_all(&buffer[..got])?;
                at += got as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_damaged_disk(&error) => {
                let left_out = BLOCK_BYTES - (at % BLOCK_BYTES as u64) as usize;
                target.write_all(&[0; BLOCK_BYTES][..left_out])?;
                at += left_out as u64;
                unread += left_out as u64;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_left_out_of_a_copy() {
        let bytes: Vec<u8> = (0..BUFFER_BYTES + 9000).map(|n| (n % 251) as u8 + 1).collect();
        let bad = 8192..12_288;
        let read = |at: u64, out: &mut [u8]| {
            let at = at as usize;
            if bad.contains(&at) {
                return Err(io::Error::from_raw_os_error(nix::libc::EIO));
            }
            let end = if at < bad.start { bad.start } else { bytes.len() };
            let len = out.len().min(end - at);
            out[..len].copy_from_slice(&bytes[at..at + len]);
            Ok(len)
        };
        let mut copy = Vec::new();
        assert_eq!(copy_bytes(read, &mut copy).unwrap(), 4096);
        let mut expected = bytes.clone();
        expected[bad.clone()].fill(0);
        assert!(copy == expected);
        let refused = |_: u64, _: &mut [u8]| Err(io::ErrorKind::PermissionDenied.into());
        assert!(copy_bytes(refused, &mut Vec::new()).is_err());
    }

    #[test]
    fn copies_go_unless_they_are_needed() {
        let root = std::env::temp_dir().join(format!("knarr-keep-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let pki = root.join("pki");
        fs::create_dir_all(pki.join("etcd")).unwrap();
        fs::write(root.join("elsewhere"), "key").unwrap();
        fs::write(pki.join("etcd/ca.crt"), "ca").unwrap();
        std::os::unix::fs::symlink("../elsewhere", pki.join("linked.key")).unwrap();
        std::os::unix::fs::symlink("nowhere", pki.join("dangling")).unwrap();
        let folder = root.join("before-repair-1");
        let kept = Kept::new(&folder, &pki).unwrap();
        assert_eq!(kept.add_store(&root.join("elsewhere")).unwrap(), 0);
        assert_eq!(fs::read(folder.join("pki/linked.key")).unwrap(), b"key");
        assert_eq!(fs::read(folder.join("pki/etcd/ca.crt")).unwrap(), b"ca");
        // A copy fails if the file cannot be read, or has no place.
        assert!(kept.add_store(&root.join("missing")).is_err());
        drop(kept);
        assert!(!folder.exists());
        let mut kept = Kept::new(&folder, &pki).unwrap();
        kept.need();
        drop(kept);
        assert!(folder.join("pki/linked.key").exists());
        // A folder that exists already is not removed.
        assert!(Kept::new(&folder, &pki).is_err());
        assert!(folder.join("pki/linked.key").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
