//! The interface of a revisioned key-value store.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::types::{
    Compare, DeleteResponse, KeyValue, LeaseId, Op, OpResult, Precondition, PutResponse, RangeRequest,
    RangeResponse, ScrubFrom, ScrubStep, Status, TxnResponse,
};
use crate::watch::{Watch, WatchRequest};
use crate::{Error, Result};

/// A revisioned key-value store.
///
/// Reads see every write that was answered before they began. A write is answered only when it is durable; by then its
/// events have been sent to every live watcher. A write whose future is dropped, or that fails with
/// [`Error::Unavailable`], [`Error::NoSpace`], [`Error::Backend`], [`Error::Timeout`] or [`Error::Closed`], may have
/// been executed nevertheless.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>>;

    /// Reads a range at one revision. Fails with [`Error::Compacted`] if that revision is no longer available.
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse>;

    /// Executes all operations with one revision if all conditions hold. Otherwise changes nothing and fails with
    /// [`Error::Conflict`] for the first condition that does not hold.
    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnResponse>;

    async fn put(
        &self,
        key: Bytes,
        value: Bytes,
        precondition: Precondition,
        lease: Option<LeaseId>,
    ) -> Result<PutResponse> {
        let compares = vec![Compare { key: key.clone(), condition: precondition }];
        let response = self.txn(compares, vec![Op::Put { key, value, lease }]).await?;
        match response.results.into_iter().next() {
            Some(OpResult::Put { kv, prev }) => Ok(PutResponse { kv, prev }),
            _ => Err(Error::Invalid("the engine answered a put with something else")),
        }
    }

    async fn delete(&self, key: Bytes, precondition: Precondition) -> Result<DeleteResponse> {
        let compares = vec![Compare { key: key.clone(), condition: precondition }];
        let response = self.txn(compares, vec![Op::Delete { key }]).await?;
        match response.results.into_iter().next() {
            Some(OpResult::Delete { prev }) => Ok(DeleteResponse { revision: response.revision, prev }),
            _ => Err(Error::Invalid("the engine answered a delete with something else")),
        }
    }

    /// Watches a range: delivers everything after a revision, exactly once, in order of revision.
    async fn watch(&self, request: WatchRequest) -> Result<Watch>;

    /// Drops the history before `revision`: reads at it and watches after it still work. Does nothing if that was
    /// compacted already.
    async fn compact(&self, revision: u64) -> Result<()>;

    /// The revision of the last write; 1 if there was none.
    async fn current_revision(&self) -> Result<u64>;

    /// Creates a lease that expires `ttl_seconds` after now or after its last keep-alive. After a restart of the store,
    /// every lease starts with its whole time to live again.
    async fn grant_lease(&self, ttl_seconds: u64) -> Result<LeaseId>;

    /// Restarts the lease's time to live and returns it, in seconds.
    async fn keep_alive_lease(&self, lease: LeaseId) -> Result<u64>;

    /// The lease's time to live after each keep-alive, in seconds. Does not extend it.
    async fn lease_ttl(&self, lease: LeaseId) -> Result<u64>;

    /// Ends the lease and deletes its keys with one revision.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<()>;

    /// Revokes expired leases. Returns how long it is until the next one expires: the caller waits for that time (or
    /// for the next grant) and calls again, because the store has no timer of its own.
    async fn expire_leases(&self) -> Result<Option<Duration>>;

    async fn status(&self) -> Result<Status>;

    /// Reads the next part of the data on the disk (`None`: the first part) and compares it with what was written.
    /// Returns `None` if the store has nothing to compare.
    async fn scrub(&self, _from: Option<ScrubFrom>) -> Result<Option<ScrubStep>> {
        Ok(None)
    }

    /// Finishes the writes in progress, ends all watches and releases the files. Fails with [`Error::NotClosed`] if the
    /// store has ended by a fault, before or during this, or could not bring its files in order.
    async fn close(&self) -> Result<()>;

    /// Waits until the store is closed, whether by a caller or by a fault in its code, after which it must be opened
    /// again. Never returns for a store that cannot end by itself.
    async fn closed(&self) {
        std::future::pending().await
    }
}
