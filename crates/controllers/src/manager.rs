//! Starts the controllers of a list, each with its own identity and work queue.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use knarr_apimachinery::clock::Clock;
use knarr_client::events::EventRecorder;
use knarr_client::{Client, Informers};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The controllers of this build, in alphabetical order.
pub const ALL: &[Descriptor] = &[crate::deployment::DESCRIPTOR, crate::replica_set::DESCRIPTOR];

/// How a controller is started.
pub struct Descriptor {
    /// Upstream's name, `deployment-controller`: also its service account and the source of its events.
    pub name: &'static str,
    /// Sets up handlers and runs the workers until the context's stop.
    pub run: fn(Arc<Context>) -> Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// What every controller gets.
pub struct Context {
    /// Shared by all controllers, under the manager's own identity.
    pub informers: Arc<Informers>,
    /// The controller's own access, for writes.
    pub client: Client,
    pub recorder: EventRecorder,
    pub clock: Arc<dyn Clock>,
    pub stop: CancellationToken,
}

/// Makes the access of one controller from its name: in upstream's clusters a service account in kube-system.
pub type ClientOf = Arc<dyn Fn(&str) -> Client + Send + Sync>;

/// Runs all controllers until `stop`. `shared` is the access of the informers that all of them share.
pub async fn run(client_of: ClientOf, shared: Client, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let tracker = TaskTracker::new();
    let informers = Arc::new(Informers::new(shared, stop.clone()));
    for descriptor in ALL {
        let client = client_of(descriptor.name);
        let recorder = EventRecorder::new(client.clone(), descriptor.name, "", stop.clone());
        let context = Context {
            informers: Arc::clone(&informers),
            client,
            recorder,
            clock: Arc::clone(&clock),
            stop: stop.clone(),
        };
        tracker.spawn((descriptor.run)(Arc::new(context)));
    }
    tracker.close();
    tracker.wait().await;
}
