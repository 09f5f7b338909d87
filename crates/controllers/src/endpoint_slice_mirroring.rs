//! EndpointSlice mirroring: copies Endpoints that users write by hand into EndpointSlices.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort as CorePort, EndpointSubset, Endpoints, Service,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Informer, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};
use crate::support::owners::{controller_reference, still_owns};
use crate::support::refusals::namespace_is_terminating;
use crate::support::subsets::repack;
use crate::support::trigger_times;
use crate::support::written::{CATCH_UP, Written};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "endpointslice-mirroring-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The index of mirrored slices by `namespace/service`.
const BY_SERVICE: &str = "mirroredService";

/// The content of a slice, apart from its name.
#[derive(Debug, Clone, PartialEq)]
struct Content {
    address_type: &'static str,
    ports: Vec<EndpointPort>,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Default, PartialEq)]
struct Plan {
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<Arc<EndpointSlice>>,
    left_out: LeftOut,
    added: usize,
    updated: usize,
    removed: usize,
}

/// How many addresses are not mirrored: all of them, and among them those that are not valid IP addresses.
#[derive(Debug, Default, PartialEq)]
struct LeftOut {
    all: usize,
    invalid: usize,
}

struct Controller {
    cx: Arc<Context>,
    endpoints: Lister<Endpoints>,
    services: Lister<Service>,
    slices: Informer<EndpointSlice>,
    queue: Arc<WorkQueue<ObjectKey>>,
    written: Written,
}

fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let labels = slice.metadata.labels.as_ref()?;
    let ours = labels.get(MANAGED_BY).is_some_and(|by| by == MANAGER);
    labels.get(SERVICE_NAME).filter(|_| ours).map(|name| ObjectKey::new(slice.namespace(), name))
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let endpoints = cx.informers.informer::<Endpoints>();
    let services = cx.informers.informer::<Service>();
    let slices = cx.informers.informer::<EndpointSlice>();
    slices.add_index(BY_SERVICE, |slice| service_of(slice).map(|k| k.to_string()).into_iter().collect());
    let on_endpoints = Arc::clone(&queue);
    endpoints.add_handler(move |event| on_endpoints.add(event.object().key()));
    let on_service = Arc::clone(&queue);
    services.add_handler(move |event| on_service.add(event.object().key()));
    let on_slice = Arc::clone(&queue);
    slices.add_handler(move |event| {
        if let Some(key) = service_of(event.object()) {
            on_slice.add(key);
        }
    });
    if !(endpoints.wait_synced().await && services.wait_synced().await && slices.wait_synced().await) {
        return;
    }
    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let controller = Arc::new(Controller {
        cx,
        endpoints: endpoints.lister(),
        services: services.lister(),
        slices,
        queue: Arc::clone(&queue),
        written: Written::default(),
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

/// Returns whether the Endpoints are to be mirrored. Those of a Service with a selector are not: they have slices
/// already.
fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let has = |map: &Option<BTreeMap<String, String>>, key: &str, value: Option<&str>| {
        map.as_ref().and_then(|m| m.get(key)).is_some_and(|v| value.is_none_or(|wanted| v == wanted))
    };
    let by_hand = service.is_some_and(|s| s.spec.as_ref().is_none_or(|s| s.selector.is_none()));
    by_hand
        && !has(&endpoints.metadata.labels, SKIP, Some("true"))
        && !has(&endpoints.metadata.annotations, LEADER, None)
}

fn port(port: &CorePort) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        app_protocol: port.app_protocol.clone(),
    }
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

/// Returns the content of the slices of one subset, one slice per address family, and counts the addresses left out.
fn contents(subset: &EndpointSubset, most: usize, left_out: &mut LeftOut) -> Vec<Content> {
    let mut ports: Vec<EndpointPort> = subset.ports.iter().flatten().map(port).collect();
    ports.sort_by(|a, b| (&a.name, a.port, &a.protocol).cmp(&(&b.name, b.port, &b.protocol)));
    let ready = subset.addresses.iter().flatten().map(|a| (a, true));
    let all = ready.chain(subset.not_ready_addresses.iter().flatten().map(|a| (a, false)));
    let mut families: BTreeMap<&'static str, Vec<Endpoint>> = BTreeMap::new();
    let mut room = most;
    for (address, ready) in all {
        if room == 0 {
            left_out.all += 1;
            continue;
        }
        let family = match address.ip.parse() {
            Ok(IpAddr::V4(_)) => "IPv4",
            Ok(IpAddr::V6(_)) => "IPv6",
            Err(_) => {
                left_out.all += 1;
                left_out.invalid += 1;
                continue;
            }
        };
        room -= 1;
        families.entry(family).or_default().push(endpoint(address, ready));
    }
    families
        .into_iter()
        .map(|(address_type, endpoints)| Content { address_type, ports: ports.clone(), endpoints })
        .collect()
}

