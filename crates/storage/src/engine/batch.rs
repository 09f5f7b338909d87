//! Decides writes: a batch collects the effects of requests on top of a state, without changing the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use super::journal::Room;
use super::quota::Changes;
use super::state::{Commit, State};
use crate::error::{Conflict, Error};
use crate::options::{Options, ShareOf};
use crate::types::{Compare, Event, EventKind, KeyValue, LeaseId, Op, OpResult, TxnResponse};

/// How many revisions of history are dropped with one batch.
const PRUNE_REVISIONS: usize = 512;

/// The changes of several requests in order, each decided on top of those before it.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) revision: u64,
    pub(crate) commits: Vec<Arc<Commit>>,
    /// The changed keys, with their state after the batch.
    pub(crate) heads: BTreeMap<Bytes, Option<KeyValue>>,
    pub(crate) granted: Vec<(LeaseId, u64)>,
    pub(crate) revoked: BTreeSet<LeaseId>,
    pub(crate) last_lease: u64,
    /// Reads before this revision are refused.
    pub(crate) compacted: u64,
    /// The log up to this revision is dropped.
    pub(crate) prune_through: u64,
    compaction_changed: bool,
    /// The changes of the usage by the commits.
    pub(crate) changes: Changes,
    share_of: Option<ShareOf>,
}

impl Batch {
    pub(crate) fn new(state: &State) -> Self {
        Self {
            revision: state.revision(),
            last_lease: state.last_lease(),
            compacted: state.compacted(),
            share_of: state.share_of(),
            ..Self::default()
        }
    }

    /// Returns whether there is anything to make durable.
    pub(crate) fn has_effects(&self) -> bool {
        !self.commits.is_empty()
            || !self.granted.is_empty()
            || !self.revoked.is_empty()
            || self.compaction_changed
            || self.prune_through > 0
    }

    pub(crate) fn txn(
        &mut self,
        state: &State,
        compares: &[Compare],
        ops: Vec<Op>,
    ) -> Result<TxnResponse, Error> {
        for compare in compares {
            let current = self.current(state, &compare.key);
            if !compare.condition.holds(current.as_ref()) {
                let conflict = Conflict { key: compare.key.clone(), current, revision: self.revision };
                return Err(Error::Conflict(Box::new(conflict)));
            }
        }
        for op in &ops {
            if let Op::Put { lease: Some(lease), .. } = op
                && !self.lease_exists(state, *lease)
            {
                return Err(Error::LeaseNotFound(*lease));
            }
        }
        let revision = self.revision + 1;
        let mut events = Vec::with_capacity(ops.len());
        let mut results = Vec::with_capacity(ops.len());
        for op in ops {
            let prev = self.current(state, op.key());
            results.push(stage(op, prev, revision, &mut events));
        }
        self.push(events);
        Ok(TxnResponse { revision: self.revision, results })
    }

    pub(crate) fn grant(&mut self, ttl_seconds: u64) -> Result<LeaseId, Error> {
        let next = self.last_lease.checked_add(1).and_then(LeaseId::new);
        let id = next.ok_or(Error::Invalid("there are no lease numbers left"))?;
        self.last_lease = id.get();
        self.granted.push((id, ttl_seconds));
        Ok(id)
    }

    pub(crate) fn revoke(&mut self, state: &State, id: LeaseId) -> Result<(), Error> {
        if !self.lease_exists(state, id) {
            return Err(Error::LeaseNotFound(id));
        }
        let attached_before = state.leases().get(&id).map(|lease| lease.keys.clone()).unwrap_or_default();
        let touched = self.heads.keys().cloned();
        let keys: BTreeSet<Bytes> = attached_before.into_iter().chain(touched).collect();
        let revision = self.revision + 1;
        let mut events = Vec::new();
        for key in keys {
            let prev = self.current(state, &key);
            if prev.as_ref().is_some_and(|kv| kv.lease == Some(id)) {
                stage(Op::Delete { key }, prev, revision, &mut events);
            }
        }
        self.push(events);
        self.revoked.insert(id);
        Ok(())
    }

