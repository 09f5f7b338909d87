//! The state of a store as a plain value: live keys, their history since the last compaction, leases.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::batch::Batch;
use super::quota::{Usage, footprint};
use crate::options::ShareOf;
use crate::types::{Event, EventKind, KeyRange, KeyValue, LeaseId};

/// The revision of a store without writes.
pub(crate) const FIRST_REVISION: u64 = 1;

/// The overhead of an event in the history, besides the bytes that it keeps alive.
const EVENT_OVERHEAD_BYTES: usize = 256;

/// One revision: all changes of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) revision: u64,
    pub(crate) events: Vec<Event>,
}

impl Commit {
    pub(crate) fn history_bytes(&self) -> usize {
        let bytes_of = |kv: &KeyValue| kv.key.len() + kv.value.len();
        self.events.iter().map(|event| EVENT_OVERHEAD_BYTES + event.prev.as_ref().map_or(0, bytes_of)).sum()
    }
}

/// The state of a key between two of its changes; `held` is `None` while it is deleted.
#[derive(Debug)]
struct Version {
    revision: u64,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    value: Bytes,
    create_revision: u64,
    version: u64,
    lease: Option<LeaseId>,
}

#[derive(Debug)]
struct Entry {
    head: Version,
    /// The versions before the head, oldest first.
    older: VecDeque<Version>,
}

impl Entry {
    fn at(&self, revision: u64) -> Option<&Version> {
        if self.head.revision <= revision {
            return Some(&self.head);
        }
        let later = self.older.partition_point(|version| version.revision <= revision);
        self.older.get(later.checked_sub(1)?)
    }
}

impl Version {
    fn of(event: &Event) -> Self {
        let kv = &event.kv;
        let held = (event.kind == EventKind::Put).then(|| Held::of(kv));
        Self { revision: kv.mod_revision, held }
    }

    fn key_value(&self, key: &Bytes) -> Option<KeyValue> {
        self.held.as_ref().map(|held| KeyValue {
            key: key.clone(),
            value: held.value.clone(),
            create_revision: held.create_revision,
            mod_revision: self.revision,
            version: held.version,
            lease: held.lease,
        })
    }
}

impl Held {
    fn of(kv: &KeyValue) -> Self {
        Self {
            value: kv.value.clone(),
            create_revision: kv.create_revision,
            version: kv.version,
            lease: kv.lease,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Lease {
    pub(crate) ttl_seconds: u64,
    pub(crate) keys: BTreeSet<Bytes>,
}

#[derive(Debug)]
pub(crate) struct State {
    revision: u64,
    compacted: u64,
    keys: BTreeMap<Bytes, Entry>,
    live: usize,
    /// The bytes of the live keys and their values.
    live_bytes: usize,
    /// Consecutive revisions up to the current one. The first ones may be compacted already; they are dropped a few at
    /// a time.
    log: VecDeque<Arc<Commit>>,
    history_bytes: usize,
    leases: BTreeMap<LeaseId, Lease>,
    last_lease: u64,
    usage: Usage,
    share_of: Option<ShareOf>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            revision: FIRST_REVISION,
            compacted: 0,
            keys: BTreeMap::new(),
            live: 0,
            live_bytes: 0,
            log: VecDeque::new(),
            history_bytes: 0,
            leases: BTreeMap::new(),
            last_lease: 0,
            usage: Usage::default(),
            share_of: None,
        }
    }
}

impl State {
    /// Returns a state without history, with the keys of `revision`.
    pub(crate) fn restore(
        revision: u64,
        compacted: u64,
        last_lease: u64,
        leases: impl IntoIterator<Item = (LeaseId, u64)>,
        kvs: impl IntoIterator<Item = KeyValue>,
    ) -> Self {
        let mut state = Self { revision, compacted, last_lease, ..Self::default() };
        state.leases = leases
            .into_iter()
            .map(|(id, ttl_seconds)| (id, Lease { ttl_seconds, ..Lease::default() }))
            .collect();
        let entry_of = |kv: KeyValue| {
            let head = Version { revision: kv.mod_revision, held: Some(Held::of(&kv)) };
            (kv.key, Entry { head, older: VecDeque::new() })
        };
        state.keys = kvs.into_iter().map(entry_of).collect();
        state.live = state.keys.len();
        let bytes_of = |(key, entry): (&Bytes, &Entry)| {
            key.len() + entry.head.held.as_ref().map_or(0, |held| held.value.len())
        };
        state.live_bytes = state.keys.iter().map(bytes_of).sum();
        for (key, entry) in &state.keys {
            let lease = entry.head.held.as_ref().and_then(|held| held.lease);
            if let Some(lease) = lease.and_then(|id| state.leases.get_mut(&id)) {
                lease.keys.insert(key.clone());
            }
        }
        state
    }

