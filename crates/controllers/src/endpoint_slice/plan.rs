//! Which slices a Service should have, keeping as many of the present ones as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;

use crate::owners::controller_reference;
use crate::pod_state::is_ready;
use crate::service_pods::{
    Port, by_ports, hostname_in, is_headless, is_terminating, node_of, pod_ip, publishes_not_ready,
};

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub const MANAGER: &str = "endpointslice-controller.k8s.io";
/// Annotations that ask for hints by topology, the older one first.
const TOPOLOGY: [&str; 2] =
    ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
const HEADLESS: &str = "service.kubernetes.io/headless";

#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub create: Vec<EndpointSlice>,
    pub update: Vec<EndpointSlice>,
    pub delete: Vec<EndpointSlice>,
}

/// Compares what the pods give with the existing slices.
pub fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    mut existing: Vec<EndpointSlice>,
    most: usize,
    zone_of: impl Fn(&str) -> Option<String>,
) -> Plan {
    existing.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let mut plan = Plan::default();
    // The family of a slice never changes, and what was another Service's is not this one's.
    let of_service = |slice: &EndpointSlice| {
        let owners = slice.metadata.owner_references.as_deref().unwrap_or_default();
        slice.address_type == "IPv4" && owners.iter().any(|owner| owner.uid == service.uid())
    };
    let (mut existing, foreign): (Vec<_>, Vec<_>) = existing.into_iter().partition(of_service);
    plan.delete = foreign;
    let mut groups = by_ports(service, pods);
    if groups.is_empty() {
        // A Service without endpoints has one empty slice, so that its existence shows.
        groups.insert(Vec::new(), Vec::new());
    }
    for (ports, pods) in groups {
        let ports = slice_ports(&ports);
        let (mine, others) =
            existing.into_iter().partition(|s| s.ports.as_deref().unwrap_or_default() == ports);
        existing = others;
        let wanted = pods.iter().map(|p| endpoint(service, p, &zone_of)).collect();
        fill(service, &ports, wanted, mine, most, &mut plan);
    }
    // Slices of ports that no pod has any more are reused before new ones are made.
    for slice in &mut plan.create {
        if let Some(spare) = existing.pop() {
            let next =
                EndpointSlice { metadata: merged_meta(&spare.metadata, &slice.metadata), ..slice.clone() };
            plan.update.push(next);
            slice.endpoints = None;
            slice.metadata.generate_name = None;
        }
    }
    plan.create.retain(|s| s.metadata.generate_name.is_some());
    plan.delete.extend(existing);
    plan
}

/// Puts the wanted endpoints into slices of one set of ports: those already listed stay where they are.
fn fill(
    service: &Service,
    ports: &[EndpointPort],
    wanted: Vec<Endpoint>,
    mine: Vec<EndpointSlice>,
    most: usize,
    plan: &mut Plan,
) {
    let mut wanted: BTreeMap<String, Endpoint> = wanted.into_iter().map(|e| (key(&e), e)).collect();
    let mut kept: Vec<(EndpointSlice, Vec<Endpoint>)> = Vec::new();
    for slice in mine {
        let listed = slice.endpoints.iter().flatten();
        let stay = listed.filter_map(|e| wanted.remove(&key(e))).collect();
        kept.push((slice, stay));
    }
    let mut rest: Vec<Endpoint> = wanted.into_values().collect();
    for (_, endpoints) in &mut kept {
        let room = most.saturating_sub(endpoints.len());
        endpoints.extend(rest.drain(..room.min(rest.len())));
    }
    let empty_needed = rest.is_empty() && kept.is_empty();
    while !rest.is_empty() {
        let chunk = rest.drain(..most.min(rest.len())).collect();
        plan.create.push(slice_of(service, ports, chunk));
    }
    if empty_needed {
        plan.create.push(slice_of(service, ports, Vec::new()));
    }
    let mut has_one = !plan.create.is_empty() || kept.iter().any(|(_, e)| !e.is_empty());
    for (slice, endpoints) in kept {
        if endpoints.is_empty() && has_one {
            plan.delete.push(slice);
            continue;
        }
        has_one = true;
        let fresh = slice_of(service, ports, endpoints);
        let next = EndpointSlice { metadata: merged_meta(&slice.metadata, &fresh.metadata), ..fresh };
        if next != slice {
            plan.update.push(next);
        }
    }
}

fn key(endpoint: &Endpoint) -> String {
    let uid = endpoint.target_ref.as_ref().and_then(|t| t.uid.clone()).unwrap_or_default();
    format!("{uid} {}", endpoint.addresses.join(","))
}

fn endpoint(service: &Service, pod: &Pod, zone_of: &impl Fn(&str) -> Option<String>) -> Endpoint {
    let (serving, terminating) = (is_ready(pod), is_terminating(pod));
    let ready = publishes_not_ready(service) || (serving && !terminating);
    let node = node_of(pod).map(str::to_owned);
    let zone = node.as_deref().and_then(zone_of);
    Endpoint {
        hints: hints(service, ready, zone.as_deref(), node.as_deref()),
        addresses: pod_ip(pod).map(str::to_owned).into_iter().collect(),
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname_in(pod, service).map(str::to_owned),
        zone,
        node_name: node,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.metadata.namespace.clone(),
            name: pod.metadata.name.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    }
}

/// Where the endpoint is to be used from, as `trafficDistribution` asks; an annotation that leaves it to the topology
/// goes before that.
fn hints(service: &Service, ready: bool, zone: Option<&str>, node: Option<&str>) -> Option<EndpointHints> {
    let annotations = service.metadata.annotations.as_ref();
    let by_topology = TOPOLOGY.iter().find_map(|key| annotations?.get(*key));
    if !ready || by_topology.is_some_and(|mode| matches!(mode.as_str(), "Auto" | "auto")) {
        return None;
    }
    let wish = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let to_node = match wish {
        "PreferClose" | "PreferSameZone" => None,
        "PreferSameNode" => node,
        _ => return None,
    };
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

fn slice_of(service: &Service, ports: &[EndpointPort], endpoints: Vec<Endpoint>) -> EndpointSlice {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME.to_owned(), service.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", service.name())),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        address_type: "IPv4".to_owned(),
        endpoints: (!endpoints.is_empty()).then_some(endpoints),
        ports: (!ports.is_empty()).then(|| ports.to_vec()),
    }
}

/// An existing slice's metadata with the labels and owner that it should have.
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
        plan(&service(), pods, existing, 100, |_| None)
    }

    #[test]
    fn endpoints_fill_slices_of_a_hundred() {
        let pods: Vec<_> = (0..250).map(|n| pod(n, true)).collect();
        let plan = apply(&pods, Vec::new());
        let sizes: Vec<_> = plan.create.iter().map(|s| s.endpoints.as_ref().unwrap().len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let settled = stored(plan.create);
        assert_eq!(apply(&pods, settled), Plan::default(), "nothing to do the second time");
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
                mode.map(|mode| [(TOPOLOGY[1].to_owned(), mode.to_owned())].into());
            let plan = plan(&service, &[pod(1, ready)], Vec::new(), 100, |_| Some("z".to_owned()));
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
