//! The identity of an API server: a Lease that shows other servers that it runs. Expired leases are deleted.
//!
//! The task belongs to the API server and is not a controller of the controller manager.
//!
//! Source: <https://kubernetes.io/docs/concepts/architecture/leases/#api-server-identity>, and the behaviour of
//! kube-apiserver 1.37.

pub mod storage_versions;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE32_NOPAD;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, MicroTime, ObjectMeta, Preconditions};
use knarr_api::kind::Kind;
use knarr_client::transport::ListOptions;
use knarr_client::{Client, Result};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use self::storage_versions::StoredAs;

pub const NAMESPACE: &str = "kube-system";
const LABEL: &str = "apiserver.kubernetes.io/identity";
const API_SERVER: &str = "kube-apiserver";
const LASTS: SignedDuration = SignedDuration::from_secs(3600);
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// The wait between attempts after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const CLEAR_EVERY: Duration = Duration::from_secs(3600);
/// The wait after the leases could not be listed.
const CLEAR_RETRY: Duration = Duration::from_secs(10);
/// How long a server that stops tries to delete its lease.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Returns whether the lease is an API server's.
pub fn is_identity(lease: &Lease) -> bool {
    lease.namespace() == NAMESPACE
        && lease.metadata.labels.as_ref().and_then(|l| l.get(LABEL)).is_some_and(|value| value == API_SERVER)
}

fn is_expired(lease: &Lease, now: Timestamp) -> bool {
    let until = |spec: &LeaseSpec| {
        let seconds = i64::from(spec.lease_duration_seconds?);
        Some(spec.renew_time.as_ref()?.0 + SignedDuration::from_secs(seconds))
    };
    lease.spec.as_ref().and_then(until).is_none_or(|until| until < now)
}

/// A step that was done, for the first time or again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The lease was taken or renewed.
    Renewed,
    /// Expired leases of other servers were searched for and deleted.
    Cleared,
    /// The StorageVersions of this server were recorded.
    Recorded,
}

/// One API server.
#[derive(Clone)]
pub struct ApiServerIdentity {
    host: String,
    /// The lease's name, the same after each start on this host: `apiserver-` and 26 characters.
    name: String,
    /// The identity of this process.
    holder: String,
    notify: Arc<dyn Fn(Done) + Send + Sync>,
}

impl ApiServerIdentity {
    pub fn of(host: &str) -> Self {
        // Each part has its length before it, as in upstream's hash.
        let parts = [host, API_SERVER].map(|part| {
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes();
            [&length, part.as_bytes()].concat()
        });
        let digest = Sha256::digest(parts.concat());
        let text = BASE32_NOPAD.encode(digest.get(..16).unwrap_or_default()).to_lowercase();
        let name = format!("apiserver-{text}");
        let holder = format!("{name}_{}", uuid::Uuid::new_v4());
        Self { host: host.to_owned(), name, holder, notify: Arc::new(|_| ()) }
    }

    /// Sets the callback that is called after each step.
    pub fn telling(mut self, notify: impl Fn(Done) + Send + Sync + 'static) -> Self {
        self.notify = Arc::new(notify);
        self
    }

    /// Renews the lease until `stop` and deletes it then. Meanwhile records how this server stores resources, if
    /// `stored` is not empty.
    pub async fn run(self, client: Client, stored: Vec<StoredAs>, stop: CancellationToken) {
        let mut latest = None;
        let mut recorded = stored.is_empty();
        let clock = client.clock();
        let mut clear_at = clock.monotonic();
        loop {
            let renewed = self.renew(&client, &mut latest).await;
            match &renewed {
                Ok(()) => (self.notify)(Done::Renewed),
                Err(error) => {
                    tracing::warn!(%error, lease = self.name, "the lease of this API server could not be renewed");
                }
            }
            if !recorded && renewed.is_ok() {
                recorded = storage_versions::record(&client, &self.name, &stored).await;
                if recorded {
                    (self.notify)(Done::Recorded);
                }
            }
            if clock.monotonic() >= clear_at {
                clear_at = clock.monotonic() + CLEAR_EVERY;
                if clear(&client).await {
                    (self.notify)(Done::Cleared);
                } else {
                    clear_at = clock.monotonic() + CLEAR_RETRY;
                }
            }
            let wait = if renewed.is_ok() && recorded { RENEW_EVERY } else { RETRY_AFTER };
            tokio::select! {
                () = stop.cancelled() => break,
                () = clock.sleep(wait) => {}
            }
        }
        let options = DeleteOptions::default();
        tokio::select! {
            _ = client.delete::<Lease>(NAMESPACE, &self.name, &options) => {}
            () = clock.sleep(LEAVE_WITHIN) => {}
        }
    }

    async fn renew(&self, client: &Client, latest: &mut Option<Lease>) -> Result<()> {
        let now = client.clock().now();
        let known = match latest.take() {
            Some(lease) => lease,
            None => match client.get(NAMESPACE, &self.name).await {
                Ok(lease) => lease,
                Err(error) if error.is_not_found() => {
                    *latest = Some(client.create(&self.renewed(Lease::default(), now)).await?);
                    return Ok(());
                }
                Err(error) => return Err(error),
            },
        };
        *latest = Some(client.update(&self.renewed(known, now)).await?);
        Ok(())
    }

    fn renewed(&self, lease: Lease, now: Timestamp) -> Lease {
        let mut labels: BTreeMap<String, String> = lease.metadata.labels.unwrap_or_default();
        labels.insert(LABEL.to_owned(), API_SERVER.to_owned());
        labels.insert("kubernetes.io/hostname".to_owned(), self.host.clone());
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(NAMESPACE.to_owned()),
                labels: Some(labels),
                ..lease.metadata
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.clone()),
                lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
                renew_time: Some(MicroTime(now)),
                ..lease.spec.unwrap_or_default()
            }),
        }
    }
}

/// Deletes the expired leases of API servers; returns whether the leases could be listed.
async fn clear(client: &Client) -> bool {
    let options =
        ListOptions { label_selector: Some(format!("{LABEL}={API_SERVER}")), ..ListOptions::default() };
    let leases = match client.list::<Lease>(Some(NAMESPACE), &options).await {
        Ok((leases, _)) => leases,
        Err(error) => {
            tracing::warn!(%error, "the leases of API servers could not be listed");
            return false;
        }
    };
    let now = client.clock().now();
    for lease in leases.iter().filter(|lease| is_identity(lease) && is_expired(lease, now)) {
        let preconditions = Preconditions {
            uid: lease.metadata.uid.clone(),
            resource_version: lease.metadata.resource_version.clone(),
        };
        let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
        // The precondition fails if the lease was renewed since the list.
        if let Err(error) = client.delete::<Lease>(NAMESPACE, lease.name(), &options).await {
            tracing::debug!(%error, lease = lease.name(), "an expired lease could not be deleted");
        }
    }
    true
}
