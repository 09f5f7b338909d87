//! EndpointSlice: the addresses of each Service with a selector, in slices of limited size.

mod hinted;
mod packing;
mod plan;
mod sizes;
mod topology;
#[cfg(test)]
mod topology_tests;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Lister, Result};

use self::hinted::{Hinted, nodes_differ};
use self::sizes::AllSizes;
use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};
use crate::support::nodes::{index_pods, pods_on};
use crate::support::owners::still_owns;
use crate::support::refusals::namespace_is_terminating;
use crate::support::service_pods::{endpoints_differ, selector_of};
use crate::support::trigger_times::{TriggerTimes, annotate};
use crate::support::written::{CATCH_UP, Written};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "endpointslice-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The index of slices by their Service.
const BY_SERVICE: &str = "endpointslice-service";

struct Controller {
    cx: Arc<Context>,
    services: Lister<Service>,
    pods: Lister<Pod>,
    nodes: Lister<Node>,
    slices: Informer<EndpointSlice>,
    queue: Arc<WorkQueue<ObjectKey>>,
    written: Written,
    triggers: TriggerTimes,
    hinted: Hinted,
    sizes: AllSizes,
}

/// Returns the Service of a slice that this controller manages.
fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let labels = slice.metadata.labels.as_ref()?;
    let ours = labels.get(plan::MANAGED_BY).is_some_and(|v| v == plan::MANAGER);
    let name = labels.get(plan::SERVICE_NAME).filter(|_| ours)?;
    Some(ObjectKey::new(slice.namespace(), name))
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let services = cx.informers.informer::<Service>();
    let pods = cx.informers.informer::<Pod>();
    index_pods(&pods);
    let nodes = cx.informers.informer::<Node>();
    let slices = cx.informers.informer::<EndpointSlice>();
    slices.add_index(BY_SERVICE, |slice| service_of(slice).map(|k| k.to_string()).into_iter().collect());

    let on_service = Arc::clone(&queue);
    services.add_handler(move |event| on_service.add(event.object().key()));
    let (on_pod, known) = (Arc::clone(&queue), services.lister());
    pods.add_handler(move |event| wake_services(&on_pod, &known, event));
    let on_slice = Arc::clone(&queue);
    slices.add_handler(move |event| {
        if let Some(key) = service_of(event.object()) {
            on_slice.add(key);
        }
    });
    let zones_changed = WorkQueue::new(Arc::clone(&cx.clock));
    let (on_node, affected) = (Arc::clone(&zones_changed), Arc::clone(&queue));
    let (known, everywhere) = (services.lister(), pods.lister());
    nodes.add_handler(move |event| {
        if let Event::Added(node) = event {
            // The node's pods were left out while the node was unknown.
            pods_on(&everywhere, node.name())
                .iter()
                .for_each(|pod| wake_covering(&affected, &known, pod, None));
        }
        if !matches!(event, Event::Updated { old, new } if !nodes_differ(old, new)) {
            on_node.add(());
        }
    });
    if !(services.wait_synced().await
        && pods.wait_synced().await
        && nodes.wait_synced().await
        && slices.wait_synced().await)
    {
        return;
    }

    let controller = Arc::new(Controller {
        services: services.lister(),
        pods: pods.lister(),
        nodes: nodes.lister(),
        slices,
        queue: Arc::clone(&queue),
        written: Written::default(),
        triggers: TriggerTimes::default(),
        hinted: Hinted::default(),
        sizes: AllSizes::default(),
        cx: Arc::clone(&cx),
    });
    controller.look_at_zones();
    let at_zones = Arc::clone(&controller);
    let look_at_zones = move |()| {
        at_zones.look_at_zones();
        std::future::ready(Ok::<_, knarr_client::Error>(()))
    };
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    tokio::join!(
        queue.run(DESCRIPTOR.name, cx.workers(), cx.stop.clone(), reconcile),
        zones_changed.run("endpoint_slice_topology", 1, cx.stop.clone(), look_at_zones),
    );
}

/// Queues the Services whose selectors match the pod before or after its change.
pub fn wake_services(queue: &WorkQueue<ObjectKey>, services: &Lister<Service>, event: &Event<Pod>) {
    let (old, new) = match event {
        Event::Updated { old, new } if !endpoints_differ(old, new) => return,
        Event::Updated { old, new } => (Some(old), new),
        Event::Added(pod) | Event::Deleted(pod) => (None, pod),
    };
    wake_covering(queue, services, new, old.map(|old| &**old));
}

