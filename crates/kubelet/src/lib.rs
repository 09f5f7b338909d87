//! The node agent: turns the pods bound to this node into running containers and reports how they fare.

pub mod config;
pub mod node_status;
pub mod pod_lookup;
pub mod pod_network;
pub mod runtime;
pub mod server;
pub mod simulated;
pub mod volume_manager;
pub mod volumes;
