//! Events expire after a while. All events of the same minute share one lease; a loop expires the leases.

use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::status::StatusError;
use knarr_storage::LeaseId;
use tokio::sync::{Mutex, Notify};

use super::served::Served;
use super::store::status_of;
use crate::Registry;

/// How long new events are added to the same lease.
const SHARED_FOR: Duration = Duration::from_secs(60);
/// How long to wait before the next attempt after a failure of the store.
const RETRY: Duration = Duration::from_secs(10);

/// The current lease for new events.
#[derive(Default)]
pub struct EventLeases {
    current: Mutex<Option<(LeaseId, Duration)>>,
    granted: Notify,
}

impl EventLeases {
    /// Returns the lease for a new object of this resource, or `None` for resources other than events.
    pub async fn lease_for(
        &self,
        registry: &Registry,
        served: &Served,
    ) -> Result<Option<LeaseId>, StatusError> {
        if !served.stored.types.group.is_empty() || served.stored.types.plural != "events" {
            return Ok(None);
        }
        let now = registry.clock.monotonic();
        let mut current = self.current.lock().await;
        if let Some((lease, since)) = *current
            && now.saturating_sub(since) < SHARED_FOR
        {
            return Ok(Some(lease));
        }
        // The lease lasts longer than the TTL, so that the last event added also lives for the full TTL.
        let seconds = (registry.settings.event_ttl + SHARED_FOR).as_secs();
        let lease = registry.store.grant_lease(seconds).await.map_err(|e| status_of(&e))?;
        *current = Some((lease, now));
        self.granted.notify_one();
        Ok(Some(lease))
    }
}

/// Expires leases when their time is over, until the server stops.
pub async fn expire(registry: Arc<Registry>) {
    loop {
        let wait = match registry.store.expire_leases().await {
            Ok(wait) => wait,
            Err(knarr_storage::Error::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot expire leases");
                Some(RETRY)
            }
        };
        let sleep = async {
            match wait {
                Some(wait) => registry.clock.sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = registry.stop.cancelled() => return,
            () = sleep => {}
            () = registry.events.granted.notified() => {}
        }
    }
}