    /// Computes the usage of the live keys, and keeps it up to date by these shares.
    pub(crate) fn account(&mut self, share_of: Option<ShareOf>) {
        self.share_of = share_of;
        self.usage = Usage::default();
        for (key, entry) in &self.keys {
            if let Some(held) = &entry.head.held {
                let share = share_of.and_then(|of| of(key));
                self.usage.replace(share, 0, footprint(key, &held.value));
            }
        }
    }

    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    pub(crate) fn share_of(&self) -> Option<ShareOf> {
        self.share_of
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.compacted
    }

    pub(crate) fn live_keys(&self) -> usize {
        self.live
    }

    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    pub(crate) fn last_lease(&self) -> u64 {
        self.last_lease
    }

    pub(crate) fn leases(&self) -> &BTreeMap<LeaseId, Lease> {
        &self.leases
    }

    pub(crate) fn history_bytes(&self) -> usize {
        self.history_bytes
    }

    pub(crate) fn log_len(&self) -> usize {
        self.log.len()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<KeyValue> {
        let (key, entry) = self.keys.get_key_value(key)?;
        entry.head.key_value(key)
    }

    /// Continues a scan for at most `steps` keys. Returns true at the end of the range.
    pub(crate) fn scan(&self, scan: &mut Scan, steps: usize) -> bool {
        let start = match &scan.passed {
            Some(key) => Bound::Excluded(&key[..]),
            None => Bound::Included(&scan.range.start[..]),
        };
        if scan.range.end.as_ref().is_some_and(|end| *end <= scan.range.start) {
            return true;
        }
        let mut walked: Option<&Bytes> = None;
        let mut left = steps;
        for (key, entry) in self.keys.range::<[u8], _>((start, scan.range.end_bound())) {
            if left == 0 {
                scan.passed = walked.cloned();
                return false;
            }
            left -= 1;
            walked = Some(key);
            let Some(version) = entry.at(scan.revision).filter(|version| version.held.is_some()) else {
                continue;
            };
            if scan.kvs.len() < scan.limit {
                scan.kvs.extend(version.key_value(key));
            } else {
                scan.remaining += 1;
                if !scan.count {
                    return true;
                }
            }
        }
        true
    }

    /// The revisions after `revision`, at most `max`. The caller has checked that they exist.
    pub(crate) fn log_after(&self, revision: u64, max: usize) -> impl Iterator<Item = &Arc<Commit>> {
        let first = self.log.front().map_or(0, |commit| commit.revision);
        let skip = usize::try_from((revision + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        self.log.range(skip.min(self.log.len())..).take(max)
    }

    /// Applies a batch to the state. The batch must have been decided on this very state.
    pub(crate) fn apply(&mut self, batch: &Batch) {
        for (id, ttl_seconds) in &batch.granted {
            self.leases.insert(*id, Lease { ttl_seconds: *ttl_seconds, ..Lease::default() });
        }
        self.last_lease = self.last_lease.max(batch.last_lease);
        for commit in &batch.commits {
            self.apply_commit(commit);
        }
        for id in &batch.revoked {
            self.leases.remove(id);
        }
        self.compacted = self.compacted.max(batch.compacted);
        self.prune(batch.prune_through);
    }

    pub(crate) fn apply_commit(&mut self, commit: &Arc<Commit>) {
        for event in &commit.events {
            self.apply_event(event);
        }
        self.revision = commit.revision;
        self.history_bytes += commit.history_bytes();
        self.log.push_back(Arc::clone(commit));
    }

    fn apply_event(&mut self, event: &Event) {
        let key = &event.kv.key;
        let lease_before = event.prev.as_ref().and_then(|prev| prev.lease);
        if lease_before != event.kv.lease {
            if let Some(lease) = lease_before.and_then(|id| self.leases.get_mut(&id)) {
                lease.keys.remove(key);
            }
            if let Some(lease) = event.kv.lease.and_then(|id| self.leases.get_mut(&id)) {
                lease.keys.insert(key.clone());
            }
        }
        let bytes_of = |kv: &KeyValue| kv.key.len() + kv.value.len();
        self.live_bytes -= event.prev.as_ref().map_or(0, bytes_of);
        if event.kind == EventKind::Put {
            self.live_bytes += bytes_of(&event.kv);
        }
        self.usage.apply(event, self.share_of);
        let version = Version::of(event);
        match (event.prev.is_some(), event.kind) {
            (false, EventKind::Put) => self.live += 1,
            (true, EventKind::Delete) => self.live -= 1,
            _ => {}
        }
        match self.keys.get_mut(key) {
            Some(entry) => {
                let before = std::mem::replace(&mut entry.head, version);
                entry.older.push_back(before);
            }
            None => {
                self.keys.insert(key.clone(), Entry { head: version, older: VecDeque::new() });
            }
        }
    }

    /// How far the log may be dropped now, if at most `max` revisions may be dropped and those up to `compacted` are
    /// due; 0 if nothing may.
    pub(crate) fn prunable(&self, compacted: u64, max: usize) -> u64 {
        match self.log.front() {
            Some(first) if first.revision <= compacted => compacted.min(first.revision - 1 + max as u64),
            _ => 0,
        }
    }

    pub(crate) fn has_prunable(&self) -> bool {
        self.log.front().is_some_and(|first| first.revision <= self.compacted)
    }

    /// Up to where to compact so that the history, including what will be added, is within its limits.
    pub(crate) fn overflow(
        &self,
        added: usize,
        added_bytes: usize,
        max: usize,
        max_bytes: usize,
    ) -> Option<u64> {
        let mut count = self.log.len() + added;
        let mut bytes = self.history_bytes + added_bytes;
        let mut through = None;
        for commit in &self.log {
            if count <= max && bytes <= max_bytes {
                break;
            }
            count -= 1;
            bytes -= commit.history_bytes();
            through = Some(commit.revision);
        }
        through.filter(|revision| *revision > self.compacted)
    }

    /// Drops the log up to a revision, and the versions of keys that only the log needed.
    fn prune(&mut self, through: u64) {
        while let Some(commit) = self.log.pop_front_if(|commit| commit.revision <= through) {
            self.history_bytes -= commit.history_bytes();
            for event in &commit.events {
                self.forget_before(&event.kv.key, commit.revision);
            }
        }
    }

    fn forget_before(&mut self, key: &Bytes, revision: u64) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        while entry.older.pop_front_if(|version| version.revision < revision).is_some() {}
        // At the edge of the history, a deletion means the same as a missing key.
        let deleted = |version: &mut Version| version.revision == revision && version.held.is_none();
        entry.older.pop_front_if(deleted);
        if entry.older.is_empty() && deleted(&mut entry.head) {
            self.keys.remove(key);
        }
    }
}

/// A range read in progress. The state may be unlocked between two steps.
#[derive(Debug)]
pub(crate) struct Scan {
    range: KeyRange,
    revision: u64,
    limit: usize,
    count: bool,
    /// The last key that was read.
    passed: Option<Bytes>,
    pub(crate) kvs: Vec<KeyValue>,
    /// The number of keys beyond the limit; at most 1 if they are not to be counted.
    pub(crate) remaining: u64,
}

impl Scan {
    pub(crate) fn new(range: KeyRange, revision: u64, limit: usize, count: bool) -> Self {
        Self { range, revision, limit, count, passed: None, kvs: Vec::new(), remaining: 0 }
    }
}
