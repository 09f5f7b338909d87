//! Room that is kept for deletions: a file beside the store that shrinks when the disk is full.
//!
//! A write that finds no room takes what it needs from the reserve and is repeated, so that it goes through. The engine
//! sees that the reserve is not whole and refuses what would make the store larger.

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
/// What is taken from the reserve at once, at least.
const STEP_BYTES: u64 = 1024 * 1024;

#[derive(Debug)]
pub(super) struct Reserve {
    /// `None`: no reserve is kept.
    file: Option<File>,
    size: u64,
    /// How much of it is there.
    left: AtomicU64,
    /// What failed on the store's file since somebody asked.
    failure: Mutex<Option<String>>,
}

impl Reserve {
    /// The reserve in a folder. A disk too full for it, or one that cannot allocate, does not keep the store closed.
    pub(super) fn open(dir: &Path, size: u64) -> Self {
        let path = dir.join(FILE_NAME);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        if size == 0 {
            // None is kept any more.
            let _ = std::fs::remove_file(&path);
        }
        let file = match (size > 0).then(|| options.open(&path)).transpose() {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no room is kept for a full disk");
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

    /// What failed on the store's file since this was asked last, if anything.
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

    /// Takes back what is free now.
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
            Err(error) => tracing::warn!(%error, "cannot keep room for a full disk"),
        }
    }

    /// Gives up room for a write of so many bytes; false if there is none left.
    fn give(&self, bytes: u64) -> bool {
        let Some(file) = &self.file else { return false };
        let left = self.left.load(Ordering::Acquire);
        if left == 0 {
            return false;
        }
        let given = file.set_len(left.saturating_sub(bytes.max(STEP_BYTES)));
        self.note_length(file);
        if let Err(error) = &given {
            tracing::error!(%error, "cannot give up the room kept for a full disk");
        }
        given.is_ok()
    }

    fn note_length(&self, file: &File) {
        let length = file.metadata().map_or(0, |of| of.len());
        self.left.store(length, Ordering::Release);
    }
}

/// Makes the file so long that every byte of it has its place on the disk.
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

/// The store's file, with a reserve behind it, and with what is known of its blocks.
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
            // Where room is found at the sync only. What was written is lost: the next attempt writes it again.
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
