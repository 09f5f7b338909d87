//! Which slices a Service should have, keeping as many existing ones unchanged as possible.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;

use super::packing::{key, pack};
use super::topology;
use crate::support::owners::controller_reference;
use crate::support::pod_state::is_ready;
use crate::support::service_pods::{
    Port, by_ports, hostname_in, is_headless, is_terminating, node_of, pod_ip, publishes_not_ready,
};

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
pub const ZONE: &str = "topology.kubernetes.io/zone";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The slices to create, update and delete.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<EndpointSlice>,
    pub unchanged: Vec<EndpointSlice>,
    /// How many endpoints are added, and how many are removed.
    pub added: usize,
    pub removed: usize,
}

/// Compares the endpoints of the pods with the existing slices. Pods of unknown nodes are left out, unless the
/// Service publishes pods that are not ready.
pub fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    mut existing: Vec<EndpointSlice>,
    most: usize,
    node: impl Fn(&str) -> Option<Arc<Node>>,
) -> Plan {
    existing.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let mut plan = Plan::default();
    // A slice's address type is immutable, and slices of an earlier Service of the same name are not reused.
    let of_service = |slice: &EndpointSlice| {
        let owners = slice.metadata.owner_references.as_deref().unwrap_or_default();
        slice.address_type == "IPv4" && owners.iter().any(|owner| owner.uid == service.uid())
    };
    let (mut existing, foreign): (Vec<_>, Vec<_>) = existing.into_iter().partition(of_service);
    plan.delete = foreign;
    let mut spare = Vec::new();
    for (ports, pods) in by_ports(service, pods) {
        let ports = slice_ports(&ports);
        let mine: Vec<_> =
            existing.extract_if(.., |s| s.ports.as_deref().unwrap_or_default() == ports).collect();
        let wanted = pods.iter().filter_map(|pod| endpoint(service, pod, &node)).collect();
        let has_other_labels = |slice: &EndpointSlice| slice.metadata.labels != Some(labels(service));
        let packed = pack(keep_hints(service, wanted, &mine), mine, has_other_labels, most);
        spare.extend(packed.spare);
        plan.added += packed.added;
        plan.removed += packed.removed;
        plan.create.extend(packed.create.into_iter().map(|endpoints| slice_of(service, &ports, endpoints)));
        for (slice, endpoints) in packed.keep {
            plan.keep(slice, slice_of(service, &ports, endpoints));
        }
    }
    spare.append(&mut existing);
    if plan.create.is_empty() && plan.update.is_empty() && plan.unchanged.is_empty() {
        // A Service without endpoints gets one empty slice, which shows that the Service exists.
        plan.create.push(slice_of(service, &[], Vec::new()));
    }
    // Spare slices are reused before new ones are created.
    let reused = spare.len().min(plan.create.len());
    for (slice, fresh) in spare.drain(..reused).zip(plan.create.split_off(plan.create.len() - reused)) {
        plan.keep(slice, fresh);
    }
    plan.delete.append(&mut spare);
    plan
}

impl Plan {
    /// Makes an existing slice list what the fresh one does.
    fn keep(&mut self, slice: EndpointSlice, fresh: EndpointSlice) {
        let next = EndpointSlice { metadata: merged_meta(&slice.metadata, &fresh.metadata), ..fresh };
        let list = if next == slice { &mut self.unchanged } else { &mut self.update };
        list.push(next);
    }
}

/// Keeps the topology hints of listed endpoints for now: they depend on all endpoints together and are checked later.
fn keep_hints(service: &Service, mut wanted: Vec<Endpoint>, mine: &[EndpointSlice]) -> Vec<Endpoint> {
    if topology::is_asked_for(service) {
        let listed: HashMap<_, _> =
            mine.iter().flat_map(|s| s.endpoints.iter().flatten()).map(|e| (key(e), &e.hints)).collect();
        for endpoint in &mut wanted {
            endpoint.hints = listed.get(&key(endpoint)).and_then(|hints| (*hints).clone());
        }
    }
    wanted
}

