//! Topology hints (`service.kubernetes.io/topology-mode: Auto`): each zone gets a share of the endpoints in
//! proportion to its nodes' CPUs, from its own endpoints first.
//!
//! Source: <https://kubernetes.io/docs/concepts/services-networking/topology-aware-routing/> and the behaviour of
//! `k8s.io/endpointslice/topologycache`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForZone};
use knarr_apimachinery::quantity::Quantity;

use super::plan::{Plan, ZONE};
use crate::support::nodes::is_ready;

/// The annotations that request topology hints, the older one first.
pub const ANNOTATIONS: [&str; 2] =
    ["service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode"];
const CONTROL_PLANE: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];
/// By what factor an endpoint's load may exceed the average.
const OVERLOAD: f64 = 1.2;

/// Numbers of endpoints by zone.
pub type Counts = BTreeMap<String, usize>;

/// Why a Service gets no hints; the texts are those of its events.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoHints {
    #[error("Insufficient Node information: allocatable CPU or zone not specified on one or more nodes")]
    Nodes,
    #[error("Insufficient number of endpoints ({endpoints} endpoints, {zones} zones)")]
    Endpoints { endpoints: usize, zones: usize },
    #[error(
        "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
         ({endpoints} endpoints, {zones} zones)"
    )]
    Overload { endpoints: usize, zones: usize },
    #[error("One or more endpoints do not have a zone specified")]
    Zone,
}

/// Returns whether the Service requests topology hints.
pub fn is_asked_for(service: &Service) -> bool {
    let annotations = service.metadata.annotations.as_ref();
    let mode = ANNOTATIONS.iter().find_map(|key| annotations?.get(*key));
    mode.is_some_and(|mode| matches!(mode.as_str(), "Auto" | "auto"))
}

/// Each zone's share of all CPUs; the sum is 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares(BTreeMap<String, f64>);

impl Shares {
    /// Computes the shares from the ready nodes that are not control plane nodes; `None` if one of them lacks a zone
    /// label or CPU count, or if there are fewer than two zones.
    pub fn of<'n>(nodes: impl Iterator<Item = &'n Node>) -> Option<Self> {
        let mut zones: BTreeMap<String, f64> = BTreeMap::new();
        for node in nodes.filter(|node| is_ready(node)) {
            let labels = node.metadata.labels.as_ref();
            if labels.is_some_and(|labels| CONTROL_PLANE.iter().any(|key| labels.contains_key(*key))) {
                continue;
            }
            let zone = labels?.get(ZONE).filter(|zone| !zone.is_empty())?;
            let cpu: Quantity = node.status.as_ref()?.allocatable.as_ref()?.get("cpu")?.0.parse().ok()?;
            let cpu = cpu.milli_value();
            if cpu <= 0 {
                return None;
            }
            *zones.entry(zone.clone()).or_default() += cpu as f64;
        }
        let total: f64 = zones.values().sum();
        zones.values_mut().for_each(|cpu| *cpu /= total);
        (zones.len() >= 2).then_some(Self(zones))
    }

    /// Returns whether a zone has so few of these endpoints that each would be overloaded.
    pub fn overload(&self, counts: &Counts) -> bool {
        let total: usize = counts.values().sum();
        let few = |(zone, share): (&String, &f64)| {
            counts.get(zone).copied().unwrap_or_default() < fewest(*share, total)
        };
        !counts.is_empty() && self.0.iter().any(few)
    }
}

fn fewest(share: f64, endpoints: usize) -> usize {
    (share * endpoints as f64 / OVERLOAD).ceil() as usize
}

/// The maximum and the ideal number of endpoints of a zone.
struct Bounds {
    most: usize,
    best: f64,
}

fn bounds(endpoints: usize, shares: Option<&Shares>) -> Result<BTreeMap<&str, Bounds>, NoHints> {
    let Shares(shares) = shares.ok_or(NoHints::Nodes)?;
    let zones = shares.len();
    if zones > endpoints {
        return Err(NoHints::Endpoints { endpoints, zones });
    }
    let needed: usize = shares.values().map(|share| fewest(*share, endpoints)).sum();
    let free = endpoints.checked_sub(needed).ok_or(NoHints::Overload { endpoints, zones })?;
    let of_zone = |share: f64| {
        let fewest = fewest(share, endpoints);
        Bounds { most: fewest + free, best: (share * endpoints as f64).max(fewest as f64) }
    };
    Ok(shares.iter().map(|(zone, share)| (zone.as_str(), of_zone(*share))).collect())
}

/// Gives each ready endpoint a zone, and returns how many each zone got. Unchanged slices keep their hints if these
/// are still valid. If hints are impossible, all are removed.
pub fn hint(plan: &mut Plan, shares: Option<&Shares>) -> Result<Counts, NoHints> {
    let all = plan.create.iter().chain(&plan.update).chain(&plan.unchanged);
    let serving: Vec<&Endpoint> =
        all.flat_map(|slice| slice.endpoints.iter().flatten()).filter(|e| is_serving(e)).collect();
    let bounds = bounds(serving.len(), shares).and_then(|bounds| {
        let somewhere = serving.iter().all(|e| e.zone.as_deref().is_some_and(|zone| !zone.is_empty()));
        if somewhere { Ok(bounds) } else { Err(NoHints::Zone) }
    });
    match bounds {
        Ok(bounds) => Ok(give(plan, &bounds)),
        Err(why) => {
            remove(plan);
            Err(why)
        }
    }
}

