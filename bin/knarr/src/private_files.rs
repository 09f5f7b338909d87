//! Files that only their owner may read, and the lock of a folder of such files.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};

/// How long a command waits for other processes to release the folder.
const SOON: Duration = Duration::from_secs(3);

/// Locks the folder for reading: waits until other processes have released it, and keeps them from changing
/// it until the lock is dropped.
pub fn lock_to_read(folder: &Path) -> Result<Flock<fs::File>> {
    wait_for(folder, FlockArg::LockShared)
}

/// Locks the folder like [`lock`], but waits until other processes have released it.
pub fn wait_for_lock(folder: &Path) -> Result<Flock<fs::File>> {
    wait_for(folder, FlockArg::LockExclusive)
}

fn wait_for(folder: &Path, how: FlockArg) -> Result<Flock<fs::File>> {
    let locked = Flock::lock(lock_file(folder)?, how).map_err(|(_, error)| error);
    locked.with_context(|| format!("cannot lock {}", folder.display()))
}

fn lock_file(folder: &Path) -> Result<fs::File> {
    let path = folder.join("lock");
    let options = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    options.with_context(|| format!("cannot open {}", path.display()))
}

/// Keeps other processes from changing a folder of certificates until the lock is dropped; fails if one of
/// them holds it.
pub fn lock(folder: &Path) -> Result<Flock<fs::File>> {
    Flock::lock(lock_file(folder)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| {
        anyhow::Error::new(error)
            .context("another process changes the certificates just now, or a server starts; try again")
    })
}

/// Locks the folder like [`lock`], for a command: waits a moment, because renewals and backups of a running
/// server are short.
pub fn lock_soon(folder: &Path) -> Result<Flock<fs::File>> {
    let (send, receive) = std::sync::mpsc::channel();
    let waited_for = folder.to_owned();
    // A lock that is acquired too late is released at once, because its receiver is dropped.
    std::thread::spawn(move || send.send(wait_for_lock(&waited_for)));
    receive.recv_timeout(SOON).unwrap_or_else(|_| lock(folder))
}

/// Reads a text file; errors contain its path.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file that only its owner may read, atomically. An unchanged file is not written again, so that a
/// server starts on a full disk.
pub fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    let is_private = |m: fs::Metadata| m.is_file() && m.permissions().mode() & 0o7777 == 0o600;
    let unchanged = || fs::read(path).is_ok_and(|old| old == content);
    if fs::symlink_metadata(path).is_ok_and(is_private) && unchanged() {
        return Ok(());
    }
    // The suffix is added to the whole name, because certificate and key differ in their extensions only.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || -> std::io::Result<()> {
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The rename is durable only after the folder is synced.
        path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