fn endpoint(service: &Service, pod: &Pod, node: &impl Fn(&str) -> Option<Arc<Node>>) -> Option<Endpoint> {
    let (serving, terminating) = (is_ready(pod), is_terminating(pod));
    let ready = publishes_not_ready(service) || (serving && !terminating);
    let node_name = node_of(pod).map(str::to_owned);
    let node = node_name.as_deref().and_then(node);
    if node.is_none() && !publishes_not_ready(service) {
        return None;
    }
    let zone = node.and_then(|node| node.metadata.labels.as_ref()?.get(ZONE).cloned());
    Some(Endpoint {
        hints: hints(service, ready, zone.as_deref(), node_name.as_deref()),
        addresses: pod_ip(pod).map(str::to_owned).into_iter().collect(),
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname_in(pod, service).map(str::to_owned),
        zone,
        node_name,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    })
}

/// Returns the Service's `trafficDistribution`, if hints can follow it; an annotation that requests topology hints
/// takes precedence.
pub fn traffic_distribution(service: &Service) -> Option<&str> {
    let wish = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    (known.contains(&wish) && !topology::is_asked_for(service)).then_some(wish)
}

/// Returns the hints about where the endpoint should be used from, as `trafficDistribution` requires.
fn hints(service: &Service, ready: bool, zone: Option<&str>, node: Option<&str>) -> Option<EndpointHints> {
    let wish = traffic_distribution(service).filter(|_| ready)?;
    let to_node = node.filter(|_| wish == "PreferSameNode");
    let for_zones = zone.map(|zone| vec![ForZone { name: zone.to_owned() }]);
    let for_nodes = to_node.map(|node| vec![ForNode { name: node.to_owned() }]);
    (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints { for_nodes, for_zones })
}

fn slice_ports(ports: &[Port]) -> Vec<EndpointPort> {
    let port = |p: &Port| EndpointPort {
        name: Some(p.name.clone()),
        port: Some(p.number),
        protocol: Some(p.protocol.clone()),
        app_protocol: p.app_protocol.clone(),
    };
    ports.iter().map(port).collect()
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME.to_owned(), service.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

fn slice_of(service: &Service, ports: &[EndpointPort], endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", service.name())),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels(service)),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".to_owned(),
        endpoints: (!endpoints.is_empty()).then_some(endpoints),
        ports: (!ports.is_empty()).then(|| ports.to_vec()),
    }
}