fn remove(plan: &mut Plan) {
    let is_hinted = |slice: &EndpointSlice| slice.endpoints.iter().flatten().any(|e| e.hints.is_some());
    plan.update.extend(plan.unchanged.extract_if(.., |slice| is_hinted(slice)));
    let changing = plan.create.iter_mut().chain(&mut plan.update);
    changing.flat_map(|slice| slice.endpoints.iter_mut().flatten()).for_each(|e| e.hints = None);
}

fn give(plan: &mut Plan, bounds: &BTreeMap<&str, Bounds>) -> Counts {
    let mut counts = Counts::new();
    let is_stale = |slice: &mut EndpointSlice| match hints_that_hold(slice, &counts, bounds) {
        Some(more) => {
            more.into_iter().for_each(|(zone, n)| *counts.entry(zone).or_default() += n);
            false
        }
        None => true,
    };
    plan.update.extend(plan.unchanged.extract_if(.., is_stale));
    let mut changing: Vec<&mut Endpoint> = plan
        .create
        .iter_mut()
        .chain(&mut plan.update)
        .flat_map(|slice| slice.endpoints.iter_mut().flatten())
        .collect();
    for endpoint in &mut changing {
        let zone = endpoint.zone.clone().filter(|_| is_serving(endpoint));
        endpoint.hints = zone.as_deref().map(use_in);
        zone.into_iter().for_each(|zone| *counts.entry(zone).or_default() += 1);
    }
    let (mut gives, mut gets) = moves(bounds, &counts);
    for endpoint in changing.into_iter().filter(|e| e.hints.is_some()) {
        let Some(from) = endpoint.zone.as_ref().filter(|zone| take_one(&mut gives, zone)) else { continue };
        // The total given equals the total received, so this never ends early.
        let Some(to) = gets.keys().next().cloned() else { break };
        take_one(&mut gets, &to);
        take_one(&mut counts, from);
        *counts.entry(to.clone()).or_default() += 1;
        endpoint.hints = Some(use_in(&to));
    }
    counts
}

/// Subtracts one endpoint from the zone's count, if it is positive; zones with count 0 are removed.
fn take_one(counts: &mut Counts, zone: &str) -> bool {
    let Some(n) = counts.get_mut(zone) else { return false };
    *n -= 1;
    if *n == 0 {
        counts.remove(zone);
    }
    true
}

fn is_serving(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true)
}

fn use_in(zone: &str) -> EndpointHints {
    EndpointHints { for_zones: Some(vec![ForZone { name: zone.to_owned() }]), for_nodes: None }
}

/// Returns what the hints of a slice add to the counts; `None` if they must be recomputed.
fn hints_that_hold(
    slice: &EndpointSlice,
    counts: &Counts,
    bounds: &BTreeMap<&str, Bounds>,
) -> Option<Counts> {
    let mut here = Counts::new();
    for endpoint in slice.endpoints.iter().flatten().filter(|e| is_serving(e)) {
        let zones = endpoint.hints.as_ref()?.for_zones.as_ref().filter(|zones| !zones.is_empty())?;
        for zone in zones {
            *here.entry(zone.name.clone()).or_default() += 1;
        }
    }
    let holds = |(zone, n): (&String, &usize)| {
        let before = counts.get(zone).copied().unwrap_or_default();
        bounds.get(zone.as_str()).is_some_and(|b| before + n <= b.most)
    };
    here.iter().all(holds).then_some(here)
}

/// Returns how many endpoints each zone gives to others, and how many each receives.
fn moves(bounds: &BTreeMap<&str, Bounds>, counts: &Counts) -> (Counts, Counts) {
    let (mut over, mut under): (BTreeMap<&str, f64>, BTreeMap<&str, f64>) = Default::default();
    // A zone without eligible nodes gives all its endpoints.
    for zone in bounds.keys().copied().chain(counts.keys().map(String::as_str)) {
        let best = bounds.get(zone).map_or(0.0, |bound| bound.best);
        let more = counts.get(zone).copied().unwrap_or_default() as f64 - best;
        if more > 0.0 {
            over.insert(zone, more);
        } else if more < 0.0 {
            under.insert(zone, -more);
        }
    }
    let (mut gives, mut gets) = (Counts::new(), Counts::new());
    while let (Some((from, more)), Some((to, less))) = (largest(&mut over), largest(&mut under)) {
        if *more < 0.5 || *less < 0.5 || (*more < 1.0 && *less < 1.0) {
            break;
        }
        *more -= 1.0;
        *less -= 1.0;
        *gives.entry(from.to_owned()).or_default() += 1;
        *gets.entry(to.to_owned()).or_default() += 1;
    }
    (gives, gets)
}

fn largest<'m, 'z>(zones: &'m mut BTreeMap<&'z str, f64>) -> Option<(&'z str, &'m mut f64)> {
    zones.iter_mut().map(|(zone, n)| (*zone, n)).max_by(|a, b| a.1.total_cmp(b.1))
}