/// Plans the slices. At most `most` endpoints of a subset are mirrored. Slices with the right family and ports are
/// reused.
fn plan(endpoints: &Endpoints, existing: Vec<Arc<EndpointSlice>>, most: usize) -> Plan {
    let mut plan = Plan::default();
    let mut left = existing;
    let mut left_out = LeftOut::default();
    let subsets = repack(endpoints.subsets.as_deref().unwrap_or_default());
    let wanted: Vec<_> = subsets.iter().flat_map(|subset| contents(subset, most, &mut left_out)).collect();
    plan.left_out = left_out;
    for content in wanted {
        let same = |s: &Arc<EndpointSlice>| {
            s.address_type == content.address_type && s.ports.as_deref().unwrap_or_default() == content.ports
        };
        match left.iter().position(same) {
            None => {
                plan.added += content.endpoints.len();
                plan.create.push(slice(endpoints, &content, None));
            }
            Some(i) => {
                let old = left.remove(i);
                let next = slice(endpoints, &content, Some(&old));
                plan.count(&old, &next);
                if next != *old {
                    plan.update.push(next);
                }
            }
        }
    }
    plan.delete = left;
    plan
}

impl Plan {
    /// Counts the endpoints that are added, updated and removed between two versions of a slice.
    fn count(&mut self, old: &EndpointSlice, next: &EndpointSlice) {
        fn by_address(slice: &EndpointSlice) -> BTreeMap<&[String], &Endpoint> {
            slice.endpoints.iter().flatten().map(|e| (e.addresses.as_slice(), e)).collect()
        }
        let (old, next) = (by_address(old), by_address(next));
        self.added += next.keys().filter(|address| !old.contains_key(*address)).count();
        self.removed += old.keys().filter(|address| !next.contains_key(*address)).count();
        let is_other = |(address, endpoint): &(&&[String], &&Endpoint)| {
            old.get(**address).is_some_and(|before| before != *endpoint)
        };
        self.updated += next.iter().filter(is_other).count();
    }
}

fn slice(endpoints: &Endpoints, content: &Content, old: Option<&EndpointSlice>) -> EndpointSlice {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), endpoints.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    annotations.remove(trigger_times::ANNOTATION);
    let mut metadata = old.map(|o| o.metadata.clone()).unwrap_or_else(|| ObjectMeta {
        generate_name: Some(format!("{}-", endpoints.name())),
        namespace: endpoints.metadata.namespace.clone(),
        owner_references: Some(vec![controller_reference(endpoints)]),
        ..ObjectMeta::default()
    });
    metadata.owner_references = Some(vec![controller_reference(endpoints)]);
    metadata.labels = Some(labels);
    metadata.annotations = (!annotations.is_empty()).then_some(annotations);
    EndpointSlice {
        metadata,
        address_type: content.address_type.to_owned(),
        endpoints: Some(content.endpoints.clone()),
        ports: (!content.ports.is_empty()).then(|| content.ports.clone()),
    }
}

