//! The data types of a store: keys, values, ranges, conditions, operations, events.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::{Bound, Range};

use bytes::Bytes;

/// A lease: keys attached to it are deleted when it expires or is revoked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub NonZeroU64);

impl LeaseId {
    /// Returns the lease with that number; zero means no lease.
    pub fn new(id: u64) -> Option<Self> {
        NonZeroU64::new(id).map(Self)
    }

    /// The lease's number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The state of a key at some revision. Cloning copies no bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Bytes,
    pub value: Bytes,
    /// The revision that created the key, for the last time if it was deleted before.
    pub create_revision: u64,
    /// The revision that wrote this value.
    pub mod_revision: u64,
    /// How many times the key was written since it was created; 1 after creation.
    pub version: u64,
    pub lease: Option<LeaseId>,
}

/// The prefix of the value of a key that the store could not read. No JSON and no encrypted value begins with it.
const DAMAGED: &[u8] = b"\0knarr damaged\0";

/// Returns a placeholder for a value that cannot be read.
pub fn damaged_value(reason: &str) -> Bytes {
    [DAMAGED, reason.as_bytes()].concat().into()
}

/// Why a value is a placeholder; `None` if it is none.
pub fn damage(value: &[u8]) -> Option<&str> {
    value.strip_prefix(DAMAGED).map(|reason| std::str::from_utf8(reason).unwrap_or("unknown"))
}

/// What an event did to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Put,
    Delete,
}

/// A change of one key by one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// The key after the change. After a deletion the value is empty, `create_revision` and `version` are 0, and
    /// `mod_revision` is the revision of the deletion.
    pub kv: KeyValue,
    /// The key before the change; `None` if it did not exist.
    pub prev: Option<KeyValue>,
}

/// The keys from `start` (included) to `end` (excluded; `None` means no upper end), in byte order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Bytes,
    pub end: Option<Bytes>,
}

impl KeyRange {
    /// The range from `start` (included) to `end` (excluded).
    pub fn new(start: impl Into<Bytes>, end: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: Some(end.into()) }
    }

    /// The range of all keys.
    pub fn all() -> Self {
        Self { start: Bytes::new(), end: None }
    }

    /// The range of all keys from `start` on.
    pub fn from(start: impl Into<Bytes>) -> Self {
        Self { start: start.into(), end: None }
    }

    /// The range of all keys with this prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let end = prefix_end(&start);
        Self { start, end }
    }

    /// The range of one key.
    pub fn key(key: impl Into<Bytes>) -> Self {
        let start = key.into();
        let mut end = Vec::with_capacity(start.len() + 1);
        end.extend_from_slice(&start);
        end.push(0);
        Self { start, end: Some(end.into()) }
    }

    /// Returns whether the key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// The same range without the keys up to and including `key`, for the next page.
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

/// The first key that is greater than every key with this prefix, if it exists.
fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

/// The condition on a key for a write to succeed.
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

/// A condition of a transaction. All conditions are checked before any operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    pub key: Bytes,
    pub condition: Precondition,
}

/// An operation of a transaction. A transaction may name each key only once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes a value. A lease that the key had is kept only if it is given again.
    Put { key: Bytes, value: Bytes, lease: Option<LeaseId> },
    /// Deletes a key; does nothing if it does not exist.
    Delete { key: Bytes },
}

impl Op {
    /// The key that the operation is about.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// The result of one operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpResult {
    Put { kv: KeyValue, prev: Option<KeyValue> },
    Delete { prev: Option<KeyValue> },
}

/// The result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TxnResponse {
    /// The revision of the transaction, or the current one if it changed nothing.
    pub revision: u64,
    /// One result for each operation, in order.
    pub results: Vec<OpResult>,
}

/// The result of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutResponse {
    pub kv: KeyValue,
    pub prev: Option<KeyValue>,
}

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteResponse {
    /// The revision of the deletion, or the current one if there was nothing to delete.
    pub revision: u64,
    /// The deleted key.
    pub prev: Option<KeyValue>,
}

/// A read of a range: at most `limit` keys, at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRequest {
    pub range: KeyRange,
    /// The maximum number of keys; `None` for all. `Some(0)` only counts.
    pub limit: Option<usize>,
    /// The revision to read at; `None` for the latest.
    pub revision: Option<u64>,
    /// Whether to count the keys beyond the limit, which requires reading them.
    pub count: bool,
}

impl RangeRequest {
    /// Reads the whole range at the latest revision, and counts its keys.
    pub fn new(range: KeyRange) -> Self {
        Self { range, limit: None, revision: None, count: true }
    }

    /// Reads all keys with this prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        Self::new(KeyRange::prefix(prefix))
    }

    /// Limits the number of keys.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Reads at this revision.
    pub fn at(mut self, revision: u64) -> Self {
        self.revision = Some(revision);
        self
    }

    /// Skips counting the keys beyond the limit.
    pub fn without_count(mut self) -> Self {
        self.count = false;
        self
    }
}

/// The result of a range read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeResponse {
    /// In key order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left keys out.
    pub more: bool,
    /// How many keys the limit left out; 0 if the request asked for no count.
    pub remaining: u64,
    /// The revision that was read. For the next page, use it with [`KeyRange::after`] the last key.
    pub revision: u64,
}

/// The kind of space that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSpace {
    /// The disk is full: the reserve for deletions is in use.
    Disk,
    /// The live keys use all of the quota.
    Quota,
    /// The engine behind the store reports it, for reasons only it knows.
    Backend,
}

/// Where a scrub of a store's file continues: first with its bytes on the disk, then, if those are intact, with its
/// rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScrubFrom {
    Byte(u64),
    /// After a key; `None` for the first row.
    Row(Option<Bytes>),
}

/// The result of scrubbing a part of a store's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubStep {
    /// Where to continue; `None` at the end.
    pub next: Option<ScrubFrom>,
    /// The number of rows that were compared with memory.
    pub keys: u64,
    /// The number of bytes that were read from the disk.
    pub bytes: u64,
    /// The data that are not on the disk as they were written.
    pub faults: Vec<ScrubFault>,
}

/// A fault of a store's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFault {
    /// A range of the file; `None` if the fault is about a key.
    pub bytes: Option<Range<u64>>,
    pub key: Bytes,
    pub reason: String,
}

impl ScrubFault {
    /// A fault in these bytes of the file.
    pub fn of_file(bytes: Range<u64>, reason: String) -> Self {
        Self { bytes: Some(bytes), key: Bytes::new(), reason }
    }

    /// A fault of a key.
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

/// The status of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub revision: u64,
    /// Reads and watches before this revision are refused.
    pub compacted_revision: u64,
    /// The number of live keys.
    pub keys: u64,
    pub leases: u64,
    pub watchers: u64,
    /// The number of revisions kept for old reads and watches.
    pub history_revisions: u64,
    /// The approximate memory that these keep alive.
    pub history_bytes: u64,
    /// The size of the file; 0 without one.
    pub file_bytes: u64,
    /// The size of the live keys as counted for the quota; 0 if only the engine behind the store knows it.
    pub live_bytes: u64,
    /// The quota on `live_bytes`.
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
