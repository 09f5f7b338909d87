//! EndpointSlice: the addresses behind each Service with a selector, in slices of at most a hundred.

mod plan;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Lister, Result};

use crate::manager::{Context, Descriptor, namespace_is_terminating};
use crate::service_pods::{endpoints_differ, selector_of};
use crate::trigger_times::{TriggerTimes, annotate};
use crate::written::{CATCH_UP, Written};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "endpointslice-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The index of slices by the Service they belong to.
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
}

/// The Service that a slice of ours belongs to.
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
    services.wait_synced().await;
    pods.wait_synced().await;
    nodes.wait_synced().await;
    slices.wait_synced().await;

    let controller = Arc::new(Controller {
        services: services.lister(),
        pods: pods.lister(),
        nodes: nodes.lister(),
        slices,
        queue: Arc::clone(&queue),
        written: Written::default(),
        triggers: TriggerTimes::default(),
        cx: Arc::clone(&cx),
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, cx.workers(), cx.stop.clone(), reconcile).await;
}

/// Wakes the Services whose selectors cover the pod, before or after its change.
pub fn wake_services(queue: &WorkQueue<ObjectKey>, services: &Lister<Service>, event: &Event<Pod>) {
    let (old, new) = match event {
        Event::Updated { old, new } if !endpoints_differ(old, new) => return,
        Event::Updated { old, new } => (Some(old), new),
        Event::Added(pod) | Event::Deleted(pod) => (None, pod),
    };
    for service in services.list_namespace(new.namespace()) {
        let Some(selector) = selector_of(&service) else { continue };
        let covers = |p: &Pod| selector.matches_optional(p.metadata.labels.as_ref());
        if covers(new) || old.is_some_and(|o| covers(o)) {
            queue.add(service.key());
        }
    }
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        let Some(service) = self.services.get_key(&key) else {
            self.written.forget(&key);
            self.triggers.forget(&key);
            return Ok(());
        };
        let Some(selector) = selector_of(&service) else { return Ok(()) };
        if self.written.is_pending(&key, self.slices.observed_version()) {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let pods = self.pods.select(service.namespace(), &selector);
        let existing: Vec<EndpointSlice> = self
            .slices
            .lister()
            .by_index(BY_SERVICE, &key.to_string())
            .iter()
            .filter(|s| s.metadata.deletion_timestamp.is_none())
            .map(|s| EndpointSlice::clone(s))
            .collect();
        let zone_of = |node: &str| {
            let node = self.nodes.get("", node)?;
            node.metadata.labels.as_ref()?.get("topology.kubernetes.io/zone").cloned()
        };
        let most = self.cx.settings().max_endpoints_per_slice;
        let mut plan = plan::plan(&service, &pods, existing, most, zone_of);
        if service.metadata.deletion_timestamp.is_some() {
            // What is there is kept true as long as the Service lasts.
            plan.create.clear();
        }
        let trigger = self.triggers.observe(&service, &pods);
        let changed = plan.create.iter_mut().chain(&mut plan.update);
        changed.for_each(|slice| annotate(&mut slice.metadata, trigger));
        let result = self.carry_out(&key, plan).await;
        if let Err(error) = &result {
            let text = format!("Error updating Endpoint Slices for Service {key}: {error}");
            self.cx.recorder.event(&*service, EventType::Warning, "FailedToUpdateEndpointSlices", text);
        }
        result
    }

    async fn carry_out(&self, key: &ObjectKey, plan: plan::Plan) -> Result<()> {
        let client = &self.cx.client;
        for slice in &plan.create {
            match client.create(slice).await {
                Ok(created) => self.written.note(key, &created.metadata),
                Err(e) if namespace_is_terminating(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        for slice in &plan.update {
            let updated = client.update(slice).await?;
            self.written.note(key, &updated.metadata);
        }
        for slice in &plan.delete {
            let preconditions = Preconditions { uid: slice.metadata.uid.clone(), resource_version: None };
            let options = DeleteOptions { preconditions: Some(preconditions), ..DeleteOptions::default() };
            match client.delete::<EndpointSlice>(slice.namespace(), slice.name(), &options).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}
