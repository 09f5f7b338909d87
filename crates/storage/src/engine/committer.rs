//! The only writer: decides a batch of requests, makes it durable, applies it, publishes it and answers.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::batch::Batch;
use super::core::Core;
use super::health::{admits, worth_shrinking};
use super::journal::{Journal, Room};
use super::quota::Present;
use super::recovery::Broken;
use super::state::State;
use super::thread::not_closed;
use crate::types::{Compare, LeaseId, NoSpace, Op, ScrubStep, TxnResponse};
use crate::{Error, Result};

/// How long a store must be idle before its file is shrunk.
const REST_BEFORE_SHRINKING: Duration = Duration::from_millis(500);
/// How often an idle store checks whether the disk has space again.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(1);

type Answer<T> = oneshot::Sender<Result<T>>;

/// A write in the queue.
#[derive(Debug)]
pub(crate) enum Request {
    Txn {
        compares: Vec<Compare>,
        ops: Vec<Op>,
        answer: Answer<TxnResponse>,
    },
    Grant {
        ttl_seconds: u64,
        answer: Answer<LeaseId>,
    },
    Revoke {
        lease: LeaseId,
        answer: Answer<()>,
    },
    /// Revokes the lease if it has expired at that time and was not kept alive in the meantime.
    Expire {
        lease: LeaseId,
        now: Duration,
        answer: Answer<()>,
    },
    Compact {
        revision: u64,
        answer: Answer<()>,
    },
    /// Scrubs the file after a key.
    Scrub {
        after: Option<Bytes>,
        answer: Answer<ScrubStep>,
    },
    Close {
        answer: Answer<()>,
    },
}

impl Request {
    /// The approximate number of bytes that the request writes.
    pub(crate) fn bytes(&self) -> usize {
        let of_op = |op: &Op| match op {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete { key } => key.len(),
        };
        match self {
            Self::Txn { ops, .. } => ops.iter().map(of_op).sum(),
            _ => 0,
        }
    }

    /// Answers the request with an error, without executing it. A request to close is executed nevertheless.
    fn refuse(self, error: Error, closes: &mut Vec<Answer<()>>) {
        // The caller may have been dropped.
        match self {
            Self::Txn { answer, .. } => drop(answer.send(Err(error))),
            Self::Grant { answer, .. } => drop(answer.send(Err(error))),
            Self::Revoke { answer, .. } | Self::Expire { answer, .. } | Self::Compact { answer, .. } => {
                drop(answer.send(Err(error)));
            }
            Self::Scrub { answer, .. } => drop(answer.send(Err(error))),
            Self::Close { answer } => closes.push(answer),
        }
    }
}

/// A decided request, whose answer waits until the batch is durable.
enum Decided {
    Txn(Answer<TxnResponse>, Result<TxnResponse>),
    Lease(Answer<LeaseId>, Result<LeaseId>),
    Unit(Answer<()>, Result<()>),
}

