//! The scheduling framework: extension points, what passes between them, and the profile that holds the plugins.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/framework`, KEP-624.

pub mod cycle_state;
pub mod events;
pub mod node_info;
pub mod pod_info;
pub mod points;
pub mod profile;
pub mod resources;
pub mod status;

pub use cycle_state::CycleState;
pub use events::{ClusterEvent, EventObject, Interest};
pub use node_info::NodeInfo;
pub use pod_info::PodInfo;
pub use points::*;
pub use profile::Profile;
pub use status::{Code, Status};
