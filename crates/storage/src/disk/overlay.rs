//! The store's file, with all writes to it kept in memory. With it a check lets redb repair what it needs, and nothing
//! changes on the disk. Blocks that the disk cannot read are returned as zeros, which match no checksum: after a read
//! error redb would refuse all other reads.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::libc;
use redb::{BackendError, StorageBackend};

const BLOCK: u64 = 4096;
/// The maximum number of blocks in memory. It is sufficient because redb only writes its records of free pages, not the
/// rows.
const MOST_BLOCKS: usize = 64 * 1024;

/// The offsets of the blocks that could not be read, with the reasons.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<Mutex<BTreeMap<u64, String>>>);

impl Unread {
    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes the ranges of such blocks.
    pub(super) fn words(&self) -> Vec<String> {
        let mut stretches: Vec<(u64, u64, String)> = Vec::new();
        for (at, reason) in self.blocks().iter() {
            match stretches.last_mut() {
                Some((_, end, same)) if end == at && same == reason => *end += BLOCK,
                _ => stretches.push((*at, at + BLOCK, reason.clone())),
            }
        }
        let words = |(first, end, reason)| format!("bytes {first} to {} cannot be read: {reason}", end - 1);
        stretches.into_iter().map(words).collect()
    }
}

/// Returns whether the error means that the disk, or the file system on it, does not return what was written.
pub fn is_damaged_disk(error: &io::Error) -> bool {
    let codes = [libc::EIO, libc::EBADMSG, libc::EUCLEAN, libc::EREMOTEIO, libc::ENODATA, libc::EILSEQ];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

#[derive(Debug)]
pub(super) struct Overlay<B> {
    inner: B,
    unread: Unread,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    len: u64,
    blocks: HashMap<u64, Vec<u8>>,
}

impl<B: StorageBackend> Overlay<B> {
    pub(super) fn new(inner: B, unread: Unread) -> io::Result<Self> {
        let len = inner.len()?;
        Ok(Self { inner, unread, written: Mutex::new(Written { len, blocks: HashMap::new() }) })
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the file, with zeros behind its end.
    fn read_file(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        let there = usize::try_from(self.inner.len()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        match there.min(out.len()) {
            0 => Ok(()),
            there => match self.inner.read(offset, &mut out[..there]) {
                Err(error) if is_damaged_disk(&error) => self.read_parts(offset, &mut out[..there]),
                read => read,
            },
        }
    }

    /// Reads the readable blocks, and records the others.
    fn read_parts(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        for (block, within, len) in parts(offset, out.len()) {
            let part = &mut out[done..done + len];
            match self.inner.read(block * BLOCK + within as u64, part) {
                Err(error) if is_damaged_disk(&error) => {
                    part.fill(0);
                    self.unread.blocks().insert(block * BLOCK, error.to_string());
                }
                read => read?,
            }
            done += len;
        }
        Ok(())
    }
}

/// Splits a range of bytes by block: the block's number, the offset of the part in it, and its length.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK) as usize;
        let part = (len - done).min(BLOCK as usize - within);
        done += part;
        (part > 0).then_some((at / BLOCK, within, part))
    })
}

impl<B: StorageBackend> StorageBackend for Overlay<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > written.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_file(offset, out)?;
        let mut done = 0;
        for (block, within, part) in parts(offset, out.len()) {
            if let Some(bytes) = written.blocks.get(&block) {
                out[done..done + part].copy_from_slice(&bytes[within..within + part]);
            }
            done += part;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut written = self.written();
        if len < written.len {
            // Blocks that are cut off must not reappear when the file grows again. The underlying file still has its
            // own bytes there, which is harmless: redb writes a page before it reads it.
            written.blocks.retain(|block, _| block * BLOCK < len);
        }
        written.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written();
        let mut done = 0;
        for (block, within, part) in parts(offset, data.len()) {
            if !written.blocks.contains_key(&block) {
                if written.blocks.len() >= MOST_BLOCKS {
                    return Err(io::Error::other("too much of the file would have to be mended in memory"));
                }
                let mut bytes = vec![0; BLOCK as usize];
                self.read_file(block * BLOCK, &mut bytes)?;
                written.blocks.insert(block, bytes);
            }
            if let Some(bytes) = written.blocks.get_mut(&block) {
                bytes[within..within + part].copy_from_slice(&data[done..done + part]);
            }
            done += part;
        }
        written.len = written.len.max(offset + data.len() as u64);
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::FileBackend;

    use super::super::tests::TempDir;
    use super::*;

    #[test]
    fn writes_are_read_back_and_leave_the_file_alone() {
        let dir = TempDir::new();
        std::fs::create_dir_all(&dir.0).unwrap();
        let path = dir.0.join("f");
        let original: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
        std::fs::write(&path, &original).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        let overlay = Overlay::new(FileBackend::new(file).unwrap(), Unread::default()).unwrap();
        let mut expected = original.clone();
        for (offset, len) in [(0, 10), (4090, 12), (8192, 4096), (19_990, 10), (19_000, 3000)] {
            let data = vec![0xee; len];
            overlay.write(offset as u64, &data).unwrap();
            expected.resize(expected.len().max(offset + len), 0);
            expected[offset..offset + len].copy_from_slice(&data);
        }
        overlay.set_len(30_000).unwrap();
        expected.resize(30_000, 0);
        let mut all = vec![1; 30_000];
        overlay.read(0, &mut all).unwrap();
        assert_eq!(all, expected);
        assert!(overlay.read(29_999, &mut [0; 2]).is_err());
        assert!(overlay.read(u64::MAX, &mut [0; 2]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), original);
    }
}
