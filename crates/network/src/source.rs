//! Access to services and endpoint slices: the informers' copies, and a notification when they change.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_client::Informers;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// All services and endpoint slices at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub services: Vec<Arc<Service>>,
    pub slices: Vec<Arc<EndpointSlice>>,
}

/// Reads the services and slices, and notifies of every change. Each consumer has its own, because a
/// notification wakes one waiter.
#[derive(Clone)]
pub struct ServiceSource {
    changed: Arc<Notify>,
    read: Arc<dyn Fn() -> Snapshot + Send + Sync>,
}

/// Changes arrive in bursts, for example when a Deployment scales: they are collected for this long after the
/// first.
const GATHER: Duration = Duration::from_millis(5);

impl ServiceSource {
    /// Returns a source that reads with `read` and waits for notifications of `changed`.
    pub fn new(changed: Arc<Notify>, read: impl Fn() -> Snapshot + Send + Sync + 'static) -> Self {
        Self { changed, read: Arc::new(read) }
    }

    /// Returns a source of the informers' copies, after they have their first list; `None` if the informers
    /// stop before.
    pub async fn from_informers(informers: &Informers) -> Option<Self> {
        let services = informers.informer::<Service>();
        let slices = informers.informer::<EndpointSlice>();
        if !(services.wait_synced().await && slices.wait_synced().await) {
            return None;
        }
        let changed = Arc::new(Notify::new());
        let notify = changed.clone();
        services.add_handler(move |_| notify.notify_one());
        let notify = changed.clone();
        slices.add_handler(move |_| notify.notify_one());
        // The first reading must also happen in a cluster without services.
        changed.notify_one();
        let (services, slices) = (services.lister(), slices.lister());
        Some(Self::new(changed, move || Snapshot { services: services.list(), slices: slices.list() }))
    }

    /// Returns the current services and slices.
    pub fn read(&self) -> Snapshot {
        (self.read)()
    }

    /// Waits for a change and collects those that follow closely; returns false when `stop` is cancelled.
    pub async fn changed(&self, stop: &CancellationToken) -> bool {
        tokio::select! {
            () = stop.cancelled() => return false,
            () = self.changed.notified() => {}
        }
        tokio::select! {
            () = stop.cancelled() => false,
            () = tokio::time::sleep(GATHER) => true,
        }
    }
}
