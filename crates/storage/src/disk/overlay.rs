//! The store's file as it is, with all that is written to it kept in memory: what looks into a store may let redb mend
//! what it needs, and nothing changes on the disk.

use std::collections::HashMap;
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

const BLOCK: u64 = 4096;
/// Blocks kept in memory: redb writes what it knows about free pages, not the rows.
const MOST_BLOCKS: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Overlay {
    inner: FileBackend,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    len: u64,
    blocks: HashMap<u64, Vec<u8>>,
}

impl Overlay {
    pub(super) fn new(inner: FileBackend) -> io::Result<Self> {
        let len = inner.len()?;
        Ok(Self { inner, written: Mutex::new(Written { len, blocks: HashMap::new() }) })
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
            there => self.inner.read(offset, &mut out[..there]),
        }
    }
}

/// The parts of a range of bytes, block by block: the block's number, where the part begins in it, its length.
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

impl StorageBackend for Overlay {
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
            // What is cut off does not come back when the file grows again; that the file still has it does no harm:
            // redb writes a page before it reads it.
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
        let overlay = Overlay::new(FileBackend::new(file).unwrap()).unwrap();
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
