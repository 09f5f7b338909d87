//! The scheduler's plugins: one file or folder each, one line in [`ALL`].

pub mod balanced_allocation;
mod claims;
pub mod default_binder;
pub mod default_preemption;
mod domain_counts;
pub mod dynamic_resources;
pub mod gang_scheduling;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_breaker;
pub mod node_declared_features;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod pod_topology_spread;
pub mod priority_sort;
pub mod scheduling_gates;
mod scoring_strategy;
pub mod taint_toleration;
#[cfg(test)]
pub mod testing;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;
pub mod workload_hold;

use std::sync::Arc;

use serde_json::Value;

use crate::framework::{Build, Catalog, Descriptor, Points, Profile};

/// The default plugins, in the order in which filters run.
pub const ALL: &[Descriptor] = &[
    scheduling_gates::DESCRIPTOR,
    priority_sort::DESCRIPTOR,
    node_name::DESCRIPTOR,
    node_unschedulable::DESCRIPTOR,
    taint_toleration::DESCRIPTOR,
    node_affinity::DESCRIPTOR,
    node_ports::DESCRIPTOR,
    node_resources_fit::DESCRIPTOR,
    volume_restrictions::DESCRIPTOR,
    node_volume_limits::DESCRIPTOR,
    volume_binding::DESCRIPTOR,
    volume_zone::DESCRIPTOR,
    pod_topology_spread::DESCRIPTOR,
    inter_pod_affinity::DESCRIPTOR,
    node_breaker::DESCRIPTOR,
    workload_hold::DESCRIPTOR,
    dynamic_resources::DESCRIPTOR,
    default_preemption::DESCRIPTOR,
    balanced_allocation::DESCRIPTOR,
    image_locality::DESCRIPTOR,
    default_binder::DESCRIPTOR,
    node_declared_features::DESCRIPTOR,
];

/// Plugins that follow the default ones while the feature gate GenericWorkload is on.
pub const OF_GENERIC_WORKLOAD: &[Descriptor] = &[gang_scheduling::DESCRIPTOR];

/// Returns a profile with the default plugins.
pub fn default_profile(scheduler_name: &str, catalog: &Arc<Catalog>) -> Result<Profile, String> {
    let mut points = Points::default();
    for descriptor in ALL {
        let parts = (descriptor.build)(&Build { args: &Value::Null, catalog })?;
        points.add(parts, descriptor.weight);
    }
    Ok(Profile::new(scheduler_name, points, 0))
}
