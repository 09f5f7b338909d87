//! The sockets below the registry folder, and notifications of changes.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::inotify::Inotify;

/// Deeper folders are not searched.
const MAX_DEPTH: usize = 8;
/// The maximal number of sockets and folders.
const MAX_ENTRIES: usize = 4096;

/// Distinguishes a socket from a later one at the same path: device, inode, and time of creation.
pub type Identity = (u64, u64, i64, i64);

/// The result of a scan of the folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub sockets: BTreeMap<PathBuf, Identity>,
    folders: Vec<PathBuf>,
}

/// Scans the folder and all folders below; names that begin with a dot are skipped.
pub fn scan(root: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            // The folder was removed after its parent was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound && depth > 0 => continue,
            Err(error) => return Err(error),
        };
        for entry in entries.flatten() {
            if found.sockets.len() + found.folders.len() + open.len() >= MAX_ENTRIES {
                return Ok(found);
            }
            let (Ok(kind), path) = (entry.file_type(), entry.path()) else { continue };
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if kind.is_dir() && depth < MAX_DEPTH {
                open.push((path, depth + 1));
            } else if kind.is_socket()
                && let Ok(meta) = entry.metadata()
            {
                found.sockets.insert(path, (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()));
            }
        }
        found.folders.push(folder);
    }
    Ok(found)
}

/// The watched registry folder.
pub struct Sockets {
    root: PathBuf,
    inotify: Inotify,
}

impl Sockets {
    /// Opens the folder; creates it if it is missing.
    pub fn open(root: PathBuf) -> io::Result<Self> {
        crate::folders::make(&root)?;
        let inotify = Inotify::new()?;
        Ok(Self { root, inotify })
    }

    /// Returns the current sockets. Folders are watched before they are read, so that no change is missed in
    /// between.
    pub fn look(&self) -> io::Result<Found> {
        let mut found = scan(&self.root)?;
        loop {
            for folder in &found.folders {
                // A folder that was removed meanwhile is missing in the next scan, too.
                if let Err(error) = self.inotify.watch(folder, MASK)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    return Err(error);
                }
            }
            let again = scan(&self.root)?;
            if again.folders == found.folders {
                return Ok(again);
            }
            found = again;
        }
    }

    /// Waits for a change after the last scan.
    pub async fn changed(&mut self) -> io::Result<()> {
        self.inotify.changed().await
    }
}

const MASK: u32 = libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVED_TO | libc::IN_MOVED_FROM;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[tokio::test]
    async fn sockets_come_and_go() {
        let root = std::env::temp_dir().join(format!("knarr-plugins-{:016x}", fastrand::u64(..)));
        let mut sockets = Sockets::open(root.clone()).unwrap();
        let names = |found: &Found| -> Vec<String> {
            let names = found.sockets.keys().map(|p| p.strip_prefix(&root).unwrap().display().to_string());
            names.collect()
        };
        assert!(sockets.look().unwrap().sockets.is_empty());
        let first = UnixListener::bind(root.join("a.sock")).unwrap();
        let _hidden = UnixListener::bind(root.join(".b.sock")).unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        sockets.changed().await.unwrap();
        let before = sockets.look().unwrap();
        assert_eq!(names(&before), ["a.sock"]);

        std::fs::create_dir(root.join("deep")).unwrap();
        sockets.changed().await.unwrap();
        sockets.look().unwrap();
        let _deep = UnixListener::bind(root.join("deep/c.sock")).unwrap();
        sockets.changed().await.unwrap();
        assert_eq!(names(&sockets.look().unwrap()), ["a.sock", "deep/c.sock"]);

        drop(first);
        std::fs::remove_file(root.join("a.sock")).unwrap();
        sockets.changed().await.unwrap();
        let _second = UnixListener::bind(root.join("a.sock")).unwrap();
        let after = sockets.look().unwrap();
        assert_ne!(before.sockets[&root.join("a.sock")], after.sockets[&root.join("a.sock")]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
