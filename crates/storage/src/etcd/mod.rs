//! The etcd engine: the store is a prefix of an etcd v3 cluster, which several servers may share.

mod endpoints;
mod error;
mod keys;
mod options;
mod proto;
mod range;
mod txn;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use knarr_grpc::CallError;
use prost::Message;
use tokio_util::sync::CancellationToken;

use endpoints::{Endpoints, Repeat};
use error::Meaning;
use keys::{Keyspace, number, revision};
pub use options::{EtcdConfigError, EtcdOptions, EtcdTls};

use crate::engine::batch;
use crate::options::Options;
use crate::store::Store;
use crate::types::{
    Compare, KeyRange, KeyValue, LeaseId, NoSpace, Op, RangeRequest, RangeResponse, Status, TxnResponse,
};
use crate::watch::{Watch, WatchRequest};
use crate::{Error, Result};

/// A lease of this process. etcd expires it as well, but the store's own clock determines when it is due.
struct Lease {
    ttl: Duration,
    deadline: Duration,
}

/// The state that clones of the engine share.
pub struct Shared {
    endpoints: Endpoints,
    keys: Keyspace,
    options: EtcdOptions,
    limits: Options,
    leases: Mutex<BTreeMap<LeaseId, Lease>>,
    /// The newest compaction known to this process.
    compacted: AtomicU64,
    watchers: AtomicU64,
    closed: CancellationToken,
}

/// A store in etcd. Clones share its connection.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<Shared>,
}

impl std::ops::Deref for Etcd {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Etcd {
    /// Creates the store after checking the options. Connections are opened on demand.
    pub fn new(options: EtcdOptions) -> std::result::Result<Self, EtcdConfigError> {
        let limits = Options {
            // etcd has a limit on the whole request, and refuses larger ones itself.
            max_value_bytes: usize::MAX,
            max_txn_ops: options.max_txn_ops,
            ..Options::default()
        };
        let shared = Shared {
            endpoints: Endpoints::new(&options)?,
            keys: Keyspace::new(&options.prefix),
            limits,
            leases: Mutex::default(),
            compacted: AtomicU64::new(0),
            watchers: AtomicU64::new(0),
            closed: CancellationToken::new(),
            options,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Makes a call, unless the store is closed before it is answered.
    async fn call<A: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        repeat: Repeat,
    ) -> Result<Result<A, CallError>> {
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(Error::Closed),
            answer = self.endpoints.call(path, message, repeat) => Ok(answer),
        }
    }

