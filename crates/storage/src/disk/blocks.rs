//! Checksums of the blocks of the store's file, as they were written or first read. A later scrub of the file compares
//! against them. Four bytes for each block of 4 KiB.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::codec::checksum;

pub(super) const BLOCK: u64 = 4096;

/// The checksums. All writes to the file, and all reads of it by the database, are recorded here.
#[derive(Debug, Default)]
pub(super) struct Blocks(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By block number; 0 means unknown.
    sums: Vec<u32>,
    look: Option<Look>,
}

/// A scrub step in progress, with the blocks of its range that are written in the meantime.
#[derive(Debug)]
struct Look {
    first: u64,
    touched: Vec<bool>,
}

impl Known {
    fn set(&mut self, block: u64, sum: u32) {
        let Ok(at) = usize::try_from(block) else { return };
        if at >= self.sums.len() {
            if sum == 0 {
                return;
            }
            self.sums.resize(at + 1, 0);
        }
        self.sums[at] = sum;
    }

    fn get(&self, block: u64) -> u32 {
        usize::try_from(block).ok().and_then(|at| self.sums.get(at)).copied().unwrap_or(0)
    }

    fn touch(&mut self, block: u64) {
        let Some(look) = &mut self.look else { return };
        let at = block.checked_sub(look.first).and_then(|at| usize::try_from(at).ok());
        if let Some(touched) = at.and_then(|at| look.touched.get_mut(at)) {
            *touched = true;
        }
    }
}

impl Blocks {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets all checksums: after a failed write the content of the file is unknown.
    pub(super) fn forget(&self) {
        self.cut(0);
    }

    /// Forgets the blocks behind the new end of the file.
    pub(super) fn cut(&self, len: u64) {
        let mut known = self.known();
        let whole = len / BLOCK;
        known.sums.truncate(usize::try_from(whole).unwrap_or(usize::MAX));
        if let Some(look) = &mut known.look {
            (look.first..).zip(&mut look.touched).for_each(|(block, touched)| *touched |= block >= whole);
        }
    }

    /// Records the start of a write: until it is done, the content of the blocks is undefined.
    pub(super) fn will_write(&self, offset: u64, len: usize) {
        let mut known = self.known();
        for block in overlapped(offset, len) {
            known.touch(block);
            known.set(block, 0);
        }
    }

    /// Records the end of a write. `read` reads a block of which only a part was written.
    pub(super) fn written(&self, offset: u64, data: &[u8], read: impl Fn(u64, &mut [u8]) -> bool) {
        let mut sums: Vec<(u64, u32)> =
            whole(offset, data).map(|(block, bytes)| (block, sum(bytes))).collect();
        for block in [offset / BLOCK, (offset + data.len() as u64).saturating_sub(1) / BLOCK] {
            if sums.iter().all(|(whole, _)| *whole != block) && !data.is_empty() {
                let mut bytes = vec![0; BLOCK as usize];
                let found = if read(block * BLOCK, &mut bytes) { sum(&bytes) } else { 0 };
                sums.push((block, found));
            }
        }
        let mut known = self.known();
        for (block, sum) in sums {
            known.touch(block);
            known.set(block, sum);
        }
    }

    /// Records a read by the database. Known checksums stay, because the file may have been damaged since.
    pub(super) fn read(&self, offset: u64, data: &[u8]) {
        let sums: Vec<(u64, u32)> = whole(offset, data).map(|(block, bytes)| (block, sum(bytes))).collect();
        let mut known = self.known();
        for (block, sum) in sums {
            if known.get(block) == 0 {
                known.set(block, sum);
            }
        }
    }

    /// Starts a scrub step over this many blocks. Only one step runs at a time.
    pub(super) fn begin(&self, first: u64, count: usize) {
        self.known().look = Some(Look { first, touched: vec![false; count] });
    }

    /// Compares the checksums that a scrub step has read (`None`: unreadable) with the known ones, except for blocks
    /// written in the meantime. Returns the blocks that differ. The checksums of blocks that were unknown until now are
    /// recorded.
    pub(super) fn end(&self, read: &[Option<u32>]) -> Vec<u64> {
        let mut known = self.known();
        let Some(Look { first, touched }) = known.look.take() else { return Vec::new() };
        let mut differ = Vec::new();
        for ((block, touched), read) in (first..).zip(touched).zip(read) {
            let Some(read) = read.filter(|_| !touched) else { continue };
            match known.get(block) {
                0 => known.set(block, read),
                same if same == read => {}
                _ => differ.push(block),
            }
        }
        differ
    }
}

/// The checksum of a block, never 0.
pub(super) fn sum(block: &[u8]) -> u32 {
    let sum = checksum(&[], block);
    ((sum ^ (sum >> 32)) as u32).max(1)
}