    pub(crate) fn compact(&mut self, revision: u64) -> Result<(), Error> {
        if revision > self.revision {
            return Err(Error::FutureRevision { requested: revision, current: self.revision });
        }
        if revision > self.compacted {
            self.compacted = revision;
            self.compaction_changed = true;
        }
        Ok(())
    }

    /// Completes the batch: compacts history above its limits, and drops a part of the compacted history. While space
    /// is short, the history may not grow.
    pub(crate) fn finish(&mut self, state: &State, options: &Options, room: Room) {
        let bytes: usize = self.commits.iter().map(|commit| commit.history_bytes()).sum();
        let mut limits = (options.history_revisions, options.history_bytes);
        if room > Room::Enough {
            limits = (limits.0.min(state.log_len()), limits.1.min(state.history_bytes()));
        }
        if let Some(revision) = state.overflow(self.commits.len(), bytes, limits.0, limits.1)
            && revision > self.compacted
        {
            self.compacted = revision;
            self.compaction_changed = true;
        }
        // Twice as much as is added, so that the history stays within its limit under load.
        let max = PRUNE_REVISIONS.max(2 * self.commits.len());
        self.prune_through = state.prunable(self.compacted, max);
    }

    fn push(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.revision += 1;
        for event in &events {
            let head = (event.kind == EventKind::Put).then(|| event.kv.clone());
            self.heads.insert(event.kv.key.clone(), head);
            self.changes.add(event, self.share_of);
        }
        self.commits.push(Arc::new(Commit { revision: self.revision, events }));
    }

    /// The state of the key after the batch so far.
    pub(crate) fn current(&self, state: &State, key: &Bytes) -> Option<KeyValue> {
        self.heads.get(key).cloned().unwrap_or_else(|| state.get(key))
    }

    fn lease_exists(&self, state: &State, id: LeaseId) -> bool {
        let granted =
            state.leases().contains_key(&id) || self.granted.iter().any(|(granted, _)| *granted == id);
        granted && !self.revoked.contains(&id)
    }
}

/// Applies one operation to a key with the state `prev`.
fn stage(op: Op, prev: Option<KeyValue>, revision: u64, events: &mut Vec<Event>) -> OpResult {
    match op {
        Op::Put { key, value, lease } => {
            let kv = KeyValue {
                key,
                value,
                create_revision: prev.as_ref().map_or(revision, |prev| prev.create_revision),
                mod_revision: revision,
                version: prev.as_ref().map_or(1, |prev| prev.version + 1),
                lease,
            };
            events.push(Event { kind: EventKind::Put, kv: kv.clone(), prev: prev.clone() });
            OpResult::Put { kv, prev }
        }
        Op::Delete { key } => {
            if prev.is_some() {
                let kv = tombstone(key, revision);
                events.push(Event { kind: EventKind::Delete, kv, prev: prev.clone() });
            }
            OpResult::Delete { prev }
        }
    }
}

pub(crate) fn tombstone(key: Bytes, revision: u64) -> KeyValue {
    KeyValue { key, value: Bytes::new(), create_revision: 0, mod_revision: revision, version: 0, lease: None }
}

/// Refuses invalid requests and those above a limit before they are queued.
pub(crate) fn check(compares: &[Compare], ops: &[Op], options: &Options) -> Result<(), Error> {
    let within = |what, size, limit| {
        if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
    };
    within("number of conditions", compares.len(), options.max_txn_ops)?;
    within("number of operations", ops.len(), options.max_txn_ops)?;
    let mut named = BTreeSet::new();
    for op in ops {
        let key = op.key();
        if key.is_empty() {
            return Err(Error::Invalid("a key must not be empty"));
        }
        within("key", key.len(), options.max_key_bytes)?;
        if let Op::Put { value, .. } = op {
            within("value", value.len(), options.max_value_bytes)?;
        }
        if !named.insert(key) {
            return Err(Error::Invalid("a transaction may name a key only once"));
        }
    }
    Ok(())
}
