//! What goes into a store and what comes out: keys, values, ranges, conditions, operations, events.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Bound, Range};

use bytes::Bytes;

/// A lease: keys attached to it are deleted when it expires or is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub NonZeroU64);

impl LeaseId {
    /// The lease of that number; zero means none.
    pub fn new(id: u64) -> Option<Self> {
        NonZeroU64::new(id).map(Self)
    }

    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A key as it stands at some revision. Cloning copies no bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// The revision that created the key, or made it anew after a deletion.
    pub create_revision: u64,
    /// The revision that wrote this value.
    pub mod_revision: u64,
    /// How many times the key was written since it was created; 1 at creation.
    pub version: u64,
    pub lease: Option<LeaseId>,
}

/// What the value of a key begins with that the store could not read back; no JSON does, nor anything encrypted.
const DAMAGED: &[u8] = b"\0knarr damaged\0";

/// A placeholder for a value that cannot be read.
pub fn damaged_value(reason: &str) -> Bytes {
    [DAMAGED, reason.as_bytes()].concat().into()
}

/// Why a value is a placeholder, if it is one.
pub fn damage(value: &[u8]) -> Option<&str> {
    value.strip_prefix(DAMAGED).map(|reason| std::str::from_utf8(reason).unwrap_or("unknown"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

/// One key changed by one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// The key after the change. For a deletion the value is empty, `create_revision` and `version`
    /// are 0 and `mod_revision` is the revision of the deletion.
    pub kv: KeyValue,
    /// The key before the change; `None` if it did not exist.
    pub prev: Option<KeyValue>,
}

/// Keys from `start` (included) to `end` (excluded; `None` has no upper end), in byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Bytes,
    pub end: Option<Bytes>,
}

impl KeyRange {
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: Some(end.into()) }
    }

    pub fn all() -> Self {
        Self { start: Bytes::new(), end: None }
    }

    pub fn from(start: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: None }
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = prefix_end(&start);
        Self { start, end }
    }

    /// The one key.
    pub fn key(key: impl Into<Bytes>) -> Self {
        let start = key.into();
        let mut end = Vec::with_capacity(start.len() + 1);
        end.extend_from_slice(&start);
        end.push(0);
        Self { start, end: Some(end.into()) }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// The same range without the keys up to and including `key`: where the next page begins.
    pub fn after(&self, key: &[u8]) -> Self {
        let mut start = Vec::with_capacity(key.len() + 1);
        start.extend_from_slice(key);
        start.push(0);
        let start = Bytes::from(start).max(self.start.clone());
        Self { start, end: self.end.clone() }
    }

    pub(crate) fn end_bound(&self) -> Bound<&[u8]> {
        self.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded)
    }
}

/// The first key that is greater than every key with this prefix, if there is one.
fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// What must hold of a key for a write to go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    Any,
    Exists,
    NotExists,
    /// The key exists and was last written by this revision.
    ModRevision(u64),
}

impl Precondition {
    pub(crate) fn holds(self, current: Option<&KeyValue>) -> bool {
        match self {
            Self::Any => true,
            Self::Exists => current.is_some(),
            Self::NotExists => current.is_none(),
            Self::ModRevision(revision) => current.is_some_and(|kv| kv.mod_revision == revision),
        }
    }
}

/// A condition of a transaction. All of them are checked before any of its operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    pub key: Bytes,
    pub condition: Precondition,
}

/// An operation of a transaction. A transaction may name each key once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a value. A lease given before is kept only if it is given again.
    Put { key: Bytes, value: Bytes, lease: Option<LeaseId> },
    /// Deletes a key; nothing happens if there is none.
    Delete { key: Bytes },
}

