//! The file of the embedded engine: a redb database with the current keys and the log to undo revisions.

mod blocks;
pub(crate) mod check;
mod codec;
pub(crate) mod file;
mod journal;
mod load;
mod look;
mod migrate;
mod overlay;
mod reserve;
pub(crate) mod restore;
pub(crate) mod rewrite;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod migrate_tests;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;

use crate::engine::state::State;
use crate::options::Options;
use blocks::Blocks;
pub use check::{Checked, Fault, FaultKind};
pub use file::OpenError;
use file::{FILE_NAME, database_error, guarded, open_file};
use journal::{Opener, RedbJournal};
use look::Looker;
use migrate::FORMAT;
pub use overlay::is_damaged_disk;
use reserve::{Reserve, ReservedFile};
pub use restore::{Entry, WriteError};
pub use rewrite::RepairError;

/// Opens the store in a folder; also returns the path of its file.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<(RedbJournal, State, PathBuf), OpenError> {
    let path = file::file(dir);
    let io_error = |source| OpenError::Io { path: path.clone(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error)?;
    create_whole(dir, &path)?;
    let reserve = Arc::new(Reserve::open(dir, options.reserve_bytes));
    let blocks = Arc::new(Blocks::default());
    let opener = opener(dir, &path, options.cache_bytes, Arc::clone(&reserve), Arc::clone(&blocks));
    let (journal, state) = start(opener, reserve, &path)?;
    let looker = Looker::new(File::open(&path).map_err(io_error)?, blocks);
    Ok((journal.with_raw(Arc::new(looker)), state, path))
}

/// Creates the file if it does not exist. It has another name until redb has written the header by which it recognizes
/// its files. A process that is killed in between, or finds the disk full, leaves no file that can never be opened.
fn create_whole(dir: &Path, path: &Path) -> Result<(), OpenError> {
    if path.exists() {
        return Ok(());
    }
    let io_error = |source| OpenError::Io { path: path.to_owned(), source };
    let new = dir.join(format!("{FILE_NAME}.{}.new", std::process::id()));
    let made = guarded(path, || {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&new);
        let made = redb::Builder::new().create_file(file.map_err(io_error)?);
        drop(made.map_err(|error| database_error(path, error))?);
        // Another process may have been faster; its file is kept.
        match std::fs::hard_link(&new, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // A file system without hard links.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) =>
            {
                std::fs::rename(&new, path).map_err(io_error)
            }
            linked => linked.map_err(io_error),
        }
    });
    // A file left by a killed process is small and harmless.
    let _ = std::fs::remove_file(&new);
    made
}

/// Returns the function that opens the store's file: at the start, and again after a failed write.
fn opener(dir: &Path, path: &Path, cache_bytes: usize, reserve: Arc<Reserve>, blocks: Arc<Blocks>) -> Opener {
    let (dir, path) = (dir.to_owned(), path.to_owned());
    Box::new(move || {
        blocks.forget();
        let file = open_file(&dir, &path).map_err(|source| OpenError::Io { path: path.clone(), source })?;
        guarded(&path, || {
            let failed = |error| database_error(&path, error);
            let backend = FileBackend::new(file).map_err(failed)?;
            let backend = ReservedFile::new(backend, Arc::clone(&reserve), Arc::clone(&blocks));
            redb::Builder::new().set_cache_size(cache_bytes).create_with_backend(backend).map_err(failed)
        })
    })
}

/// Opens the database, loads the state from it and prepares it for writing.
fn start(mut opener: Opener, reserve: Arc<Reserve>, path: &Path) -> Result<(RedbJournal, State), OpenError> {
    let database = opener()?;
    guarded(path, || {
        let corrupt = |reason: String| OpenError::Corrupt { path: path.to_owned(), reason };
        let state = load::load(&database).map_err(|error| match error {
            load::LoadError::Format(found) => {
                OpenError::Format { path: path.to_owned(), found, supported: FORMAT }
            }
            error => corrupt(error.to_string()),
        })?;
        let journal = RedbJournal::new(opener, database, reserve, path.to_owned());
        Ok((journal.map_err(|error| corrupt(error.to_string()))?, state))
    })
}
