//! The store's file: its name, how it is opened, and the errors of opening it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use redb::{DatabaseError, StorageError};

pub(super) const FILE_NAME: &str = "store.redb";

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    #[error("{} is damaged: {reason}", path.display())]
    Corrupt { path: PathBuf, reason: String },
    #[error(
        "{} has format {found}, this version of knarr reads formats up to {supported}: start one that is at least as new \
         as the last one that used it, or restore a backup",
        path.display()
    )]
    Format { path: PathBuf, found: u64, supported: u64 },
    #[error("cannot open {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot start the commit thread")]
    Thread(#[source] io::Error),
}

/// The path of the store's file in a folder.
pub(crate) fn file(dir: &Path) -> PathBuf {
    dir.join(FILE_NAME)
}

/// Opens the file for reading and writing; creates it if it does not exist.
pub(super) fn open_file(dir: &Path, path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // The file's name must be as durable as its content.
    File::open(dir)?.sync_all()?;
    // Data that an earlier sync failed to write must not be read from memory.
    file.sync_all()?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    Ok(file)
}

/// Runs `open`. redb panics on some damaged files; this returns an error for them, as for other damage.
pub(super) fn guarded<T>(path: &Path, open: impl FnOnce() -> Result<T, OpenError>) -> Result<T, OpenError> {
    std::panic::catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
        Err(OpenError::Corrupt { path: path.to_owned(), reason: "the database cannot be read".to_owned() })
    })
}

pub(super) fn database_error(path: &Path, error: DatabaseError) -> OpenError {
    let path = path.to_owned();
    let corrupt =
        |path, reason: &dyn std::fmt::Display| OpenError::Corrupt { path, reason: reason.to_string() };
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::Locked(path),
        DatabaseError::Storage(StorageError::Io(source)) => match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => corrupt(path, &source),
            _ => OpenError::Io { path, source },
        },
        error => corrupt(path, &error),
    }
}
