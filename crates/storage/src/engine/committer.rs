//! The one writer: decides a batch of requests, makes it durable, applies it, publishes it, answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::batch::Batch;
use super::core::Core;
use super::state::State;
use crate::types::{Compare, LeaseId, Op, TxnResponse};
use crate::{Error, Result};

/// What makes a batch survive the process.
pub(crate) trait Journal: Send {
    /// Returns once the batch is durable. After an error the journal is not used again.
    fn commit(&mut self, batch: &Batch) -> std::result::Result<(), String>;
}

/// The journal of a store that lives in memory alone.
#[derive(Debug)]
pub(super) struct NoJournal;

impl Journal for NoJournal {
    fn commit(&mut self, _batch: &Batch) -> std::result::Result<(), String> {
        Ok(())
    }
}

type Answer<T> = oneshot::Sender<Result<T>>;

/// A write waiting for its turn.
#[derive(Debug)]
pub(super) enum Request {
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
    /// Revokes the lease if it has run out at that time and nobody has kept it alive meanwhile.
    Expire {
        lease: LeaseId,
        now: Duration,
        answer: Answer<()>,
    },
    Compact {
        revision: u64,
        answer: Answer<()>,
    },
    Close {
        answer: Answer<()>,
    },
}

impl Request {
    /// Roughly the bytes that the request writes.
    pub(super) fn bytes(&self) -> usize {
        let of_op = |op: &Op| match op {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete { key } => key.len(),
        };
        match self {
            Self::Txn { ops, .. } => ops.iter().map(of_op).sum(),
            _ => 0,
        }
    }
}

/// A request that has been decided; the answer waits until that is durable.
enum Decided {
    Txn(Answer<TxnResponse>, Result<TxnResponse>),
    Lease(Answer<LeaseId>, Result<LeaseId>),
    Unit(Answer<()>, Result<()>),
}

impl Decided {
    /// Answers with what was decided, or with why it did not come true.
    fn answer(self, failure: Option<&Error>) {
        fn send<T>(answer: Answer<T>, result: Result<T>, failure: Option<&Error>) {
            // Whoever asked may have gone.
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
pub(super) struct Committer<J> {
    core: Arc<Core>,
    journal: J,
}

impl<J: Journal> Committer<J> {
    pub(super) fn new(core: Arc<Core>, journal: J) -> Self {
        Self { core, journal }
    }

    /// Carries out requests in order with one durable step. Those to close come back.
    pub(super) fn run(&mut self, requests: Vec<Request>) -> Vec<Answer<()>> {
        let mut closes = Vec::new();
        let mut decided = Vec::with_capacity(requests.len());
        let outcome = self.run_inner(requests, &mut decided, &mut closes);
        for request in decided {
            request.answer(outcome.as_ref().err());
        }
        closes
    }

    /// Whether there is compacted history to drop when nothing else is to be done.
    pub(super) fn has_leftovers(&self) -> bool {
        self.core.failure().is_none() && self.core.read().is_ok_and(|state| state.has_prunable())
    }

    fn run_inner(
        &mut self,
        requests: Vec<Request>,
        decided: &mut Vec<Decided>,
        closes: &mut Vec<Answer<()>>,
    ) -> Result<()> {
        let (batch, before) = {
            let state = self.core.read()?;
            let mut batch = Batch::new(&state);
            for request in requests {
                self.decide(&state, &mut batch, request, decided, closes);
            }
            batch.finish(&state, &self.core.options);
            (batch, state.revision())
        };
        self.core.check_writable()?;
        if !batch.has_effects() {
            return Ok(());
        }
        if let Err(reason) = self.journal.commit(&batch) {
            tracing::error!(%reason, "a write could not be made durable, the store is read-only from now on");
            self.core.fail(&reason);
            return self.core.check_writable();
        }
        self.apply(&batch, before)
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
            Request::Txn { compares, ops, answer } => Decided::Txn(answer, batch.txn(state, &compares, ops)),
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
            Request::Close { answer } => {
                closes.push(answer);
                return;
            }
        });
    }

    /// Takes the lease's deadline away if it has passed: from here on it cannot be kept alive.
    fn claim_expired(&self, lease: LeaseId, now: Duration) -> Result<bool> {
        let mut deadlines = self.core.deadlines()?;
        let expired = deadlines.get(&lease).is_some_and(|deadline| *deadline <= now);
        if expired {
            deadlines.remove(&lease);
        }
        Ok(expired)
    }

    fn apply(&self, batch: &Batch, before: u64) -> Result<()> {
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
