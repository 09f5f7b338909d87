//! The identity of an API server: a Lease by which others see that it is there; expired ones are cleared away.
//!
//! It works on behalf of the API server, and is no controller of the controller manager.
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
/// Between attempts that fail.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const CLEAR_EVERY: Duration = Duration::from_secs(3600);
/// After they could not be listed.
const CLEAR_RETRY: Duration = Duration::from_secs(10);
/// How long a server that stops tries to take its lease with it.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Whether the lease is an API server's.
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

/// What has been done for the first time, or again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// The lease was taken or renewed.
    Renewed,
    /// Expired leases of others were looked for.
    Cleared,
    /// It was written down how resources are stored.
    Recorded,
}

/// One API server.
#[derive(Clone)]
pub struct ApiServerIdentity {
    host: String,
    /// The lease's name, the same after each start on this host: `apiserver-` and 26 characters.
    name: String,
    /// This process.
    holder: String,
    tell: Arc<dyn Fn(Done) + Send + Sync>,
}

impl ApiServerIdentity {
    pub fn of(host: &str) -> Self {
        // Each part with its length before it, as upstream hashes them.
        let parts = [host, API_SERVER].map(|part| {
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes();
            [&length, part.as_bytes()].concat()
        });
        let digest = Sha256::digest(parts.concat());
        let text = BASE32_NOPAD.encode(digest.get(..16).unwrap_or_default()).to_lowercase();
        let name = format!("apiserver-{text}");
        let holder = format!("{name}_{}", uuid::Uuid::new_v4());
        Self { host: host.to_owned(), name, holder, tell: Arc::new(|_| ()) }
    }

    /// Calls this for whatever is done.
    pub fn telling(mut self, tell: impl Fn(Done) + Send + Sync + 'static) -> Self {
        self.tell = Arc::new(tell);
        self
    }

    /// Keeps the lease until `stop`, and takes it along then. Tells meanwhile how resources are stored, if there is
    /// something to tell.
    pub async fn run(self, client: Client, stored: Vec<StoredAs>, stop: CancellationToken) {
        let mut latest = None;
        let mut told = stored.is_empty();
        let clock = client.clock();
        let mut clear_at = clock.monotonic();
        loop {
            let renewed = self.renew(&client, &mut latest).await;
            match &renewed {
                Ok(()) => (self.tell)(Done::Renewed),
                Err(error) => {
                    tracing::warn!(%error, lease = self.name, "the lease of this API server is not renewed");
                }
            }
            if !told && renewed.is_ok() {
                told = storage_versions::record(&client, &self.name, &stored).await;
                if told {
                    (self.tell)(Done::Recorded);
                }
            }
            if clock.monotonic() >= clear_at {
                clear_at = clock.monotonic() + CLEAR_EVERY;
                if clear(&client).await {
                    (self.tell)(Done::Cleared);
                } else {
                    clear_at = clock.monotonic() + CLEAR_RETRY;
                }
            }
            let wait = if renewed.is_ok() && told { RENEW_EVERY } else { RETRY_AFTER };
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

/// Deletes the leases of API servers that have not been heard of for as long as these last; whether they are known.
async fn clear(client: &Client) -> bool {
    let options =
        ListOptions { label_selector: Some(format!("{LABEL}={API_SERVER}")), ..ListOptions::default() };
    let leases = match client.list::<Lease>(Some(NAMESPACE), &options).await {
        Ok((leases, _)) => leases,
        Err(error) => {
            tracing::warn!(%error, "the leases of API servers cannot be listed");
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
        // One that was renewed meanwhile is refused.
        if let Err(error) = client.delete::<Lease>(NAMESPACE, lease.name(), &options).await {
            tracing::debug!(%error, lease = lease.name(), "an expired lease is not deleted");
        }
    }
    true
}
