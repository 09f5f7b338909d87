//! The embedded store: the engine with a file, or without.

#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::disk::{self, Checked, Entry, Fault, OpenError, RepairError, WriteError};
use crate::engine::committer::{Committer, Request};
use crate::engine::core::Core;
use crate::engine::journal::{Journal, NoJournal, RawFile};
use crate::engine::state::{Scan, State};
use crate::engine::thread::CommitThread;
use crate::engine::{batch, scrub, watcher};
use crate::options::Options;
use crate::store::Store;
use crate::types::{
    Compare, KeyValue, LeaseId, Op, RangeRequest, RangeResponse, ScrubFrom, ScrubStep, Status, TxnResponse,
};
use crate::watch::{Watch, WatchRequest};
use crate::{Error, Result};

/// The number of keys that are read while the state is locked.
const SCAN_KEYS: usize = 2048;
/// How often a read of the latest revision is retried because that revision was compacted during the read.
const RANGE_ATTEMPTS: usize = 4;

/// The embedded store: one process, one file, all state in memory.
#[derive(Debug)]
pub struct Embedded {
    core: Arc<Core>,
    writer: Writer,
    raw: Option<Arc<dyn RawFile>>,
}

#[derive(Debug)]
enum Writer {
    Thread(CommitThread),
    /// Writes are executed by the caller: there is no thread, so the caller determines their order.
    Inline(Box<Mutex<Committer<NoJournal>>>),
}

impl Embedded {
    /// Opens the store in a folder, which is created if it does not exist. Loads the whole state into memory, which
    /// takes a while for a large store: call it where blocking is allowed.
    pub fn open(dir: impl AsRef<Path>, options: Options) -> std::result::Result<Self, OpenError> {
        let (database, state, file) = disk::open(dir.as_ref(), &options)?;
        Self::start(state, database, options, Some(file))
    }

    /// Returns whether the folder contains a store's file, whatever its content.
    pub fn is_in(dir: impl AsRef<Path>) -> bool {
        disk::file::file(dir.as_ref()).exists()
    }

    /// Writes a store with these entries into a folder without a store, which nothing else may use at the same time.
    /// Every key gets `revision`; older reads and watches are refused as compacted. The file can only be opened as a
    /// store after this has returned without an error.
    pub fn write<E>(
        dir: impl AsRef<Path>,
        revision: u64,
        entries: impl Iterator<Item = std::result::Result<Entry, E>>,
    ) -> std::result::Result<(), WriteError<E>> {
        disk::restore::write(dir.as_ref(), revision, entries)
    }

    /// Checks the store in a folder, which must not be in use, for damage. Changes nothing.
    pub fn check(dir: impl AsRef<Path>) -> std::result::Result<Checked, OpenError> {
        disk::check::check(dir.as_ref())
    }

