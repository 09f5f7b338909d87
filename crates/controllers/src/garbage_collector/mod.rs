//! Garbage collector: deletes what has lost all its owners, and sees to it that owners and dependents go in the order
//! that was asked for.
//!
//! It watches every resource that can be deleted, keeps a graph of who owns whom, and checks with the API server
//! before it acts.

mod absent;
mod api;
mod collector;
mod decide;
mod graph;
mod identity;
mod monitors;

use std::sync::Arc;
use std::time::Duration;

use crate::context::{Context, Descriptor};
use crate::support::discovery::Discovery;
use collector::{Collector, Work};
use monitors::Monitors;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "garbage-collector-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// How long the first lists may take before collecting starts without them.
const FIRST_SYNC: Duration = Duration::from_secs(30);
/// Discovery is repeated this often for changes that nothing announces, such as an aggregated API's.
const DISCOVER_EVERY: Duration = Duration::from_secs(300);
/// Changes that come within this time of each other cause one discovery.
const DISCOVER_DELAY: Duration = Duration::from_secs(1);
const DISCOVER_RETRY: Duration = Duration::from_secs(5);

async fn run(cx: Arc<Context>) {
    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let collector = Arc::new(Collector::new(Arc::clone(&cx)));
    let mut monitors = Monitors::new(Arc::clone(&cx), Arc::clone(&collector));
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        () = start(&cx, &collector, &mut monitors) => {}
    }
    let (queue, following) = (Arc::clone(&collector.queue), Arc::clone(&collector));
    let following = async {
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = follow(&cx, &following, &mut monitors) => {}
        }
    };
    let work = move |work: Work| {
        let collector = Arc::clone(&collector);
        async move { collector.work(work).await }
    };
    let working = queue.run(DESCRIPTOR.name, workers, stop.clone(), work);
    tokio::join!(following, working);
}

/// Asks what is served until the first answer, then waits for the first lists, but not for ever.
async fn start(cx: &Context, collector: &Collector, monitors: &mut Monitors) {
    while !discover(cx, collector, monitors).await {
        cx.clock.sleep(DISCOVER_RETRY).await;
    }
    tokio::select! {
        biased;
        () = monitors.wait_synced() => {}
        () = cx.clock.sleep(FIRST_SYNC) => {
            tracing::warn!("not every resource could be listed; collecting garbage without the others");
        }
    }
}

/// Keeps the monitors as what is served.
async fn follow(cx: &Context, collector: &Collector, monitors: &mut Monitors) {
    loop {
        tokio::select! {
            biased;
            () = collector.refresh.notified() => cx.clock.sleep(DISCOVER_DELAY).await,
            () = cx.clock.sleep(DISCOVER_EVERY) => {}
        }
        discover(cx, collector, monitors).await;
    }
}

/// Whether discovery succeeded.
async fn discover(cx: &Context, collector: &Collector, monitors: &mut Monitors) -> bool {
    let found = match Discovery::fetch(&cx.client).await {
        Ok(found) => Arc::new(found),
        Err(error) => {
            tracing::warn!(%error, "cannot discover the resources to watch for garbage");
            return false;
        }
    };
    if let Some(failure) = found.failure() {
        tracing::debug!("{failure}");
    }
    collector.set_discovery(Arc::clone(&found));
    monitors.follow(&found);
    true
}

#[cfg(test)]
mod tests;
