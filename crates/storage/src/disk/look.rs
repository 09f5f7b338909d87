//! Scrubs the bytes of the store's file while it is in use. Uses a file descriptor of its own, because redb stops
//! working after a failed read, and answers reads from its cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::blocks::{BLOCK, Blocks, sum};
use crate::engine::journal::{FileStep, RawFile};
use crate::types::ScrubFault;

/// The number of bytes that one step reads.
const STEP_BYTES: usize = 1024 * 1024;
/// After this many unreadable blocks, the rest of a step is skipped: a dying disk takes seconds for each.
const MOST_UNREADABLE: usize = 4;

/// The source of the bytes.
pub(super) trait Source: Send + Sync + std::fmt::Debug {
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize>;
}

impl Source for File {
    /// Reads from the disk, not from the page cache.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let (at, len) = (offset.cast_signed(), out.len() as i64);
        let _ = posix_fadvise(self, at, len, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        self.read_at(out, offset)
    }
}

#[derive(Debug)]
pub(super) struct Looker<S> {
    source: S,
    blocks: Arc<Blocks>,
    /// Whether this scrub has found a fault; locked during a step.
    damaged: Mutex<bool>,
}

impl<S: Source> Looker<S> {
    pub(super) fn new(source: S, blocks: Arc<Blocks>) -> Self {
        Self { source, blocks, damaged: Mutex::new(false) }
    }
}

impl<S: Source> RawFile for Looker<S> {
    fn look(&self, offset: u64) -> FileStep {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let first = offset / BLOCK;
        self.blocks.begin(first, STEP_BYTES / BLOCK as usize);
        let read = Read::from(&self.source, first * BLOCK);
        let mut faults = read.unreadable;
        let differ = self.blocks.end(&read.sums);
        let reason = "it is not as it was written";
        faults.extend(differ.into_iter().map(|block| (block, 1, reason.to_owned())));
        *damaged = !faults.is_empty() || (*damaged && offset > 0);
        FileStep {
            next: (!read.ended).then_some((first * BLOCK).saturating_add(STEP_BYTES as u64)),
            bytes: read.bytes,
            faults: merged(faults),
            damaged: *damaged,
        }
    }
}

/// The result of reading one step.
#[derive(Debug, Default)]
struct Read {
    /// The checksum of each block; `None` if it could not be read.
    sums: Vec<Option<u32>>,
    bytes: u64,
    /// Whether the end of the file was reached.
    ended: bool,
    /// The first block, the number of blocks, and the reason.
    unreadable: Vec<(u64, u64, String)>,
}

impl Read {
    fn from(source: &impl Source, offset: u64) -> Self {
        let mut buffer = vec![0; STEP_BYTES];
        let size = BLOCK as usize;
        let (mut read, mut bad, mut at) = (Self::default(), Vec::new(), 0);
        while at < STEP_BYTES {
            match source.read(offset + at as u64, &mut buffer[at..]) {
                Ok(0) => {
                    read.ended = true;
                    break;
                }
                Ok(got) => {
                    at += got;
                    read.bytes += got as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let block = at / size;
                    let is_last = bad.len() + 1 == MOST_UNREADABLE;
                    let count = if is_last { STEP_BYTES / size - block } else { 1 };
                    let first = offset / BLOCK + block as u64;
                    read.unreadable.push((first, count as u64, format!("it cannot be read: {error}")));
                    bad.push(block);
                    at = (block + 1) * size;
                    if is_last {
                        break;
                    }
                }
            }
        }
        let whole = buffer[..at.min(STEP_BYTES)].chunks_exact(size).enumerate();
        read.sums = whole.map(|(n, block)| (!bad.contains(&n)).then(|| sum(block))).collect();
        read
    }
}

/// Merges faults of adjacent blocks.
fn merged(mut faults: Vec<(u64, u64, String)>) -> Vec<ScrubFault> {
    faults.sort();
    let mut merged: Vec<(u64, u64, String)> = Vec::new();
    for (block, count, reason) in faults {
        match merged.last_mut() {
            Some((first, before, same)) if *first + *before == block && *same == reason => *before += count,
            _ => merged.push((block, count, reason)),
        }
    }
    merged
        .into_iter()
        .map(|(first, count, reason)| ScrubFault::of_file(first * BLOCK..(first + count) * BLOCK, reason))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with blocks that cannot be read.
    #[derive(Debug)]
    struct Disk(Vec<u8>, Vec<u64>);

    impl Source for Disk {
        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
            let end = self.0.len().min(offset as usize + out.len()) as u64;
            let bad = self.1.iter().map(|block| block * BLOCK).find(|at| offset < at + BLOCK && *at < end);
            let readable = bad.unwrap_or(end).saturating_sub(offset) as usize;
            if readable == 0 && bad.is_some() {
                return Err(io::Error::from_raw_os_error(5));
            }
            let at = (offset as usize).min(self.0.len());
            out[..readable].copy_from_slice(&self.0[at..at + readable]);
            Ok(readable)
        }
    }

    fn places(step: &FileStep) -> Vec<String> {
        step.faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_place() {
        let blocks = Arc::new(Blocks::default());
        let len = STEP_BYTES + 3 * BLOCK as usize;
        let sound = Looker::new(Disk(vec![7; len], Vec::new()), Arc::clone(&blocks));
        let first = sound.look(0);
        assert_eq!((first.next, first.bytes, first.damaged), (Some(STEP_BYTES as u64), 1 << 20, false));
        let last = sound.look(STEP_BYTES as u64);
        assert_eq!((last.next, last.bytes, last.faults.len()), (None, 3 * BLOCK, 0));

        let mut bytes = vec![7; len];
        bytes[7 * BLOCK as usize] = 1;
        let bad = Looker::new(Disk(bytes, vec![2, 3, 9, 256]), Arc::clone(&blocks));
        let step = bad.look(0);
        let eio = "it cannot be read: Input/output error (os error 5)";
        assert_eq!(
            places(&step),
            [
                format!("bytes 8192 to 16383: {eio}"),
                "bytes 28672 to 32767: it is not as it was written".to_owned(),
                format!("bytes 36864 to 40959: {eio}"),
            ]
        );
        assert_eq!(step.bytes, (256 - 3) * BLOCK);
        let step = bad.look(STEP_BYTES as u64);
        assert_eq!((places(&step).len(), step.next, step.damaged), (1, None, true));
        assert!(sound.look(STEP_BYTES as u64).faults.is_empty(), "an unreadable block has no checksum");

        // A disk that reads nothing is not read block by block.
        let dead = Looker::new(Disk(vec![7; len], (0..300).collect()), blocks);
        let step = dead.look(0);
        assert_eq!(places(&step), [format!("bytes 0 to 1048575: {eio}")]);
        assert!(step.damaged && step.next.is_some());
    }
}
