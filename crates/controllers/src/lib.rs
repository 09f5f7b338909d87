//! The controllers: each watches objects and brings the cluster towards what they ask for. One file or folder each,
//! one line in [`manager::ALL`].

pub mod manager;
mod owners;
mod pod_state;

mod deployment;
mod replica_set;

pub use manager::{Context, run};
