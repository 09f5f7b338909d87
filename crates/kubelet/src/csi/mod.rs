//! CSI drivers on this node: who is registered, how they are called, and what the cluster is told of them.
//!
//! Volumes are in [`crate::volumes`]; they find their driver in [`Drivers`].

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