impl Controller {
    /// Emits events on the Endpoints about addresses left out, and records the changes in the metrics.
    fn record(&self, endpoints: &Endpoints, plan: &Plan, most: usize) {
        let LeftOut { all, invalid } = plan.left_out;
        let warn = |reason: &str, text: String| {
            self.cx.recorder.event(endpoints, EventType::Warning, reason, text);
        };
        if invalid > 0 {
            let text = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
            warn("InvalidIPAddress", text);
        }
        if all > invalid {
            let limit =
                format!("A max of {most} addresses can be mirrored to EndpointSlices per Endpoints subset.");
            warn("TooManyAddressesToMirror", format!("{limit} {all} addresses were skipped"));
        }
        for (metric, count) in [
            (Metric::MirroredSkipped, all),
            (Metric::MirroredAdded, plan.added),
            (Metric::MirroredUpdated, plan.updated),
            (Metric::MirroredRemoved, plan.removed),
        ] {
            metrics::record(metric, &[], count as f64);
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        if self.written.is_pending(&key, self.slices.observed_version()) {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let existing = self.slices.lister().by_index(BY_SERVICE, &key.to_string());
        let service = self.services.get_key(&key);
        let endpoints = self.endpoints.get_key(&key).filter(|e| is_mirrored(e, service.as_deref()));
        let plan = match endpoints {
            Some(endpoints) => {
                let most = self.cx.settings().max_mirrored_per_subset;
                let plan = plan(&endpoints, existing, most);
                if !plan.create.is_empty() {
                    still_owns(&self.cx.client, &*endpoints).await?;
                }
                self.record(&endpoints, &plan, most);
                plan
            }
            None => Plan { delete: existing, ..Plan::default() },
        };
        for slice in &plan.create {
            match self.cx.client.create(slice).await {
                Ok(created) => {
                    self.written.note(&key, &created.metadata);
                    count_change("create");
                }
                Err(e) if namespace_is_terminating(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        for slice in &plan.update {
            let updated = self.cx.client.update(slice).await?;
            self.written.note(&key, &updated.metadata);
            count_change("update");
        }
        for slice in &plan.delete {
            let options = DeleteOptions::default();
            match self.cx.client.delete::<EndpointSlice>(slice.namespace(), slice.name(), &options).await {
                Err(e) if !e.is_not_found() => return Err(e),
                _ => count_change("delete"),
            }
        }
        Ok(())
    }
}

fn count_change(operation: &str) {
    metrics::add(Metric::MirroredChanges, &[operation], 1.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use serde_json::{Value, json};

    fn endpoints(subsets: Value) -> Endpoints {
        serde_json::from_value(json!({"metadata": {"name": "e", "namespace": "ns"}, "subsets": subsets}))
            .unwrap()
    }

    #[test]
    fn families_and_ports_part_slices() {
        let given = endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "notReadyAddresses": [{"ip": "10.0.0.2"}], "ports": [{"name": "a", "port": 80}]}]));
        let first = plan(&given, Vec::new(), 1000);
        let kinds: Vec<_> = first
            .create
            .iter()
            .map(|s| (s.address_type.as_str(), s.endpoints.iter().flatten().count()))
            .collect();
        assert_eq!(kinds, [("IPv4", 2), ("IPv6", 1)]);
        assert_eq!((first.added, first.left_out), (3, LeftOut::default()));
        let existing: Vec<_> = first.create.into_iter().map(Arc::new).collect();
        assert_eq!(plan(&given, existing.clone(), 1000), Plan::default(), "settled");
        let fewer =
            endpoints(json!([{"addresses": [{"ip": "10.0.0.9"}], "ports": [{"name": "a", "port": 80}]}]));
        let next = plan(&fewer, existing, 1000);
        assert_eq!((next.create.len(), next.update.len(), next.delete.len()), (0, 1, 1));
        assert_eq!((next.added, next.updated, next.removed), (1, 0, 2));
        let many = endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "x"}, {"ip": "10.0.0.2"}]},
            {"notReadyAddresses": [{"ip": "10.0.0.3"}, {"ip": "10.0.0.2"}]}]));
        let one = plan(&many, Vec::new(), 2);
        assert_eq!(one.create.len(), 1, "subsets with the same ports are merged");
        assert_eq!(one.left_out, LeftOut { all: 2, invalid: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn only_hand_written_endpoints_are_mirrored() {
        let world = World::new(&[Endpoints::RESOURCE, Service::RESOURCE, EndpointSlice::RESOURCE]);
        let client = world.api.client();
        world.start(&DESCRIPTOR);
        client
            .create(&endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}])))
            .await
            .unwrap();
        world.pass(1.0).await;
        assert_eq!(world.api.all::<EndpointSlice>().len(), 0, "no Service");
        let mut service: Service = serde_json::from_value(
            json!({"metadata": {"name": "e", "namespace": "ns"}, "spec": {"ports": [{"port": 80}]}}),
        )
        .unwrap();
        service = client.create(&service).await.unwrap();
        world.pass(1.0).await;
        let all = world.api.all::<EndpointSlice>();
        assert_eq!(all[0].metadata.labels.as_ref().unwrap()[MANAGED_BY], MANAGER);
        service.spec.as_mut().unwrap().selector = Some(BTreeMap::from([("a".into(), "b".into())]));
        client.update(&service).await.unwrap();
        world.pass(1.0).await;
        assert_eq!(world.api.all::<EndpointSlice>().len(), 0);
    }
}
