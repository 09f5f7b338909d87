//! Kinds of `resource.k8s.io`: devices, their drivers' offers, and claims.

mod allocation;
mod capacity;
mod claims;
mod configuration;
mod counters;
mod device;
pub mod deviceclass;
pub mod devicetaintrule;
pub mod expressions;
mod identifiers;
mod lists;
pub mod resourceclaim;
pub mod resourceclaimtemplate;
pub mod resourceslice;
mod selection;
mod taints;
