//! The node's bridge.

use std::net::Ipv4Addr;

use super::device::link_header;
use super::{Link, Links, Mac};
use crate::netlink::{NetlinkError, ignore_existing};

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_BR_GROUP_FWD_MASK: u16 = 9;
const IFLA_BR_MULTI_BOOLOPT: u16 = 46;
/// The bit for LLDP's group address, 01:80:c2:00:00:0e, by its last byte.
const FORWARD_LLDP: u16 = 1 << 0x0e;
const BR_BOOLOPT_NO_LL_LEARN: u32 = 1;
const IFLA_PROTINFO: u16 = 12;
const IFLA_BRPORT_MODE: u16 = 4;
const AF_BRIDGE: u8 = libc::AF_BRIDGE as u8;

/// Returns a locally administered address derived from an IP address, so that neighbour entries stay valid when
/// the IP address is assigned to another pod.
pub fn gateway_mac(ip: Ipv4Addr) -> Mac {
    let [a, b, c, d] = ip.octets();
    [0x0a, 0x58, a, b, c, d]
}

impl Links {
    /// Returns the bridge with this name, created if missing, up, with this hardware address and MTU. The
    /// address is fixed because a bridge otherwise takes that of its lowest port, and pods' neighbour entries
    /// become stale.
    pub fn ensure_bridge(&mut self, name: &str, mac: Mac, mtu: u32) -> Result<Link, NetlinkError> {
        let up = libc::IFF_UP as u32;
        let created = self.create(&format!("create bridge {name}"), link_header(0, 0, up, up), |writer| {
            writer.string(IFLA_IFNAME, name);
            writer.attribute(IFLA_ADDRESS, &mac);
            writer.u32(IFLA_MTU, mtu);
            writer.nested(IFLA_LINKINFO, |info| info.string(IFLA_INFO_KIND, "bridge"));
        });
        ignore_existing(created)?;
        let link = self.get(name)?.ok_or_else(|| NetlinkError::Malformed { what: format!("no {name}") })?;
        if link.kind.as_deref() != Some("bridge") {
            return Err(NetlinkError::Kernel {
                what: format!("device {name} exists and is no bridge"),
                errno: libc::EEXIST,
                detail: None,
            });
        }
        if !link.up || link.mac != Some(mac) || link.mtu != mtu {
            self.change(&format!("set up bridge {name}"), link_header(0, link.index, up, up), |writer| {
                writer.attribute(IFLA_ADDRESS, &mac);
                writer.u32(IFLA_MTU, mtu);
            })?;
        }
        Ok(Link { up: true, mac: Some(mac), mtu, ..link })
    }

    /// Keeps the bridge from learning addresses from frames to the link itself, which pass no rules on their
    /// way in. Also makes it forward LLDP frames, which it would otherwise deliver to the host without any
    /// rules; forwarded frames pass the rules. Kernels before 5.0 ignore the first setting.
    pub fn ignore_link_local_sources(&mut self, bridge: u32) -> Result<(), NetlinkError> {
        self.change("set what a bridge learns", link_header(0, bridge, 0, 0), |writer| {
            writer.nested(IFLA_LINKINFO, |info| {
                info.string(IFLA_INFO_KIND, "bridge");
                info.nested(IFLA_INFO_DATA, |data| {
                    data.attribute(IFLA_BR_GROUP_FWD_MASK, &FORWARD_LLDP.to_ne_bytes());
                    // The value and the mask of the changed bits.
                    let [value, mask] = [BR_BOOLOPT_NO_LL_LEARN.to_ne_bytes(); 2];
                    data.attribute(IFLA_BR_MULTI_BOOLOPT, &[value, mask].concat());
                });
            });
        })
    }

    /// Allows the bridge to send a frame back to the port that it arrived at, for a pod that reaches itself
    /// through a service.
    pub fn set_hairpin(&mut self, port: u32) -> Result<(), NetlinkError> {
        let header = link_header(AF_BRIDGE, port, 0, 0);
        self.netlink.request("set hairpin mode", libc::RTM_SETLINK, 0, &header, |writer| {
            writer.nested(IFLA_PROTINFO, |info| info.u8(IFLA_BRPORT_MODE, 1));
        })
    }
}