impl Decided {
    /// Answers with the decision, or with the error that kept it from being made durable.
    fn answer(self, failure: Option<&Error>) {
        fn send<T>(answer: Answer<T>, result: Result<T>, failure: Option<&Error>) {
            // The caller may have been dropped.
            let _ = answer.send(failure.map_or(result, |error| Err(error.clone())));
        }
        match self {
            Self::Txn(answer, result) => send(answer, result, failure),
            Self::Lease(answer, result) => send(answer, result, failure),
            Self::Unit(answer, result) => send(answer, result, failure),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Committer<J> {
    pub(crate) core: Arc<Core>,
    pub(crate) journal: J,
    /// Set after a failed commit, until the file has been reopened.
    pub(super) broken: Option<Broken>,
    pub(crate) room: Room,
    /// The alarm of the quota, and whether the quota has refused a write since the last check.
    alarm: bool,
    refused: Cell<bool>,
    /// The size of the file's content when it was shrunk last.
    used_when_shrunk: Option<u64>,
}

impl<J: Journal> Committer<J> {
    pub(crate) fn new(core: Arc<Core>, journal: J) -> Self {
        Self {
            core,
            journal,
            broken: None,
            room: Room::Enough,
            alarm: false,
            refused: Cell::new(false),
            used_when_shrunk: None,
        }
    }

    /// Executes requests in order with one durable commit. Returns the requests to close.
    pub(crate) fn run(&mut self, requests: Vec<Request>) -> Vec<Answer<()>> {
        let mut closes = Vec::new();
        if let Err(error) = self.prepare(requests.is_empty()) {
            requests.into_iter().for_each(|request| request.refuse(error.clone(), &mut closes));
            return closes;
        }
        let requests = self.scrub_first(requests);
        let mut decided = Vec::with_capacity(requests.len());
        let outcome = self.run_inner(requests, &mut decided, &mut closes);
        for request in decided {
            request.answer(outcome.as_ref().err());
        }
        closes
    }

    /// Scrubs the file before the rest of a batch, while it has the same content as memory. Returns the other requests.
    fn scrub_first(&mut self, requests: Vec<Request>) -> Vec<Request> {
        let mut rest = Vec::with_capacity(requests.len());
        for request in requests {
            match request {
                Request::Scrub { after, answer } => drop(answer.send(self.scrub(after.as_deref()))),
                other => rest.push(other),
            }
        }
        rest
    }

    /// Prepares the file for the next batch. Returns an error while nothing can be written.
    fn prepare(&mut self, at_rest: bool) -> Result<()> {
        self.recover()?;
        self.look_for_room();
        let due = self.room > Room::Enough || (at_rest && !self.has_leftovers());
        if due && self.is_worth_shrinking() {
            self.shrink()?;
            self.look_for_room();
        }
        Ok(())
    }

    /// Releases the file. Returns an error if the file may not be in order.
    pub(crate) fn close(self) -> Result<()> {
        let broken = self.broken.map(|broken| broken.reason());
        let closed = self.journal.close().map_err(|error| error.to_string());
        match broken.map_or(closed, Err) {
            Ok(()) => Ok(()),
            Err(reason) => Err(not_closed(&reason)),
        }
    }

    /// Returns whether an idle store still has compacted history to drop.
    pub(crate) fn has_leftovers(&self) -> bool {
        self.broken.is_none() && self.core.read().is_ok_and(|state| state.has_prunable())
    }

    /// How long until the next retry or check that no request triggers.
    pub(crate) fn retry_in(&self) -> Option<Duration> {
        match &self.broken {
            Some(broken) => broken.retry_in(self.core.options.time.now()),
            None if self.room > Room::Enough => Some(LOOK_FOR_ROOM),
            None if self.has_leftovers() => None,
            None => self.is_worth_shrinking().then_some(REST_BEFORE_SHRINKING),
        }
    }

    fn used(&self) -> u64 {
        self.core.read().map_or(u64::MAX, |state| (state.live_bytes() + state.history_bytes()) as u64)
    }

    fn is_worth_shrinking(&self) -> bool {
        let file = self.journal.file_bytes();
        let beyond_quota = self.core.limits.quota().is_some_and(|quota| file > quota);
        let room = if beyond_quota { self.room.max(Room::Short) } else { self.room };
        worth_shrinking(room, file, self.used(), self.used_when_shrunk)
    }

    /// Releases unused space of the file to the disk.
    fn shrink(&mut self) -> Result<()> {
        let before = self.journal.file_bytes();
        self.used_when_shrunk = Some(self.used());
        if let Err(error) = self.journal.shrink() {
            let (nothing, revision) = {
                let state = self.core.read()?;
                (Batch::new(&state), state.revision())
            };
            // Only the recovery matters here: no batch is affected.
            let _ = self.commit_failed(nothing, revision, error);
            return self.recover().map(drop);
        }
        let after = self.journal.file_bytes();
        tracing::info!(before, after, "the store's file was shrunk");
        Ok(())
    }

    /// Raises and clears the alarm.
    fn look_for_room(&mut self) {
        self.room = self.journal.room();
        let used = self.core.read().map_or(0, |state| state.usage().total);
        self.alarm = self.core.limits.alarm(self.alarm, self.refused.take(), used);
        let no_space = match self.room {
            Room::Enough => self.alarm.then_some(NoSpace::Quota),
            Room::Short | Room::Last => Some(NoSpace::Disk),
        };
        let before = self.core.set_no_space(no_space);
        match no_space {
            same if same == before => {}
            Some(NoSpace::Quota) => tracing::error!(
                used,
                quota = self.core.limits.quota(),
                "the store's quota is used up: it takes deletions, and nothing that makes it larger"
            ),
            Some(_) => tracing::error!(
                "the disk is full: the store takes deletions, and nothing that makes it larger"
            ),
            None => tracing::info!("the store has room again"),
        }
    }

    fn run_inner(
        &mut self,
        requests: Vec<Request>,
        decided: &mut Vec<Decided>,
        closes: &mut Vec<Answer<()>>,
    ) -> Result<()> {
        self.core.check_open()?;
        let (batch, before) = {
            let state = self.core.read()?;
            let mut batch = Batch::new(&state);
            for request in requests {
                self.decide(&state, &mut batch, request, decided, closes);
            }
            batch.finish(&state, &self.core.options, self.room);
            (batch, state.revision())
        };
        if !batch.has_effects() {
            if self.refused.get() {
                self.look_for_room();
            }
            return Ok(());
        }
        match self.journal.commit(&batch) {
            Ok(()) => {
                let applied = self.apply(&batch, before);
                self.look_for_room();
                applied
            }
            Err(error) => self.commit_failed(batch, before, error),
        }
    }

    /// Decides a transaction, unless there is no space for what it adds.
    fn transact(
        &self,
        state: &State,
        batch: &mut Batch,
        compares: &[Compare],
        ops: Vec<Op>,
    ) -> Result<TxnResponse> {
        let fits = |op: &Op| admits(self.room, op, batch.current(state, op.key()).as_ref());
        if self.room > Room::Enough && !ops.iter().all(fits) {
            return Err(Error::NoSpace);
        }
        if self.core.limits.any() {
            let ops: Vec<_> = ops.iter().map(|op| (op, batch.current(state, op.key()))).collect();
            let present = Present { usage: state.usage(), changes: &batch.changes, alarm: self.alarm };
            self.core.limits.check(&present, &ops).inspect_err(|error| {
                self.refused.set(self.refused.get() || *error == Error::NoSpace);
            })?;
        }
        batch.txn(state, compares, ops)
    }

    fn decide(
        &self,
        state: &State,
        batch: &mut Batch,
        request: Request,
        decided: &mut Vec<Decided>,
        closes: &mut Vec<Answer<()>>,
    ) {
        decided.push(match request {
            Request::Txn { compares, ops, answer } => {
                Decided::Txn(answer, self.transact(state, batch, &compares, ops))
            }
            Request::Grant { ttl_seconds, answer } => Decided::Lease(answer, batch.grant(ttl_seconds)),
            Request::Revoke { lease, answer } => Decided::Unit(answer, batch.revoke(state, lease)),
            Request::Expire { lease, now, answer } => {
                let result = match self.claim_expired(lease, now) {
                    Ok(true) => batch.revoke(state, lease),
                    Ok(false) => Ok(()),
                    Err(error) => Err(error),
                };
                Decided::Unit(answer, result)
            }
            Request::Compact { revision, answer } => Decided::Unit(answer, batch.compact(revision)),
            // Answered before.
            Request::Scrub { .. } => return,
            Request::Close { answer } => {
                closes.push(answer);
                return;
            }
        });
    }

    /// Removes the lease's deadline if it has passed. From then on the lease cannot be kept alive.
    fn claim_expired(&self, lease: LeaseId, now: Duration) -> Result<bool> {
        let mut deadlines = self.core.deadlines()?;
        let expired = deadlines.get(&lease).is_some_and(|deadline| *deadline <= now);
        if expired {
            deadlines.remove(&lease);
        }
        Ok(expired)
    }

    pub(crate) fn apply(&self, batch: &Batch, before: u64) -> Result<()> {
        let mut hub = self.core.hub()?;
        self.core.write()?.apply(batch);
        self.update_deadlines(batch)?;
        hub.publish(before, &batch.commits);
        Ok(())
    }

    fn update_deadlines(&self, batch: &Batch) -> Result<()> {
        if batch.granted.is_empty() && batch.revoked.is_empty() {
            return Ok(());
        }
        let now = self.core.options.time.now();
        let mut deadlines = self.core.deadlines()?;
        for (id, ttl_seconds) in &batch.granted {
            deadlines.insert(*id, now.saturating_add(Duration::from_secs(*ttl_seconds)));
        }
        for id in &batch.revoked {
            deadlines.remove(id);
        }
        Ok(())
    }
}
