//! Selects the endpoints of a service port that get traffic.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::ProxyConfig;
use super::service::is_left_to_others;
use crate::protocol::Protocol;

/// The address and port of an endpoint.
pub type Target = (Ipv4Addr, u16);

/// An endpoint of one service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    target: Target,
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
    same_node_hint: Option<bool>,
    same_zone_hint: Option<bool>,
}

/// The endpoints of a service port by traffic policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// For traffic with policy Cluster.
    pub cluster: BTreeSet<Target>,
    /// For traffic with policy Local.
    pub local: BTreeSet<Target>,
    /// Whether usable endpoints exist on any node, so that a policy without any of its own drops rather than
    /// rejects.
    pub any: bool,
    /// Addresses of pods on this node, which may connect to themselves.
    pub on_node: BTreeSet<Ipv4Addr>,
}

/// Returns whether the endpoints of the slice may get traffic from this proxy.
pub(super) fn is_proxied(slice: &EndpointSlice) -> bool {
    slice.address_type == "IPv4" && !is_left_to_others(&slice.metadata)
}

/// Selects among the endpoints of a port. Only ready ones count; if there are none, those that still serve
/// while they terminate.
pub fn select(config: &ProxyConfig, port: &ServicePort, slices: &[Arc<EndpointSlice>]) -> Selected {
    let candidates: BTreeSet<Candidate> = slices
        .iter()
        .filter(|slice| is_proxied(slice))
        .flat_map(|slice| slice_candidates(config, port, slice))
        .collect();
    let topology = topology(&candidates);
    let targets = |wanted: &dyn Fn(&Candidate) -> bool| -> BTreeSet<Target> {
        candidates.iter().filter(|c| wanted(c)).map(|c| c.target).collect()
    };
    let or_else = |first: BTreeSet<Target>, second: &dyn Fn(&Candidate) -> bool| {
        if first.is_empty() { targets(second) } else { first }
    };
    let in_topology = |c: &Candidate| match topology {
        Topology::Any => true,
        Topology::SameNode => c.same_node_hint == Some(true),
        Topology::SameZone => c.same_zone_hint == Some(true),
    };
    let last_resort = |c: &Candidate| c.serving && c.terminating;
    Selected {
        cluster: or_else(targets(&|c| c.ready && in_topology(c)), &last_resort),
        local: or_else(targets(&|c| c.ready && c.local), &|c| last_resort(c) && c.local),
        any: candidates.iter().any(|c| c.ready || last_resort(c)),
        on_node: candidates.iter().filter(|c| c.local).map(|c| c.target.0).collect(),
    }
}

enum Topology {
    Any,
    SameNode,
    SameZone,
}

/// Decides whether hints apply: only if every ready endpoint has them and at least one is for this node or
/// zone.
fn topology(candidates: &BTreeSet<Candidate>) -> Topology {
    let usable = |hint: &dyn Fn(&Candidate) -> Option<bool>| {
        let mut hints = candidates.iter().filter(|c| c.ready).map(hint);
        hints.clone().all(|h| h.is_some()) && hints.any(|h| h == Some(true))
    };
    if usable(&|c| c.same_node_hint) {
        Topology::SameNode
    } else if usable(&|c| c.same_zone_hint) {
        Topology::SameZone
    } else {
        Topology::Any
    }
}

fn slice_candidates(config: &ProxyConfig, port: &ServicePort, slice: &EndpointSlice) -> Vec<Candidate> {
    let wanted = (port.name.as_deref().unwrap_or_default(), Protocol::from_api(port.protocol.as_deref()));
    let numbers: Vec<u16> = slice
        .ports
        .iter()
        .flatten()
        .filter(|p| {
            (p.name.as_deref().unwrap_or_default(), Protocol::from_api(p.protocol.as_deref())) == wanted
        })
        .filter_map(|p| u16::try_from(p.port?).ok().filter(|n| *n != 0))
        .collect();
    let endpoints = slice.endpoints.iter().flatten();
    endpoints.flat_map(|endpoint| numbers.iter().filter_map(|n| candidate(config, endpoint, *n))).collect()
}

fn candidate(config: &ProxyConfig, endpoint: &Endpoint, port: u16) -> Option<Candidate> {
    // By the API's rules all addresses of an endpoint are equivalent and consumers use the first.
    let ip = endpoint.addresses.first()?.parse().ok()?;
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
    let hints = endpoint.hints.as_ref();
    let nodes = hints.and_then(|h| h.for_nodes.as_ref()).filter(|nodes| !nodes.is_empty());
    let zones = hints.and_then(|h| h.for_zones.as_ref()).filter(|zones| !zones.is_empty());
    Some(Candidate {
        target: (ip, port),
        ready,
        serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(config.node_name.as_str()),
        same_node_hint: nodes.map(|nodes| nodes.iter().any(|n| n.name == config.node_name)),
        same_zone_hint: zones.map(|zones| zones.iter().any(|z| Some(&z.name) == config.zone.as_ref())),
    })
}