    fn leases(&self) -> std::sync::MutexGuard<'_, BTreeMap<LeaseId, Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn revoke(&self, lease: LeaseId) -> Result<()> {
        let request = proto::LeaseRequest { id: number(lease.get()) };
        // Revoking twice is the same as once. If a second attempt finds no lease, that may be because the first one
        // succeeded, but it cannot be distinguished from a lease that never existed.
        let answer = self
            .call::<proto::HeaderOnly>("/etcdserverpb.Lease/LeaseRevoke", &request, Repeat::Never)
            .await?;
        match answer {
            Ok(_) => {
                self.leases().remove(&lease);
                Ok(())
            }
            Err(error) if error.is_lease_not_found() => {
                self.leases().remove(&lease);
                Err(Error::LeaseNotFound(lease))
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[async_trait]
impl Store for Etcd {
    async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>> {
        let request = proto::RangeRequest { key: self.keys.key(key), ..Default::default() };
        let answer: proto::RangeResponse = self.call(range::RANGE, &request, Repeat::Safely).await??;
        answer.kvs.into_iter().next().map(|kv| self.keys.key_value(kv)).transpose()
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.read_range(&request).await
    }

    async fn txn(&self, compares: Vec<Compare>, ops: Vec<Op>) -> Result<TxnResponse> {
        batch::check(&compares, &ops, &self.limits)?;
        let request = txn::request(&self.keys, &compares, &ops);
        let repeat = if ops.is_empty() { Repeat::Safely } else { Repeat::Never };
        let answer = self.call("/etcdserverpb.KV/Txn", &request, repeat).await?;
        let answer = answer.map_err(|error| {
            let lease = ops.iter().find_map(|op| match op {
                Op::Put { lease, .. } => *lease,
                Op::Delete { .. } => None,
            });
            match lease {
                Some(lease) if error.is_lease_not_found() => Error::LeaseNotFound(lease),
                _ => error.into(),
            }
        })?;
        txn::outcome(&self.keys, &compares, &ops, answer)
    }

    async fn watch(&self, request: WatchRequest) -> Result<Watch> {
        watch::start(self, request).await
    }

    async fn compact(&self, revision: u64) -> Result<()> {
        let request = proto::CompactionRequest { revision: number(revision) };
        match self.call::<proto::HeaderOnly>("/etcdserverpb.KV/Compact", &request, Repeat::Safely).await? {
            Ok(_) => {
                self.compacted.fetch_max(revision, Ordering::AcqRel);
                Ok(())
            }
            // Another server has compacted to this revision or further.
            Err(error) if error.is_compacted() => Ok(()),
            Err(error) if error.is_future_revision() => {
                Err(Error::FutureRevision { requested: revision, current: self.latest_revision().await? })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn current_revision(&self) -> Result<u64> {
        self.latest_revision().await
    }

    async fn grant_lease(&self, ttl_seconds: u64) -> Result<LeaseId> {
        if ttl_seconds == 0 {
            return Err(Error::Invalid("a lease must last at least a second"));
        }
        let request = proto::LeaseGrantRequest { ttl: number(ttl_seconds) };
        // A lease that no one knows expires by itself.
        let answer: proto::LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", &request, Repeat::Safely).await??;
        if !answer.error.is_empty() {
            return Err(Error::Backend(answer.error.into()));
        }
        let id = LeaseId::new(revision(answer.id))
            .ok_or(Error::Invalid("etcd granted a lease without a number"))?;
        let ttl = Duration::from_secs(ttl_seconds);
        let deadline = self.options.time.now().saturating_add(ttl);
        self.leases().insert(id, Lease { ttl, deadline });
        Ok(id)
    }

    async fn keep_alive_lease(&self, lease: LeaseId) -> Result<u64> {
        let request = proto::LeaseRequest { id: number(lease.get()) };
        let answer: proto::LeaseKeepAliveResponse =
            self.call("/etcdserverpb.Lease/LeaseKeepAlive", &request, Repeat::Safely).await??;
        if answer.ttl <= 0 {
            self.leases().remove(&lease);
            return Err(Error::LeaseNotFound(lease));
        }
        let now = self.options.time.now();
        if let Some(lease) = self.leases().get_mut(&lease) {
            lease.deadline = now.saturating_add(lease.ttl);
        }
        Ok(revision(answer.ttl))
    }

    async fn lease_ttl(&self, lease: LeaseId) -> Result<u64> {
        let request = proto::LeaseRequest { id: number(lease.get()) };
        let answer: proto::LeaseTimeToLiveResponse =
            self.call("/etcdserverpb.Lease/LeaseTimeToLive", &request, Repeat::Safely).await??;
        // etcd returns -1 as the time left of a lease that does not exist.
        if answer.ttl < 0 || answer.granted_ttl <= 0 {
            return Err(Error::LeaseNotFound(lease));
        }
        Ok(revision(answer.granted_ttl))
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<()> {
        self.revoke(lease).await
    }

    async fn expire_leases(&self) -> Result<Option<Duration>> {
        let now = self.options.time.now();
        let due: Vec<LeaseId> =
            self.leases().iter().filter(|(_, lease)| lease.deadline <= now).map(|(id, _)| *id).collect();
        for lease in due {
            match self.revoke(lease).await {
                Ok(()) | Err(Error::LeaseNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let next = self.leases().values().map(|lease| lease.deadline).min();
        Ok(next.map(|deadline| deadline.saturating_sub(self.options.time.now())))
    }

    async fn status(&self) -> Result<Status> {
        let counted = self.range(RangeRequest::new(KeyRange::all()).limit(0)).await?;
        let member: proto::StatusResponse =
            self.call("/etcdserverpb.Maintenance/Status", &proto::Empty {}, Repeat::Safely).await??;
        let leases: proto::LeaseLeasesResponse =
            self.call("/etcdserverpb.Lease/LeaseLeases", &proto::Empty {}, Repeat::Safely).await??;
        let compacted = self.compacted.load(Ordering::Acquire);
        Ok(Status {
            revision: counted.revision,
            compacted_revision: compacted,
            keys: counted.remaining,
            leases: leases.leases.len() as u64,
            watchers: self.watchers.load(Ordering::Relaxed),
            history_revisions: counted.revision.saturating_sub(compacted),
            // The history is in the members' memory, not in this process.
            history_bytes: 0,
            file_bytes: revision(member.db_size),
            live_bytes: 0,
            quota_bytes: None,
            no_space: member.errors.iter().any(|error| error.contains("NOSPACE")).then_some(NoSpace::Backend),
            failure: (!member.errors.is_empty()).then(|| member.errors.join(", ")),
        })
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        Ok(())
    }
}
