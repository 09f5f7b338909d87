//! Endpoints: the older form of EndpointSlices, one object per Service, kept for clients that still read it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference, Pod, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::endpoint_slice::wake_services;
use crate::support::pod_state::is_ready;
use crate::support::refusals::namespace_is_terminating;
use crate::support::service_pods::{
    Port, by_ports, hostname_in, is_headless, is_terminating, node_of, pod_ip, publishes_not_ready,
    selector_of,
};
use crate::support::subsets::repack;
use crate::support::trigger_times::{TriggerTimes, annotate};
use crate::support::written::{CATCH_UP, Written};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "endpoints-controller", run: |cx| Box::pin(async move { run(cx).await }) };

const HEADLESS: &str = "service.kubernetes.io/headless";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// The most addresses in one Endpoints object; further ones are left out.
const MAX_ADDRESSES: usize = 1000;

struct Controller {
    cx: Arc<Context>,
    services: Lister<Service>,
    pods: Lister<Pod>,
    endpoints: Informer<Endpoints>,
    queue: Arc<WorkQueue<ObjectKey>>,
    written: Written,
    /// Services that were deleted. Their Endpoints are deleted too, even if another client created them.
    gone: Arc<Mutex<BTreeSet<ObjectKey>>>,
    triggers: TriggerTimes,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let services = cx.informers.informer::<Service>();
    let pods = cx.informers.informer::<Pod>();
    let endpoints = cx.informers.informer::<Endpoints>();
    let on_service = Arc::clone(&queue);
    let gone: Arc<Mutex<BTreeSet<ObjectKey>>> = Arc::default();
    let note = Arc::clone(&gone);
    services.add_handler(move |event| {
        let key = event.object().key();
        let mut gone = note.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Deleted(_) => gone.insert(key.clone()),
            _ => gone.remove(&key),
        };
        on_service.add(key);
    });
    let (on_pod, known) = (Arc::clone(&queue), services.lister());
    pods.add_handler(move |event| wake_services(&on_pod, &known, event));
    let on_endpoints = Arc::clone(&queue);
    endpoints.add_handler(move |event| {
        if !matches!(event, Event::Added(_)) {
            on_endpoints.add(event.object().key());
        }
    });
    if !(services.wait_synced().await && pods.wait_synced().await && endpoints.wait_synced().await) {
        return;
    }
    let controller = Arc::new(Controller {
        services: services.lister(),
        pods: pods.lister(),
        endpoints,
        queue: Arc::clone(&queue),
        written: Written::default(),
        gone,
        triggers: TriggerTimes::default(),
        cx: Arc::clone(&cx),
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, cx.workers(), cx.stop.clone(), reconcile).await;
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        if self.written.is_pending(&key, self.endpoints.observed_version()) {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let existing = self.endpoints.lister().get_key(&key);
        let Some(service) = self.services.get_key(&key) else {
            self.written.forget(&key);
            self.triggers.forget(&key);
            let is_gone = self.gone().contains(&key);
            self.remove(existing.as_deref(), is_gone).await?;
            self.gone().remove(&key);
            return Ok(());
        };
        let Some(selector) = selector_of(&service) else { return Ok(()) };
        let pods = self.pods.select(service.namespace(), &selector);
        let mut wanted = endpoints_of(&service, &pods, existing.as_deref());
        let trigger = self.triggers.observe(&service, &pods);
        if existing.as_deref() == Some(&wanted) {
            return Ok(());
        }
        annotate(&mut wanted.metadata, trigger);
        let is_new = existing.is_none();
        let result = match existing {
            Some(_) => self.cx.client.update(&wanted).await,
            None => self.cx.client.create(&wanted).await,
        };
        match result {
            Ok(written) => {
                self.written.note(&key, &written.metadata);
                Ok(())
            }
            Err(e) if namespace_is_terminating(&e) => Ok(()),
            Err(e) => {
                let (reason, text) = match is_new {
                    true => (
                        "FailedToCreateEndpoint",
                        format!("Failed to create endpoint for service {key}: {e}"),
                    ),
                    false => ("FailedToUpdateEndpoint", format!("Failed to update endpoint {key}: {e}")),
                };
                self.cx.recorder.event(&wanted, EventType::Warning, reason, text);
                Err(e)
            }
        }
    }

    fn gone(&self) -> MutexGuard<'_, BTreeSet<ObjectKey>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a missing Service: deletes its Endpoints if this controller made them or if the Service was just
    /// deleted.
    async fn remove(&self, existing: Option<&Endpoints>, is_gone: bool) -> Result<()> {
        let ours = |e: &&Endpoints| {
            is_gone || e.metadata.labels.as_ref().is_some_and(|l| l.contains_key(MANAGED_BY))
        };
        let Some(endpoints) = existing.filter(ours) else { return Ok(()) };
        let options = DeleteOptions::default();
        match self.cx.client.delete::<Endpoints>(endpoints.namespace(), endpoints.name(), &options).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}

/// Returns the Endpoints that a Service should have, based on the existing object.
fn endpoints_of(service: &Service, pods: &[Arc<Pod>], existing: Option<&Endpoints>) -> Endpoints {
    let not_ready_too = publishes_not_ready(service);
    let mut left = MAX_ADDRESSES;
    let mut truncated = false;
    let mut subsets = Vec::new();
    // A pod on which no port of the Service resolves is not an endpoint, unless the Service is headless and has no
    // ports.
    let has_no_ports = service.spec.as_ref().is_none_or(|s| s.ports.as_ref().is_none_or(Vec::is_empty));
    let mut groups = by_ports(service, pods);
    groups.retain(|ports, _| !ports.is_empty() || (has_no_ports && is_headless(service)));
    let counts = |pod: &Pod| not_ready_too || !is_terminating(pod);
    let is_up = |pod: &Pod| not_ready_too || is_ready(pod);
    // Ready pods take precedence when there are more pods than `MAX_ADDRESSES`.
    let all = || groups.values().flatten().filter(|pod| counts(pod));
    let mut room_for_unready = MAX_ADDRESSES.saturating_sub(all().filter(|pod| is_up(pod)).count());
    for (ports, pods) in groups {
        let (mut ready, mut not_ready) = (Vec::new(), Vec::new());
        for pod in pods.into_iter().filter(|pod| counts(pod)) {
            let (room, side) = match is_up(pod) {
                true => (&mut left, &mut ready),
                false => (&mut room_for_unready, &mut not_ready),
            };
            if *room == 0 {
                truncated = true;
                continue;
            }
            *room -= 1;
            side.push(address(service, pod));
        }
        subsets.extend(subset(ports, ready, not_ready));
    }
    let mut metadata = existing.map(|e| e.metadata.clone()).unwrap_or_else(|| ObjectMeta {
        name: service.metadata.name.clone(),
        namespace: service.metadata.namespace.clone(),
        ..ObjectMeta::default()
    });
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.insert(MANAGED_BY.to_owned(), "endpoint-controller".to_owned());
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    } else {
        labels.remove(HEADLESS);
    }
    metadata.labels = Some(labels);
    if truncated {
        metadata.annotations.get_or_insert_default().insert(OVER_CAPACITY.to_owned(), "truncated".to_owned());
    } else if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(OVER_CAPACITY);
    }
    metadata.annotations = metadata.annotations.filter(|a| !a.is_empty());
    let subsets = repack(&subsets);
    Endpoints { metadata, subsets: (!subsets.is_empty()).then_some(subsets) }
}

