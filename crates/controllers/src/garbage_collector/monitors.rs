//! One watch for each resource whose objects can own or be owned; watches start and end as resources are served or
//! not.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_api::kind::ResourceType;
use knarr_client::ListOptions;
use knarr_client::reflector::{self, Handler, Reflector};
use tokio_util::sync::CancellationToken;

use super::collector::{Collector, Names};
use crate::context::Context;
use crate::support::discovery::{Discovery, Served};

/// Returns whether objects of the resource are in the graph. Events are not: they are many, have no owners and
/// expire.
fn is_monitored(served: &Served) -> bool {
    let is_event =
        served.resource.plural == "events" && matches!(served.resource.group, "" | "events.k8s.io");
    !is_event && ["delete", "list", "watch"].iter().all(|verb| served.supports(verb))
}

/// Returns whether changes of the resource's objects change which resources are served.
fn announces_resources(resource: &ResourceType) -> bool {
    matches!(
        (resource.group, resource.plural),
        ("apiextensions.k8s.io", "customresourcedefinitions") | ("apiregistration.k8s.io", "apiservices")
    )
}

struct Monitor {
    reflector: Arc<Reflector>,
    /// Ends the watch; `None` for a watch that all controllers share.
    running: Option<CancellationToken>,
}

/// The watches of all monitored resources.
pub struct Monitors {
    cx: Arc<Context>,
    collector: Arc<Collector>,
    all: BTreeMap<ResourceType, Monitor>,
}

impl Monitors {
    pub fn new(cx: Arc<Context>, collector: Arc<Collector>) -> Self {
        Self { cx, collector, all: BTreeMap::new() }
    }

    /// Monitors exactly the served resources. Monitors of group versions that could not be read stay as they are.
    pub fn follow(&mut self, found: &Discovery) {
        let wanted: Vec<ResourceType> =
            found.preferred().filter(|s| is_monitored(s)).map(|s| s.resource).collect();
        for (resource, monitor) in &mut self.all {
            let gone = !wanted.contains(resource) && !found.is_unknown(resource);
            if gone && let Some(running) = &monitor.running {
                running.cancel();
            }
        }
        // A stopped watch with objects in its store is kept: when it restarts, it must report which of them are gone.
        self.all.retain(|_, m| !m.is_stopped() || !m.reflector.store().is_empty());
        for resource in wanted {
            match self.all.get_mut(&resource) {
                Some(monitor) if monitor.is_stopped() => monitor.start(&self.cx),
                Some(_) => {}
                None => {
                    let monitor = self.monitor(resource);
                    self.all.insert(resource, monitor);
                }
            }
        }
    }

    /// Waits for the first list of every monitor. The reflectors of monitors retry until stopped.
    pub async fn wait_synced(&self) {
        for monitor in self.all.values() {
            let _synced = monitor.reflector.wait_synced().await;
        }
    }

    fn monitor(&self, resource: ResourceType) -> Monitor {
        let handler = self.handler(&resource);
        // Built-in resources are always served, and other controllers watch them too.
        if knarr_api::resources::all().iter().any(|r| r.types == resource) {
            let reflector = self.cx.informers.untyped(resource, ListOptions::default());
            reflector.add_handler(&self.cx.stop, handler);
            return Monitor { reflector, running: None };
        }
        let mut monitor = Monitor { reflector: self.cx.informers.own(resource), running: None };
        monitor.reflector.add_handler(&self.cx.stop, handler);
        monitor.start(&self.cx);
        monitor
    }

    fn handler(&self, resource: &ResourceType) -> Handler {
        let names = Names { api_version: resource.api_version().into(), kind: resource.kind.into() };
        let collector = Arc::clone(&self.collector);
        let announces = announces_resources(resource);
        Arc::new(move |change| {
            collector.observe(&names, change);
            if announces {
                collector.refresh.notify_one();
            }
        })
    }
}

impl Monitor {
    /// Watches until `running` is cancelled.
    fn start(&mut self, cx: &Context) {
        let stop = cx.stop.child_token();
        self.running = Some(stop.clone());
        reflector::spawn(&self.reflector, cx.informers.supervisor(), "garbage-collector-monitors", stop);
    }

    fn is_stopped(&self) -> bool {
        self.running.as_ref().is_some_and(CancellationToken::is_cancelled)
    }
}
