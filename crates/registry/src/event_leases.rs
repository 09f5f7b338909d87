//! Events expire after a while. All events of the same minute share one lease; a loop expires the leases.

use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::status::StatusError;
use knarr_storage::{LeaseId, Store};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use super::served::Served;
use super::store_errors::status_of;

/// How long new events are added to the same lease.
const SHARED_FOR: Duration = Duration::from_secs(60);
/// How long to wait before the next attempt after a failure of the store.
const RETRY: Duration = Duration::from_secs(10);

/// Grants leases to new events.
pub struct EventLeases {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    /// How long events are kept.
    ttl: Duration,
    current: Mutex<Option<(LeaseId, Duration)>>,
    granted: Notify,
}

impl EventLeases {
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, ttl: Duration) -> Self {
        Self { store, clock, ttl, current: Mutex::default(), granted: Notify::new() }
    }

    /// Returns the lease for a new object of this resource, or `None` for resources other than events.
    pub async fn lease_for(&self, served: &Served) -> Result<Option<LeaseId>, StatusError> {
        if !served.stored.types.group.is_empty() || served.stored.types.plural != "events" {
            return Ok(None);
        }
        let now = self.clock.monotonic();
        let mut current = self.current.lock().await;
        if let Some((lease, since)) = *current
            && now.saturating_sub(since) < SHARED_FOR
        {
            return Ok(Some(lease));
        }
        // The lease lasts longer than the TTL, so that the last event added also lives for the full TTL.
        let seconds = (self.ttl + SHARED_FOR).as_secs();
        let lease = self.store.grant_lease(seconds).await.map_err(|e| status_of(&e))?;
        *current = Some((lease, now));
        self.granted.notify_one();
        Ok(Some(lease))
    }

    /// Expires leases when their time is over, until `stop`.
    pub async fn expire(&self, stop: CancellationToken) {
        loop {
            let wait = match self.store.expire_leases().await {
                Ok(wait) => wait,
                Err(knarr_storage::Error::Closed) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot expire leases");
                    Some(RETRY)
                }
            };
            let sleep = async {
                match wait {
                    Some(wait) => self.clock.sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep => {}
                () = self.granted.notified() => {}
            }
        }
    }
}
