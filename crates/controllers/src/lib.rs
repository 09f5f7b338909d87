//! The controllers: each watches objects and brings the cluster towards what they ask for. One file or folder each,
//! one line in [`manager::ALL`].

mod discovery;
pub mod manager;
mod nodes;
mod owners;
mod pod_disruption;
mod pod_state;
mod service_pods;
#[cfg(test)]
mod testing;
mod written;

mod certificates;
mod deployment;
mod endpoint_slice;
mod endpoints;
mod garbage_collector;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod pod_garbage_collector;
mod replica_set;
mod root_ca_publisher;
mod service_accounts;
mod taint_eviction;

pub use certificates::CertificateSigner;
pub use manager::{ClientOf, Context, Options, run};