impl Op {
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// What one operation of a transaction did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    Put { kv: KeyValue, prev: Option<KeyValue> },
    Delete { prev: Option<KeyValue> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxnResponse {
    /// The revision of the transaction, or the current one if it changed nothing.
    pub revision: u64,
    /// One for each operation, in their order.
    pub results: Vec<OpResult>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutResponse {
    pub kv: KeyValue,
    pub prev: Option<KeyValue>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteResponse {
    /// The revision of the deletion, or the current one if there was nothing to delete.
    pub revision: u64,
    /// What was deleted.
    pub prev: Option<KeyValue>,
}

/// What to read: a range, at most `limit` keys of it, at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRequest {
    pub range: KeyRange,
    /// At most this many keys; `None` for all. `Some(0)` only counts.
    pub limit: Option<usize>,
    /// Read as of this revision; `None` for the latest.
    pub revision: Option<u64>,
    /// Whether to count the keys beyond the limit, which means walking them.
    pub count: bool,
}

impl RangeRequest {
    pub fn new(range: KeyRange) -> Self {
        Self { range, limit: None, revision: None, count: true }
    }

    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self::new(KeyRange::prefix(prefix))
    }

    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    pub fn at(mut self, revision: u64) -> Self {
        self.revision = Some(revision);
        self
    }

    pub fn without_count(mut self) -> Self {
        self.count = false;
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeResponse {
    /// In key order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left keys out.
    pub more: bool,
    /// How many keys the limit left out; 0 if the request asked for no count.
    pub remaining: u64,
    /// The revision that was read: give it with [`KeyRange::after`] the last key for the next page.
    pub revision: u64,
}

/// What there is no room in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSpace {
    /// The disk is full: what was kept in reserve for deletions is being used.
    Disk,
    /// The live keys take all that the quota allows.
    Quota,
    /// The store has said so itself; only it knows why.
    Backend,
}

/// Where a look at a store's file goes on: first come its bytes as they are on the disk, then, if those are sound, its
/// rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScrubFrom {
    Byte(u64),
    /// After a key; `None`: the first one.
    Row(Option<Bytes>),
}

/// What a look at a part of a store's file has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubStep {
    /// Where to go on; `None` at the end.
    pub next: Option<ScrubFrom>,
    /// The rows that were held against memory.
    pub keys: u64,
    /// What was read from the disk.
    pub bytes: u64,
    /// What is not on the disk as it was written.
    pub faults: Vec<ScrubFault>,
}

/// Something that is wrong with a store's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFault {
    /// A stretch of the file; `None`: it is about a key.
    pub bytes: Option<Range<u64>>,
    pub key: Bytes,
    pub reason: String,
}

impl ScrubFault {
    pub fn of_file(bytes: Range<u64>, reason: String) -> Self {
        Self { bytes: Some(bytes), key: Bytes::new(), reason }
    }

    pub fn of_key(key: Bytes, reason: String) -> Self {
        Self { bytes: None, key, reason }
    }
}

impl fmt::Display for ScrubFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bytes {
            Some(bytes) => write!(f, "bytes {} to {}: ", bytes.start, bytes.end.saturating_sub(1))?,
            None => write!(f, "{}: ", String::from_utf8_lossy(&self.key))?,
        }
        f.write_str(&self.reason)
    }
}

/// How a store is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub revision: u64,
    /// Reads and watches before this revision are refused.
    pub compacted_revision: u64,
    /// Live keys.
    pub keys: u64,
    pub leases: u64,
    pub watchers: u64,
    /// Revisions kept for old reads and watches.
    pub history_revisions: u64,
    /// Roughly the memory that these keep alive.
    pub history_bytes: u64,
    /// The size of the file; 0 without one.
    pub file_bytes: u64,
    /// What the live keys take, as the quota counts it; 0 where only the store knows.
    pub live_bytes: u64,
    /// What they may take.
    pub quota_bytes: Option<u64>,
    /// Why all writes are refused, if they are.
    pub failure: Option<String>,
    /// Why writes that make the store larger are refused, if they are.
    pub no_space: Option<NoSpace>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_ranges() {
        for (prefix, end) in [
            (&b"a/"[..], Some(&b"a0"[..])),
            (b"", None),
            (b"\xff\xff", None),
            (b"a\xff", Some(b"b")),
            (b"a\xff\x01", Some(b"a\xff\x02")),
        ] {
            let range = KeyRange::prefix(prefix);
            assert_eq!(range.end.as_deref(), end, "{prefix:?}");
            assert!(range.contains(prefix));
            assert!(range.contains(&[prefix, b"\xff\xff\xff"].concat()));
        }
        assert!(!KeyRange::prefix("a/").contains(b"a0"));
        assert!(!KeyRange::prefix("a/").contains(b"a"));
    }

    #[test]
    fn a_page_begins_right_after_the_last_key() {
        let range = KeyRange::prefix("a/").after(b"a/x");
        assert!(!range.contains(b"a/x"));
        assert!(range.contains(b"a/x\0"));
        assert_eq!(KeyRange::prefix("b/").after(b"a"), KeyRange::prefix("b/"));
        assert!(KeyRange::key("k").contains(b"k"));
        assert!(!KeyRange::key("k").contains(b"k0"));
    }
}
