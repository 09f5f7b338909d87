//! The node agent: turns the pods bound to this node into running containers and reports how they fare.

pub mod back_off;
pub mod compute_actions;
pub mod config;
pub mod container_config;
pub mod embedded;
pub mod events;
pub mod hooks;
pub mod http_get;
pub mod image_manager;
pub mod labels;
pub mod node_status;
pub mod pod;
pub mod pod_lookup;
pub mod pod_network;
pub mod probes;
pub mod qos;
pub mod resources;
pub mod runtime;
pub mod server;
pub mod simulated;
pub mod status;
pub mod termination;
pub mod volume_manager;
pub mod volumes;
