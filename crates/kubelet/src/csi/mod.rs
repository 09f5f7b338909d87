//! CSI drivers on this node: their registration, their calls, and their entries in the cluster's objects.
//!
//! Volumes are in [`crate::volumes`]; they get their drivers from [`Drivers`].

pub mod allocatable;
pub mod client;
pub mod drivers;
pub mod messages;
mod node_info;
mod registration;

pub use client::{Capabilities, DriverClient, is_final};
pub use drivers::Drivers;
pub use node_info::NodeInfo;
pub use registration::CsiPlugins;
