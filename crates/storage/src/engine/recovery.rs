//! Recovers from a failed commit: reopens the file until it shows the fate of the batch.

use std::time::Duration;

use super::batch::Batch;
use super::committer::Committer;
use super::health::Retry;
use super::journal::{CommitError, Fate, Journal};
use crate::{Error, Result};

/// A batch whose durability is unknown.
#[derive(Debug)]
pub(super) struct Broken {
    batch: Batch,
    /// The revision before the batch.
    before: u64,
    /// The error for requests in the meantime.
    error: Error,
    /// `None` when there is nothing more to try.
    retry: Option<Retry>,
}

impl Broken {
    /// Why the store cannot be written to.
    pub(super) fn reason(&self) -> String {
        match &self.error {
            Error::Unavailable { reason } => reason.to_string(),
            error => error.to_string(),
        }
    }

    pub(super) fn retry_in(&self, now: Duration) -> Option<Duration> {
        self.retry.as_ref().map(|retry| retry.left(now))
    }
}

fn refusal(error: &CommitError) -> Error {
    match error {
        CommitError::NoSpace(_) => Error::NoSpace,
        CommitError::Failed(reason) | CommitError::Diverged(reason) => {
            Error::Unavailable { reason: reason.as_str().into() }
        }
    }
}

impl<J: Journal> Committer<J> {
    /// Records a failed commit and makes the first attempt to recover from it.
    pub(super) fn commit_failed(&mut self, batch: Batch, before: u64, error: CommitError) -> Result<()> {
        let refused = refusal(&error);
        tracing::error!(%error, "a write could not be made durable, the store is read-only until its file is in order");
        self.core.set_failure(Some(&error.to_string()));
        self.keep_due(&batch)?;
        let retry = Some(Retry::new(self.core.options.time.now()));
        self.broken = Some(Broken { batch, before, error: refused.clone(), retry });
        match self.recover() {
            Ok(Fate::Kept) => Ok(()),
            // The fate of the batch is known, or will be: its writers do not wait for that.
            Ok(Fate::Lost) | Err(_) => Err(refused),
        }
    }

    /// Tries to recover from a failed commit if an attempt is due. Returns an error while the store is read-only, and
    /// otherwise the fate of the failed batch, or `Kept` if nothing has failed.
    pub(super) fn recover(&mut self) -> Result<Fate> {
        let Some(mut broken) = self.broken.take() else { return Ok(Fate::Kept) };
        let time = self.core.options.time.clone();
        let started = time.now();
        if !broken.retry_in(started).is_some_and(|left| left.is_zero()) {
            let error = broken.error.clone();
            self.broken = Some(broken);
            return Err(error);
        }
        let reopened = self.journal.reopen();
        match reopened.map(|fate| self.settle(&broken, fate)) {
            Ok(Ok(fate)) => {
                tracing::info!(?fate, "the store's file is in order again, writes are accepted");
                self.core.set_failure(None);
                Ok(fate)
            }
            Ok(Err(error)) => {
                self.broken = Some(broken);
                Err(error)
            }
            Err(error) => {
                self.core.set_failure(Some(&error.to_string()));
                broken.error = refusal(&error);
                match &mut broken.retry {
                    Some(_) if matches!(error, CommitError::Diverged(_)) => {
                        tracing::error!(%error, "the store stays read-only");
                        broken.retry = None;
                    }
                    Some(retry) => {
                        tracing::warn!(%error, "cannot reopen the store's file yet");
                        retry.failed(started, time.now());
                    }
                    None => {}
                }
                let error = broken.error.clone();
                self.broken = Some(broken);
                Err(error)
            }
        }
    }

    /// Makes the state in memory match the file.
    fn settle(&self, broken: &Broken, fate: Fate) -> Result<Fate> {
        if fate == Fate::Kept {
            self.apply(&broken.batch, broken.before)?;
        }
        Ok(fate)
    }

    /// The leases that a failed batch was going to revoke still exist and are due at once.
    fn keep_due(&self, batch: &Batch) -> Result<()> {
        let now = self.core.options.time.now();
        let state = self.core.read()?;
        let mut deadlines = self.core.deadlines()?;
        for lease in batch.revoked.iter().filter(|id| state.leases().contains_key(id)) {
            deadlines.entry(*lease).or_insert(now);
        }
        Ok(())
    }
}
