//! Garbage collector: deletes objects that have lost all their owners, and deletes owners and dependents in the order
//! that the propagation policy requires.
//!
//! It watches every resource whose objects can be deleted, keeps a graph of owners and dependents, and verifies with
//! the API server before it acts.

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

/// How long the first lists may take before collection starts without them.
const FIRST_SYNC: Duration = Duration::from_secs(30);
/// How often discovery is repeated for changes without events, such as those of an aggregated API.
const DISCOVER_EVERY: Duration = Duration::from_secs(300);
/// Changes within this time cause a single discovery.
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

/// Repeats discovery until it succeeds, then waits for the first lists, for a limited time.
async fn start(cx: &Context, collector: &Collector, monitors: &mut Monitors) {
    while !discover(cx, collector, monitors).await {
        cx.clock.sleep(DISCOVER_RETRY).await;
    }
    tokio::select! {
        biased;
        () = monitors.wait_synced() => {}
        () = cx.clock.sleep(FIRST_SYNC) => {
            tracing::warn!("some resources could not be listed; garbage collection starts without them");
        }
    }
}

/// Repeats discovery and adapts the monitors to the served resources.
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

/// Runs discovery and adapts the monitors; returns whether it succeeded.
async fn discover(cx: &Context, collector: &Collector, monitors: &mut Monitors) -> bool {
    let found = match Discovery::fetch(&cx.client).await {
        Ok(found) => Arc::new(found),
        Err(error) => {
            tracing::warn!(%error, "the resources to watch could not be discovered");
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
