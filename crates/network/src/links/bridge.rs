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
/// The last byte of LLDP's group address, 01:80:c2:00:00:0e, as a bit.
const FORWARD_LLDP: u16 = 1 << 0x0e;
const BR_BOOLOPT_NO_LL_LEARN: u32 = 1;
const IFLA_PROTINFO: u16 = 12;
const IFLA_BRPORT_MODE: u16 = 4;
const AF_BRIDGE: u8 = libc::AF_BRIDGE as u8;

/// A locally administered address derived from an IP address, so that a neighbour entry stays right when the
/// address moves on to another pod.
pub fn gateway_mac(ip: Ipv4Addr) -> Mac {
    let [a, b, c, d] = ip.octets();
    [0x0a, 0x58, a, b, c, d]
}

impl Links {
    /// The bridge of this name, created if missing, up, with this hardware address and MTU. The address is fixed
    /// because a bridge otherwise takes over that of its lowest port, and pods' neighbour entries go stale.
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

    /// Keeps the bridge from learning addresses from frames that are for itself alone, which pass no rules of the way in;
    /// and from handing LLDP's up without any rules at all: it takes them for others, which the rules are asked about.
    /// Kernels before 5.0 do not know the first, and take no notice.
    pub fn ignore_link_local_sources(&mut self, bridge: u32) -> Result<(), NetlinkError> {
        self.change("set what a bridge learns", link_header(0, bridge, 0, 0), |writer| {
            writer.nested(IFLA_LINKINFO, |info| {
                info.string(IFLA_INFO_KIND, "bridge");
                info.nested(IFLA_INFO_DATA, |data| {
                    data.attribute(IFLA_BR_GROUP_FWD_MASK, &FORWARD_LLDP.to_ne_bytes());
                    // Values, and which of them count.
                    let [value, mask] = [BR_BOOLOPT_NO_LL_LEARN.to_ne_bytes(); 2];
                    data.attribute(IFLA_BR_MULTI_BOOLOPT, &[value, mask].concat());
                });
            });
        })
    }

    /// Lets the bridge send a frame back out of the port it came from: a pod that reaches itself via a service.
    pub fn set_hairpin(&mut self, port: u32) -> Result<(), NetlinkError> {
        let header = link_header(AF_BRIDGE, port, 0, 0);
        self.netlink.request("set hairpin mode", libc::RTM_SETLINK, 0, &header, |writer| {
            writer.nested(IFLA_PROTINFO, |info| info.u8(IFLA_BRPORT_MODE, 1));
        })
    }
}