fn subset(
    ports: Vec<Port>,
    ready: Vec<EndpointAddress>,
    not_ready: Vec<EndpointAddress>,
) -> Option<EndpointSubset> {
    if ready.is_empty() && not_ready.is_empty() {
        return None;
    }
    let port = |p: Port| EndpointPort {
        name: Some(p.name).filter(|n| !n.is_empty()),
        port: p.number,
        protocol: Some(p.protocol),
        app_protocol: p.app_protocol,
    };
    let some = |list: Vec<EndpointAddress>| (!list.is_empty()).then_some(list);
    Some(EndpointSubset {
        addresses: some(ready),
        not_ready_addresses: some(not_ready),
        ports: (!ports.is_empty()).then(|| ports.into_iter().map(port).collect()),
    })
}

fn address(service: &Service, pod: &Pod) -> EndpointAddress {
    EndpointAddress {
        ip: pod_ip(pod).unwrap_or("").to_owned(),
        hostname: hostname_in(pod, service).map(str::to_owned),
        node_name: node_of(pod).map(str::to_owned),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodCondition, PodSpec, PodStatus, ServicePort, ServiceSpec};
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    #[test]
    fn ready_and_other_addresses_are_kept_apart_and_sorted() {
        let spec = ServiceSpec {
            ports: Some(vec![ServicePort { name: Some("http".into()), port: 80, ..ServicePort::default() }]),
            ..ServiceSpec::default()
        };
        let service = Service { spec: Some(spec), ..Service::default() };
        let pod = |ip: &str, ready: bool| {
            let condition = PodCondition {
                type_: "Ready".into(),
                status: if ready { "True" } else { "False" }.into(),
                ..PodCondition::default()
            };
            let status = PodStatus {
                pod_ip: Some(ip.into()),
                conditions: Some(vec![condition]),
                ..PodStatus::default()
            };
            let spec = PodSpec { node_name: Some("n".into()), ..PodSpec::default() };
            Arc::new(Pod { spec: Some(spec), status: Some(status), ..Pod::default() })
        };
        let pods = [pod("10.0.0.10", true), pod("10.0.0.9", true), pod("10.0.0.1", false)];
        let endpoints = endpoints_of(&service, &pods, None);
        let [subset] = endpoints.subsets.as_deref().unwrap() else { panic!("one subset") };
        let ips = |list: &Option<Vec<EndpointAddress>>| -> Vec<String> {
            list.iter().flatten().map(|a| a.ip.clone()).collect()
        };
        assert_eq!(ips(&subset.addresses), ["10.0.0.10", "10.0.0.9"]);
        assert_eq!(ips(&subset.not_ready_addresses), ["10.0.0.1"]);
        assert_eq!(endpoints_of(&service, &pods, Some(&endpoints)), endpoints);

        let many: Vec<_> = (0..1200_u32)
            .map(|n| pod(&std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string(), n >= 300))
            .collect();
        let truncated = endpoints_of(&service, &many, None);
        let [subset] = truncated.subsets.as_deref().unwrap() else { panic!("one subset") };
        let counts = (ips(&subset.addresses).len(), ips(&subset.not_ready_addresses).len());
        assert_eq!(counts, (900, 100), "ready pods are kept");

        let mut by_name = service.clone();
        let port = &mut by_name.spec.as_mut().unwrap().ports.as_mut().unwrap()[0];
        port.target_port = Some(IntOrString::String("http".into()));
        assert_eq!(endpoints_of(&by_name, &pods, None).subsets, None, "no pod has a port of that name");
    }
}
