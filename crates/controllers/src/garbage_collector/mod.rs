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

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::kind::ResourceType;
use knarr_client::ListOptions;
use knarr_client::reflector::Reflector;

use crate::discovery::{Discovery, Served};
use crate::manager::{Context, Descriptor};
use collector::{Collector, Names, Work};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "garbage-collector-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const WORKERS: usize = 20;
/// How long the first lists may take before collecting starts without them.
const FIRST_SYNC: Duration = Duration::from_secs(30);
/// Discovery is repeated this often for changes that nothing announces, such as an aggregated API's.
const DISCOVER_EVERY: Duration = Duration::from_secs(300);
/// Changes that come within this time of each other cause one discovery.
const DISCOVER_DELAY: Duration = Duration::from_secs(1);
const DISCOVER_RETRY: Duration = Duration::from_secs(5);

async fn run(cx: Arc<Context>) {
    let stop = cx.stop.clone();
    let collector = Arc::new(Collector::new(Arc::clone(&cx), DESCRIPTOR.name));
    let mut monitors = Monitors { cx, collector: Arc::clone(&collector), known: BTreeSet::new() };
    tokio::select! {
        () = stop.cancelled() => return,
        () = monitors.start() => {}
    }
    let following = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = monitors.follow() => {}
        }
    };
    let queue = Arc::clone(&collector.queue);
    let work = move |work: Work| {
        let collector = Arc::clone(&collector);
        async move { collector.work(work).await }
    };
    let working = queue.run(DESCRIPTOR.name, WORKERS, stop.clone(), work);
    tokio::join!(following, working);
}

/// Whether objects of the resource stand in the graph. Events are many, owned by none, and expire by themselves.
fn is_monitored(served: &Served) -> bool {
    let is_event =
        served.resource.plural == "events" && matches!(served.resource.group, "" | "events.k8s.io");
    !is_event && ["delete", "list", "watch"].iter().all(|verb| served.supports(verb))
}

/// Whether changes of the resource's objects change what is served.
fn announces_resources(resource: &ResourceType) -> bool {
    matches!(
        (resource.group, resource.plural),
        ("apiextensions.k8s.io", "customresourcedefinitions") | ("apiregistration.k8s.io", "apiservices")
    )
}

struct Monitors {
    cx: Arc<Context>,
    collector: Arc<Collector>,
    known: BTreeSet<ResourceType>,
}

impl Monitors {
    /// Discovers until it succeeds once, then waits for the first lists, but not for ever.
    async fn start(&mut self) {
        while !self.discover().await {
            self.cx.clock.sleep(DISCOVER_RETRY).await;
        }
        let all = self.known.iter().map(|resource| self.reflector(*resource)).collect::<Vec<_>>();
        let synced = async {
            for reflector in &all {
                reflector.wait_synced().await;
            }
        };
        tokio::select! {
            () = synced => {}
            () = self.cx.clock.sleep(FIRST_SYNC) => {
                tracing::warn!("not every resource could be listed; collecting garbage without the others");
            }
        }
    }

    async fn follow(&mut self) {
        loop {
            tokio::select! {
                () = self.collector.refresh.notified() => self.cx.clock.sleep(DISCOVER_DELAY).await,
                () = self.cx.clock.sleep(DISCOVER_EVERY) => {}
            }
            self.discover().await;
        }
    }

    fn reflector(&self, resource: ResourceType) -> Arc<Reflector> {
        self.cx.informers.untyped(resource, ListOptions::default())
    }

    /// Monitors what is served and not monitored yet; whether discovery succeeded.
    async fn discover(&mut self) -> bool {
        let found = match Discovery::fetch(&self.cx.client).await {
            Ok(found) => Arc::new(found),
            Err(error) => {
                tracing::warn!(%error, "cannot discover the resources to watch for garbage");
                return false;
            }
        };
        if let Some(failure) = found.failure() {
            tracing::debug!("{failure}");
        }
        self.collector.set_discovery(Arc::clone(&found));
        for served in found.preferred().filter(|s| is_monitored(s)) {
            if self.known.insert(served.resource) {
                self.monitor(served.resource);
            }
        }
        true
    }

    fn monitor(&self, resource: ResourceType) {
        let names = Names { api_version: resource.api_version().into(), kind: resource.kind.into() };
        let collector = Arc::clone(&self.collector);
        let announces = announces_resources(&resource);
        self.reflector(resource).add_handler(Arc::new(move |change| {
            collector.observe(&names, change);
            if announces {
                collector.refresh.notify_one();
            }
        }));
    }
}

#[cfg(test)]
mod tests;
