//! Disk space reserved for deletions: a file beside the store that shrinks when the disk is full.
//!
//! A write that finds no space takes what it needs from the reserve and is repeated, so that it succeeds. The engine
//! sees that the reserve is incomplete and refuses writes that make the store larger.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FallocateFlags, fallocate};
use redb::{BackendError, StorageBackend};

use super::blocks::Blocks;
use crate::engine::journal::Room;

const FILE_NAME: &str = "store.reserve";
/// The minimum amount that is taken from the reserve at once.
const STEP_BYTES: u64 = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Reserve {
    /// `None` if there is no reserve.
    file: Option<File>,
    size: u64,
    /// The present size of the reserve.
    left: AtomicU64,
    /// The last error on the store's file since the last call of [`Reserve::take_failure`].
    failure: Mutex<Option<String>>,
}

impl Reserve {
    /// Opens the reserve in a folder. If the disk is too full for it, or cannot allocate space, the store opens without
    /// it.
    pub(super) fn open(dir: &Path, size: u64) -> Self {
        let path = dir.join(FILE_NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        if size == 0 {
            // A reserve is no longer configured.
            let _ = std::fs::remove_file(&path);
        }
        let file = match (size > 0).then(|| options.open(&path)).transpose() {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot open the reserve for a full disk");
                None
            }
        };
        let reserve = Self { file, size, left: AtomicU64::new(0), failure: Mutex::default() };
        if let Some(file) = &reserve.file {
            if file.metadata().is_ok_and(|of| of.len() > size) {
                let _ = file.set_len(size);
            }
            reserve.note_length(file);
            reserve.refill();
        }
        reserve
    }

    /// The last error on the store's file since the last call, if any.
    pub(super) fn take_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, done: io::Result<()>) -> io::Result<()> {
        done.inspect_err(|error| {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        })
    }

    pub(super) fn room(&self) -> Room {
        let left = self.left.load(Ordering::Acquire);
        match self.file {
            Some(_) if left < self.size / 2 => Room::Last,
            Some(_) if left < self.size => Room::Short,
            _ => Room::Enough,
        }
    }

    /// Fills up the reserve from the free space.
    pub(super) fn refill(&self) {
        let Some(file) = &self.file else { return };
        if self.room() == Room::Enough {
            return;
        }
        let filled = allocate(file, self.size);
        self.note_length(file);
        match filled {
            Ok(()) => {}
            Err(error) if is_full(&error) => {}
            Err(error) => tracing::warn!(%error, "cannot fill up the reserve for a full disk"),
        }
    }

    /// Releases space for a write of this many bytes. Returns false if nothing is left.
    fn give(&self, bytes: u64) -> bool {
        let Some(file) = &self.file else { return false };
        let left = self.left.load(Ordering::Acquire);
        if left == 0 {
            return false;
        }
        let given = file.set_len(left.saturating_sub(bytes.max(STEP_BYTES)));
        self.note_length(file);
        if let Err(error) = &given {
            tracing::error!(%error, "cannot release the reserve for a full disk");
        }
        given.is_ok()
    }

    fn note_length(&self, file: &File) {
        let length = file.metadata().map_or(0, |of| of.len());
        self.left.store(length, Ordering::Release);
    }
}

/// Extends the file to this size, with disk space allocated for all of it.
fn allocate(file: &File, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, size.cast_signed()) {
        Err(nix::Error::EOPNOTSUPP) => {}
        result => return result.map_err(io::Error::from),
    }
    let zeros = vec![0; 64 * 1024];
    let mut at = file.metadata()?.len();
    while at < size {
        let chunk = zeros.len().min(usize::try_from(size - at).unwrap_or(usize::MAX));
        file.write_all_at(&zeros[..chunk], at)?;
        at += chunk as u64;
    }
    file.sync_data()
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The store's file. Uses the reserve when the disk is full, and records the checksums of its blocks.
#[derive(Debug)]
pub(super) struct ReservedFile<B> {
    inner: B,
    reserve: Arc<Reserve>,
    blocks: Arc<Blocks>,
}

impl<B: StorageBackend> ReservedFile<B> {
    pub(super) fn new(inner: B, reserve: Arc<Reserve>, blocks: Arc<Blocks>) -> Self {
        Self { inner, reserve, blocks }
    }

    fn with_reserve(&self, bytes: u64, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
        loop {
            match write() {
                Err(error) if is_full(&error) && self.reserve.give(bytes) => {}
                result => return result,
            }
        }
    }
}

type Locked<T> = Result<T, BackendError>;

impl<B: StorageBackend> StorageBackend for ReservedFile<B> {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)?;
        self.blocks.read(offset, out);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.blocks.cut(len);
        let set = self.with_reserve(0, || self.inner.set_len(len));
        self.blocks.cut(len);
        self.reserve.note(set)
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = self.inner.sync_data();
        if synced.as_ref().is_err_and(is_full) {
            // The disk may turn out to be full only at the sync. The written data are lost; the next attempt writes
            // them again.
            self.reserve.give(0);
        }
        self.reserve.note(synced)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.blocks.will_write(offset, data.len());
        let written = self.with_reserve(data.len() as u64, || self.inner.write(offset, data));
        self.reserve.note(written)?;
        self.blocks.written(offset, data, |at, block| self.inner.read(at, block).is_ok());
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.reserve.note(self.inner.close())
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<()> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Locked<bool> {
        self.inner.query_lock_range(start, end)
    }
}
