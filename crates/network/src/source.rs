//! Where services and endpoint slices come from: the informers' copies, and a signal that they changed.

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

/// A way to read them, with a signal for every change. Each consumer has its own: a signal wakes one waiter.
#[derive(Clone)]
pub struct ServiceSource {
    changed: Arc<Notify>,
    read: Arc<dyn Fn() -> Snapshot + Send + Sync>,
}

/// Changes come in bursts (a Deployment that scales): they are gathered for this long after the first.
const GATHER: Duration = Duration::from_millis(5);

impl ServiceSource {
    /// A source that reads with `read` whenever `changed` was notified.
    pub fn new(changed: Arc<Notify>, read: impl Fn() -> Snapshot + Send + Sync + 'static) -> Self {
        Self { changed, read: Arc::new(read) }
    }

    /// The informers' copies, once they have their first list; `None` if that is not to be waited for any more.
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
        // The first reading must happen even in a cluster without services.
        changed.notify_one();
        let (services, slices) = (services.lister(), slices.lister());
        Some(Self::new(changed, move || Snapshot { services: services.list(), slices: slices.list() }))
    }

    pub fn read(&self) -> Snapshot {
        (self.read)()
    }

    /// Waits for a change and gathers those that follow closely; false when it is time to stop.
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