fn overlapped(offset: u64, len: usize) -> std::ops::Range<u64> {
    offset / BLOCK..(offset + len as u64).div_ceil(BLOCK)
}

/// The blocks that lie completely within a range of bytes.
fn whole(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let first = offset.div_ceil(BLOCK);
    let skipped = usize::try_from(first * BLOCK - offset).unwrap_or(usize::MAX);
    let rest = data.get(skipped..).unwrap_or_default();
    (first..).zip(rest.chunks_exact(BLOCK as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = BLOCK as usize;

    fn no_read(_: u64, _: &mut [u8]) -> bool {
        false
    }

    fn look(blocks: &Blocks, read: &[u8]) -> Vec<u64> {
        blocks.begin(0, read.len() / SIZE);
        let sums: Vec<_> = read.chunks(SIZE).map(|block| Some(sum(block))).collect();
        blocks.end(&sums)
    }

    #[test]
    fn what_was_written_or_read_is_held_against_the_file() {
        let blocks = Blocks::default();
        let mut file = vec![7; 4 * SIZE];
        blocks.will_write(0, 2 * SIZE);
        blocks.written(0, &file[..2 * SIZE], no_read);
        blocks.read(2 * BLOCK, &file[2 * SIZE..3 * SIZE]);
        assert_eq!(look(&blocks, &file), [0; 0]);
        for (at, block) in [(5, 0), (SIZE + 5, 1), (2 * SIZE, 2), (4 * SIZE - 1, 3)] {
            file[at] = 8;
            assert_eq!(look(&blocks, &file), [block], "byte {at}");
            // A read by the database does not make a damaged block valid.
            blocks.read(0, &file);
            assert_eq!(look(&blocks, &file), [block], "byte {at}");
            file[at] = 7;
        }
        file[SIZE..2 * SIZE].fill(9);
        blocks.written(BLOCK, &file[SIZE..2 * SIZE], no_read);
        assert_eq!(look(&blocks, &file), [0; 0]);
        // Nothing is known behind the end.
        blocks.cut(2 * BLOCK);
        file[2 * SIZE..].fill(1);
        assert_eq!(look(&blocks, &file), [0; 0]);
        blocks.forget();
        assert_eq!(look(&blocks, &vec![2; 4 * SIZE]), [0; 0]);
    }

    #[test]
    fn a_block_that_is_written_in_part_is_read_again() {
        let blocks = Blocks::default();
        let mut file = vec![7; 3 * SIZE];
        blocks.read(0, &file);
        file[100..2 * SIZE + 100].fill(8);
        let whole = file.clone();
        let read = |offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&whole[offset as usize..offset as usize + SIZE]);
            true
        };
        blocks.will_write(100, 2 * SIZE);
        blocks.written(100, &file[100..2 * SIZE + 100], read);
        assert_eq!(look(&blocks, &file), [0; 0]);
        file[0] = 1;
        file[3 * SIZE - 1] = 1;
        assert_eq!(look(&blocks, &file), [0, 2]);
        // A block that cannot be read is unknown.
        blocks.written(1, &[8], no_read);
        assert_eq!(look(&blocks, &file), [2]);
    }

    #[test]
    fn what_is_written_during_a_look_is_no_damage() {
        let (old, new) = (vec![7; SIZE], vec![8; SIZE]);
        let torn = || vec![Some(sum(b"torn")); 2];
        // A write that starts before the step, ends before it, lies within it, or follows it.
        type Step = fn(&Blocks, &[u8]);
        let steps: [(&str, Step, Step); 3] = [
            (
                "within",
                |_, _| {},
                |blocks, new| {
                    blocks.will_write(0, SIZE);
                    blocks.written(0, new, no_read);
                },
            ),
            (
                "begun before",
                |blocks, _| blocks.will_write(0, SIZE),
                |blocks, new| {
                    blocks.written(0, new, no_read);
                },
            ),
            ("cut off", |_, _| {}, |blocks, _| blocks.cut(0)),
        ];
        for (name, before, during) in steps {
            let blocks = Blocks::default();
            blocks.written(0, &[&old[..], &old[..]].concat(), no_read);
            before(&blocks, &new);
            blocks.begin(0, 2);
            during(&blocks, &new);
            let expected: &[u64] = if name == "cut off" { &[] } else { &[1] };
            assert_eq!(blocks.end(&torn()), expected, "{name}");
            let now = if name == "cut off" { &old } else { &new };
            assert_eq!(look(&blocks, now), [0; 0], "{name}");
        }
        let blocks = Blocks::default();
        blocks.will_write(0, SIZE);
        blocks.begin(0, 1);
        assert_eq!(blocks.end(&torn()[..1]), [0; 0], "not done yet");
        blocks.written(0, &new, no_read);
        assert_eq!(look(&blocks, &new), [0; 0]);
    }
}