    /// Repairs the store in a folder, which must not be in use, and returns the repaired faults. `keep` gets the path
    /// of the file before anything is changed. Keys that are set aside stay so.
    pub fn repair(
        dir: impl AsRef<Path>,
        keep: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> std::result::Result<Vec<Fault>, RepairError> {
        disk::rewrite::repair(dir.as_ref(), keep)
    }

    /// Returns a store that only exists in memory. Deterministic: it has no thread of its own.
    pub fn memory(options: Options) -> Self {
        let core = Arc::new(Core::new(State::default(), options, None));
        let committer = Committer::new(Arc::clone(&core), NoJournal);
        Self { core, writer: Writer::Inline(Box::new(Mutex::new(committer))), raw: None }
    }

    pub(crate) fn start(
        state: State,
        journal: impl Journal + 'static,
        options: Options,
        file: Option<std::path::PathBuf>,
    ) -> std::result::Result<Self, OpenError> {
        let core = Arc::new(Core::new(state, options, file));
        let raw = journal.raw();
        let thread = CommitThread::start(Arc::clone(&core), journal).map_err(OpenError::Thread)?;
        Ok(Self { core, writer: Writer::Thread(thread), raw })
    }

    async fn submit<T>(&self, request: impl FnOnce(oneshot::Sender<Result<T>>) -> Request) -> Result<T> {
        self.core.check_open()?;
        let (answer, answered) = oneshot::channel();
        let request = request(answer);
        match &self.writer {
            Writer::Thread(thread) => thread.send(request).await?,
            Writer::Inline(committer) => {
                let mut committer = committer
                    .lock()
                    .map_err(|_| Error::Unavailable { reason: "a writer panicked".into() })?;
                let mut closes = committer.run(vec![request]);
                // Compacted history is dropped in small parts. No thread would drop the rest later.
                while committer.has_leftovers() {
                    closes.extend(committer.run(Vec::new()));
                }
                if !closes.is_empty() {
                    self.core.close(Ok(()));
                }
                for close in closes {
                    let _ = close.send(Ok(()));
                }
            }
        }
        answered.await.unwrap_or(Err(Error::Closed))
    }

    /// Tries a range once. Unlocks the state regularly, so that a long range does not block writers.
    async fn try_range(&self, request: &RangeRequest) -> Result<RangeResponse> {
        let revision = match request.revision {
            Some(revision) => revision,
            None => self.core.read()?.revision(),
        };
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut scan = Scan::new(request.range.clone(), revision, limit, request.count);
        loop {
            {
                let state = self.core.read()?;
                if revision > state.revision() {
                    return Err(Error::FutureRevision { requested: revision, current: state.revision() });
                }
                if revision < state.compacted() {
                    return Err(Error::Compacted { requested: revision, compacted: state.compacted() });
                }
                if state.scan(&mut scan, SCAN_KEYS) {
                    break;
                }
            }
            tokio::task::yield_now().await;
        }
        let remaining = if request.count { scan.remaining } else { 0 };
        Ok(RangeResponse { more: scan.remaining > 0, kvs: scan.kvs, remaining, revision })
    }
}

#[async_trait]
impl Store for Embedded {
    async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>> {
        Ok(self.core.read()?.get(key))
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let mut attempts = 1;
        loop {
            match self.try_range(&request).await {
                Err(Error::Compacted { .. }) if request.revision.is_none() && attempts < RANGE_ATTEMPTS => {
                    attempts += 1;
                }
                result => return result,
            }
        }
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnResponse> {
        batch::check(&compares, &ops, &self.core.options)?;
        self.submit(|answer| Request::Txn { compares, ops, answer }).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch> {
        watcher::watch(&self.core, request.range, request.after)
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        self.submit(|answer| Request::Compact { revision, answer }).await
    }

    async fn current_revision(&self) -> Result<u64> {
        Ok(self.core.read()?.revision())
    }

    async fn grant_lease(&self, ttl_seconds: u64) -> Result<LeaseId> {
        if ttl_seconds == 0 {
            return Err(Error::Invalid("a lease must last at least a second"));
        }
        self.submit(|answer| Request::Grant { ttl_seconds, answer }).await
    }

    async fn keep_alive_lease(&self, lease: LeaseId) -> Result<u64> {
        let ttl_seconds = self.lease_ttl(lease).await?;
        let now = self.core.options.time.now();
        let mut deadlines = self.core.deadlines()?;
        let deadline = deadlines.get_mut(&lease).ok_or(Error::LeaseNotFound(lease))?;
        *deadline = now.saturating_add(Duration::from_secs(ttl_seconds));
        Ok(ttl_seconds)
    }

    async fn lease_ttl(&self, lease: LeaseId) -> Result<u64> {
        match self.core.read()?.leases().get(&lease) {
            Some(lease) => Ok(lease.ttl_seconds),
            None => Err(Error::LeaseNotFound(lease)),
        }
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.submit(|answer| Request::Revoke { lease, answer }).await
    }

    async fn expire_leases(&self) -> Result<Option<Duration>> {
        let now = self.core.options.time.now();
        let due: Vec<LeaseId> = {
            let deadlines = self.core.deadlines()?;
            deadlines.iter().filter(|(_, deadline)| **deadline <= now).map(|(id, _)| *id).collect()
        };
        for lease in due {
            match self.submit(|answer| Request::Expire { lease, now, answer }).await {
                Ok(()) | Err(Error::LeaseNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let next = self.core.deadlines()?.values().min().copied();
        Ok(next.map(|deadline| deadline.saturating_sub(self.core.options.time.now())))
    }

    async fn status(&self) -> Result<Status> {
        let watchers = self.core.hub()?.len() as u64;
        let file_bytes =
            self.core.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |file| file.len());
        let health = self.core.health();
        let state = self.core.read()?;
        Ok(Status {
            revision: state.revision(),
            compacted_revision: state.compacted(),
            keys: state.live_keys() as u64,
            leases: state.leases().len() as u64,
            watchers,
            history_revisions: state.log_len() as u64,
            history_bytes: state.history_bytes() as u64,
            file_bytes,
            live_bytes: state.usage().total,
            quota_bytes: self.core.limits.quota(),
            failure: health.failure.map(|reason| reason.to_string()),
            no_space: health.no_space,
        })
    }

    async fn scrub(&self, from: Option<ScrubFrom>) -> Result<Option<ScrubStep>> {
        let Some(raw) = &self.raw else { return Ok(None) };
        let after = match from.unwrap_or(ScrubFrom::Byte(0)) {
            ScrubFrom::Row(after) => after,
            ScrubFrom::Byte(offset) => {
                self.core.check_open()?;
                return scrub::of_file(Arc::clone(raw), offset).await.map(Some);
            }
        };
        self.submit(|answer| Request::Scrub { after, answer }).await.map(Some)
    }

    async fn close(&self) -> Result<()> {
        match self.submit(|answer| Request::Close { answer }).await {
            // The store was closed by another caller, or ended by a fault; then requests are dropped before it has an
            // outcome.
            Err(Error::Closed) => {
                self.core.closed().await;
                self.core.outcome().unwrap_or(Ok(()))
            }
            result => result,
        }
    }

    async fn closed(&self) {
        self.core.closed().await;
    }
}
