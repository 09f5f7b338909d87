//! Network devices, addresses and routes of one network namespace, over rtnetlink.

mod address;
mod bridge;
mod device;
mod namespace;
mod route;
mod sysctl;
mod veth;

pub use address::Address;
pub use bridge::gateway_mac;
pub use device::Link;
pub use namespace::{NamespaceError, in_namespace};
pub use route::{Route, RouteKind};
pub use sysctl::{SysctlError, Sysctls};
pub use veth::Veth;

use crate::netlink::{Netlink, NetlinkError};

/// A hardware address.
pub type Mac = [u8; 6];

/// The devices in the network namespace of the thread that opened the socket.
pub struct Links {
    netlink: Netlink,
}

impl Links {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { netlink: Netlink::route()? })
    }
}
