//! The controllers: each watches objects and brings the cluster towards what they ask for. One file or folder each,
//! one line in [`manager::ALL`].

pub mod manager;
mod owners;
mod pod_state;
mod service_pods;
mod written;

mod deployment;
mod endpoint_slice;
mod endpoints;
mod node_ipam;
mod replica_set;
mod root_ca_publisher;
mod service_accounts;

pub use manager::{ClientOf, Context, Options, run};
