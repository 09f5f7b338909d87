//! The scheduler's plugins: one file each, one line in [`ALL`].

pub mod balanced_allocation;
pub mod default_binder;
pub mod image_locality;
pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod priority_sort;
pub mod scheduling_gates;
pub mod taint_toleration;
#[cfg(test)]
pub mod testing;

use crate::framework::profile::Descriptor;

/// The default set, in the order in which filters run.
pub const ALL: &[Descriptor] = &[
    scheduling_gates::DESCRIPTOR,
    priority_sort::DESCRIPTOR,
    node_unschedulable::DESCRIPTOR,
    node_name::DESCRIPTOR,
    taint_toleration::DESCRIPTOR,
    node_affinity::DESCRIPTOR,
    node_ports::DESCRIPTOR,
    node_resources_fit::DESCRIPTOR,
    balanced_allocation::DESCRIPTOR,
    image_locality::DESCRIPTOR,
    default_binder::DESCRIPTOR,
];
