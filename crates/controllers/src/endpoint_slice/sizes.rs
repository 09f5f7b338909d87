//! The numbers of endpoints and slices, for the metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::kind::{Kind, ObjectKey};

use super::plan::{Plan, traffic_distribution};
use crate::metrics::{self, Metric};

/// The numbers of one Service.
#[derive(Debug, Default, PartialEq)]
struct Sizes {
    endpoints: usize,
    slices: usize,
    /// The number of slices if all but the last of each set of ports were full.
    fewest_slices: usize,
    traffic_distribution: Option<String>,
}

#[derive(Default)]
struct State {
    services: HashMap<ObjectKey, Sizes>,
    totals: [usize; 3],
    by_distribution: BTreeMap<String, usize>,
}

impl State {
    fn replace(&mut self, key: &ObjectKey, now: Option<Sizes>) {
        if let Some(sizes) = &now {
            self.totals[0] += sizes.endpoints;
            self.totals[1] += sizes.slices;
            self.totals[2] += sizes.fewest_slices;
            if let Some(wish) = &sizes.traffic_distribution {
                *self.by_distribution.entry(wish.clone()).or_default() += 1;
            }
        }
        let before = match now {
            Some(now) => self.services.insert(key.clone(), now),
            None => self.services.remove(key),
        };
        if let Some(sizes) = before {
            self.totals[0] -= sizes.endpoints;
            self.totals[1] -= sizes.slices;
            self.totals[2] -= sizes.fewest_slices;
            if let Some(n) = sizes.traffic_distribution.and_then(|w| self.by_distribution.get_mut(&w)) {
                *n -= 1;
            }
        }
    }
}

/// The numbers of all Services, behind a lock.
#[derive(Default)]
pub struct AllSizes(Mutex<State>);

impl AllSizes {
    /// Records the Service's numbers after the plan is carried out.
    pub fn observe(&self, service: &Service, plan: &Plan, most: usize) {
        self.replace(&service.key(), Some(sizes(service, plan, most)));
    }

    /// Drops a Service that was deleted.
    pub fn forget(&self, service: &ObjectKey) {
        self.replace(service, None);
    }

    fn replace(&self, key: &ObjectKey, now: Option<Sizes>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.replace(key, now);
        let names = [Metric::EndpointsDesired, Metric::EndpointSlices, Metric::EndpointSlicesDesired];
        for (metric, total) in names.into_iter().zip(state.totals) {
            metrics::set(metric, &[], total as f64);
        }
        for (wish, services) in &state.by_distribution {
            metrics::set(Metric::ServicesByTrafficDistribution, &[wish], *services as f64);
        }
    }
}

fn sizes(service: &Service, plan: &Plan, most: usize) -> Sizes {
    let mut by_ports: Vec<(&EndpointSlice, usize)> = Vec::new();
    let slices = || plan.create.iter().chain(&plan.update).chain(&plan.unchanged);
    for slice in slices() {
        let endpoints = slice.endpoints.as_ref().map_or(0, Vec::len);
        match by_ports.iter_mut().find(|(other, _)| other.ports == slice.ports) {
            Some((_, n)) => *n += endpoints,
            None => by_ports.push((slice, endpoints)),
        }
    }
    let fewest: usize = by_ports.iter().map(|(_, n)| n.div_ceil(most)).sum();
    Sizes {
        endpoints: by_ports.iter().map(|(_, n)| n).sum(),
        slices: slices().count(),
        fewest_slices: fewest.max(1),
        traffic_distribution: traffic_distribution(service).map(str::to_owned),
    }
}