fn wake_covering(queue: &WorkQueue<ObjectKey>, services: &Lister<Service>, pod: &Pod, before: Option<&Pod>) {
    for service in services.list_namespace(pod.namespace()) {
        let Some(selector) = selector_of(&service) else { continue };
        let covers = |p: &Pod| selector.matches_optional(p.metadata.labels.as_ref());
        if covers(pod) || before.is_some_and(covers) {
            queue.add(service.key());
        }
    }
}

impl Controller {
    fn look_at_zones(&self) {
        let nodes = self.nodes.list();
        let affected = self.hinted.nodes_changed(nodes.iter().map(|node| &**node));
        affected.into_iter().for_each(|service| self.queue.add(service));
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        if self.written.is_pending(&key, self.slices.observed_version()) {
            metrics::add(Metric::EndpointSliceSyncs, &["stale"], 1.0);
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let result = self.sync(key).await;
        let label = if result.is_ok() { "success" } else { "error" };
        metrics::add(Metric::EndpointSliceSyncs, &[label], 1.0);
        result
    }

    async fn sync(&self, key: ObjectKey) -> Result<()> {
        let Some(service) = self.services.get_key(&key) else {
            self.written.forget(&key);
            self.triggers.forget(&key);
            self.hinted.forget(&key);
            self.sizes.forget(&key);
            return Ok(());
        };
        let Some(selector) = selector_of(&service) else { return Ok(()) };
        let pods = self.pods.select(service.namespace(), &selector);
        let existing: Vec<EndpointSlice> = self
            .slices
            .lister()
            .by_index(BY_SERVICE, &key.to_string())
            .iter()
            .filter(|s| s.metadata.deletion_timestamp.is_none())
            .map(|s| EndpointSlice::clone(s))
            .collect();
        let most = self.cx.settings().max_endpoints_per_slice;
        let mut plan = plan::plan(&service, &pods, existing, most, |node| self.nodes.get("", node));
        let event = self.hinted.apply(&service, &mut plan);
        self.sizes.observe(&service, &plan, most);
        count(&service, &plan);
        if service.metadata.deletion_timestamp.is_some() {
            // The Service is being deleted: its existing slices are still updated as long as it exists.
            plan.create.clear();
        }
        if !plan.create.is_empty() {
            still_owns(&self.cx.client, &*service).await?;
        }
        let trigger = self.triggers.observe(&service, &pods);
        let changed = plan.create.iter_mut().chain(&mut plan.update);
        changed.for_each(|slice| annotate(&mut slice.metadata, trigger));
        let result = self.carry_out(&key, plan).await;
        if let Err(error) = &result {
            let text = format!("Error updating Endpoint Slices for Service {key}: {error}");
            self.cx.recorder.event(&*service, EventType::Warning, "FailedToUpdateEndpointSlices", text);
        }
        if let Some((kind, reason, text)) = event {
            self.cx.recorder.event(&*service, kind, reason, text);
        }
        result
    }

    async fn carry_out(&self, key: &ObjectKey, plan: plan::Plan) -> Result<()> {
        let client = &self.cx.client;
        for slice in &plan.create {
            match client.create(slice).await {
                Ok(created) => {
                    self.written.note(key, &created.metadata);
                    count_change("create");
                }
                Err(e) if namespace_is_terminating(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        for slice in &plan.update {
            let updated = client.update(slice).await?;
            self.written.note(key, &updated.metadata);
            count_change("update");
        }
        for slice in &plan.delete {
            let preconditions = Preconditions { uid: slice.metadata.uid.clone(), resource_version: None };
            let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
            match client.delete::<EndpointSlice>(slice.namespace(), slice.name(), &options).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => count_change("delete"),
            }
        }
        Ok(())
    }
}

fn count(service: &Service, plan: &plan::Plan) {
    metrics::record(Metric::EndpointsAdded, &[], plan.added as f64);
    metrics::record(Metric::EndpointsRemoved, &[], plan.removed as f64);
    let topology = if topology::is_asked_for(service) { "Auto" } else { "Disabled" };
    let labels = [topology, plan::traffic_distribution(service).unwrap_or_default()];
    let changed = plan.create.len() + plan.update.len() + plan.delete.len();
    metrics::record(Metric::EndpointSlicesChanged, &labels, changed as f64);
}

fn count_change(operation: &str) {
    metrics::add(Metric::EndpointSliceChanges, &[operation], 1.0);
}
