//! The scheduling framework: extension points, the types they exchange, and the profile that holds the plugins.
//!
//! Source: `k8s.io/kubernetes/pkg/scheduler/framework`, KEP-624.

pub mod catalog;
pub mod cycle_state;
pub mod events;
pub mod footprint;
pub mod node_match;
pub mod plugin_args;
pub mod pod_info;
pub mod points;
pub mod profile;
pub mod resources;
pub mod rooms;
pub mod shape;
pub mod status;
pub mod terms;
pub mod work;

pub use catalog::Catalog;
pub use cycle_state::CycleState;
pub use events::{Action, Changed, ClusterEvent, Resource};
pub use footprint::Footprint;
pub use plugin_args::PluginArgs;
pub use pod_info::PodInfo;
pub use points::*;
pub use profile::{Build, Descriptor, Profile, Profiles};
pub use shape::Shape;
pub use status::{Code, Status};