/// Returns an existing slice's metadata with the labels and owner that it should have.
fn merged_meta(existing: &ObjectMeta, wanted: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        labels: wanted.labels.clone(),
        owner_references: wanted.owner_references.clone(),
        ..existing.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodCondition, PodSpec, PodStatus, ServicePort, ServiceSpec};

    fn service() -> Service {
        let spec = ServiceSpec {
            ports: Some(vec![ServicePort { port: 80, ..ServicePort::default() }]),
            ..ServiceSpec::default()
        };
        let mut service = Service { spec: Some(spec), ..Service::default() };
        service.metadata.name = Some("web".into());
        service
    }

    fn pod(number: usize, ready: bool) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some(format!("p{number}"));
        pod.metadata.uid = Some(format!("u{number:04}"));
        pod.spec = Some(PodSpec { node_name: Some("n".into()), ..PodSpec::default() });
        let ready = PodCondition {
            type_: "Ready".into(),
            status: if ready { "True" } else { "False" }.into(),
            ..PodCondition::default()
        };
        pod.status = Some(PodStatus {
            pod_ip: Some(format!("10.0.{}.{}", number / 250, number % 250)),
            conditions: Some(vec![ready]),
            ..PodStatus::default()
        });
        Arc::new(pod)
    }

    fn stored(mut slices: Vec<EndpointSlice>) -> Vec<EndpointSlice> {
        for (i, slice) in slices.iter_mut().enumerate() {
            slice.metadata.name = Some(format!("web-{i}"));
        }
        slices
    }

    fn apply(pods: &[Arc<Pod>], existing: Vec<EndpointSlice>) -> Plan {
        let plan = plan(&service(), pods, existing, 100, |_| Some(Arc::default()));
        Plan { unchanged: Vec::new(), ..plan }
    }

    #[test]
    fn endpoints_fill_slices_of_a_hundred() {
        let pods: Vec<_> = (0..250).map(|n| pod(n, true)).collect();
        let plan = apply(&pods, Vec::new());
        let sizes: Vec<_> = plan.create.iter().map(|s| s.endpoints.as_ref().unwrap().len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let settled = stored(plan.create);
        assert_eq!(apply(&pods, settled), Plan::default(), "the second plan is empty");
    }

    #[test]
    fn only_the_slice_that_changes_is_written() {
        let mut pods: Vec<_> = (0..150).map(|n| pod(n, true)).collect();
        let settled = stored(apply(&pods, Vec::new()).create);
        pods[3] = pod(3, false);
        let plan = apply(&pods, settled.clone());
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
        assert_eq!(plan.update[0].metadata.name, settled[0].metadata.name);
    }

    #[test]
    fn a_service_without_pods_keeps_one_empty_slice() {
        let first = apply(&[], Vec::new());
        assert_eq!((first.create.len(), &first.create[0].endpoints), (1, &None));
        assert_eq!(apply(&[], stored(first.create)), Plan::default());
        let pods = [pod(1, true)];
        let settled = stored(apply(&pods, Vec::new()).create);
        let emptied = apply(&[], settled);
        assert_eq!((emptied.create.len(), emptied.update.len(), emptied.delete.len()), (0, 1, 0));
    }

    #[test]
    fn hints_follow_the_services_wish() {
        let hinted = |wish: &str, mode: Option<&str>, ready: bool| {
            let mut service = service();
            service.spec.as_mut().unwrap().traffic_distribution = Some(wish.to_owned());
            service.metadata.annotations =
                mode.map(|mode| [(topology::ANNOTATIONS[1].to_owned(), mode.to_owned())].into());
            let mut node = Node::default();
            node.metadata.labels = Some([(ZONE.to_owned(), "z".to_owned())].into());
            let node = Arc::new(node);
            let plan = plan(&service, &[pod(1, ready)], Vec::new(), 100, |_| Some(Arc::clone(&node)));
            let endpoint = plan.create[0].endpoints.as_ref().unwrap()[0].clone();
            let hints = endpoint.hints.unwrap_or_default();
            (hints.for_zones.map(|z| z[0].name.clone()), hints.for_nodes.map(|n| n[0].name.clone()))
        };
        let (zone, node) = (Some("z".to_owned()), Some("n".to_owned()));
        assert_eq!(hinted("PreferSameNode", None, true), (zone.clone(), node));
        assert_eq!(hinted("PreferClose", None, true), (zone.clone(), None));
        assert_eq!(hinted("PreferSameZone", Some("Disabled"), true), (zone, None));
        assert_eq!(hinted("PreferSameZone", Some("Auto"), true), (None, None));
        assert_eq!(hinted("PreferSameNode", None, false), (None, None));
    }

    #[test]
    fn pods_of_unknown_nodes_are_left_out_unless_asked_for() {
        let listed = |service: &Service| {
            let plan = plan(service, &[pod(1, true)], Vec::new(), 100, |_| None);
            plan.create[0].endpoints.clone().unwrap_or_default().len()
        };
        let mut service = service();
        assert_eq!(listed(&service), 0);
        service.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
        assert_eq!(listed(&service), 1);
    }

    #[test]
    fn slices_of_another_family_or_service_go() {
        let mut slices = stored(apply(&[pod(1, true)], Vec::new()).create);
        slices.push(EndpointSlice { address_type: "IPv6".to_owned(), ..slices[0].clone() });
        let mut others = slices[0].clone();
        others.metadata.owner_references = None;
        slices.push(others);
        let plan = apply(&[pod(1, true)], slices);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 0, 2));
    }
}
