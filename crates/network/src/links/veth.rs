//! The veth pair that connects a pod to the bridge.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::device::link_header;
use super::{Links, Mac};
use crate::netlink::NetlinkError;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_NET_NS_FD: u16 = 28;
const VETH_INFO_PEER: u16 = 1;

/// A pair to create: one end is a port of a bridge here, the other is in a pod's namespace; both are down at
/// first.
#[derive(Clone, Copy, Debug)]
pub struct Veth<'a> {
    pub host_name: &'a str,
    pub bridge: u32,
    pub pod_name: &'a str,
    pub pod_mac: Mac,
    pub pod_namespace: BorrowedFd<'a>,
    pub mtu: u32,
}

impl Links {
    /// Creates the pair with one message: the kernel creates the other end directly in the pod's namespace.
    pub fn create_veth(&mut self, veth: Veth<'_>) -> Result<(), NetlinkError> {
        let what = format!("create veth pair {}", veth.host_name);
        self.create(&what, link_header(0, 0, 0, 0), |writer| {
            writer.string(IFLA_IFNAME, veth.host_name);
            writer.u32(IFLA_MTU, veth.mtu);
            writer.u32(IFLA_MASTER, veth.bridge);
            writer.nested(IFLA_LINKINFO, |info| {
                info.string(IFLA_INFO_KIND, "veth");
                info.nested(IFLA_INFO_DATA, |data| {
                    data.nested(VETH_INFO_PEER, |peer| {
                        // It can be set up only after both ends exist.
                        peer.raw(&link_header(0, 0, 0, 0));
                        peer.string(IFLA_IFNAME, veth.pod_name);
                        peer.u32(IFLA_MTU, veth.mtu);
                        peer.attribute(IFLA_ADDRESS, &veth.pod_mac);
                        peer.u32(IFLA_NET_NS_FD, veth.pod_namespace.as_raw_fd() as u32);
                    });
                });
            });
        })
    }
}
