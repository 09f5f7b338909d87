//! What the node tells about itself: the Node object, its conditions, and its lease.
//!
//! [`NodeStatusManager`] registers the node and keeps its status; [`lease`] keeps its heartbeat. What they write is
//! decided in pure functions: [`status`] from what [`machine`] has measured and what was told before.

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

/// The version that nodes report: the Kubernetes version they speak, and ours.
pub const KUBELET_VERSION: &str = concat!("v1.37.0+knarr.", env!("CARGO_PKG_VERSION"));

/// The port of a kubelet's server unless told otherwise.
pub const KUBELET_PORT: i32 = 10250;
