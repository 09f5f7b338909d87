//! The Node object: its registration, status, conditions and lease.
//!
//! [`NodeStatusManager`] registers the node and updates its status; [`lease`] renews its heartbeat. The content is
//! computed by pure functions: [`status`] from the facts that [`machine`] measures and the last status.

pub mod conditions;
pub mod lease;
pub mod machine;
mod manager;
pub mod registration;
mod reserved;
pub mod status;
mod thresholds;

pub use manager::{NetworkState, NodeStatusManager, Options};
pub use reserved::{Enforce, Reserved};
pub use thresholds::Thresholds;

/// The version in the node's status: the supported Kubernetes version, and Knarr's own.
pub const KUBELET_VERSION: &str = concat!("v1.37.0+knarr.", env!("CARGO_PKG_VERSION"));

/// The default port of a kubelet's server.
pub const KUBELET_PORT: i32 = 10250;
