//! IPv4 routes of the main table.

use std::net::Ipv4Addr;

use super::Links;
use crate::cidr::Ipv4Cidr;
use crate::netlink::{Message, NetlinkError, ignore_missing};

const RTM_NEWROUTE: u16 = libc::RTM_NEWROUTE;
const RTM_DELROUTE: u16 = libc::RTM_DELROUTE;
const RTM_GETROUTE: u16 = libc::RTM_GETROUTE;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const HEADER_LEN: usize = 12;
const RT_TABLE_MAIN: u8 = 254;
const RTN_UNICAST: u8 = 1;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;

/// The origin of a route, as the kernel stores it (`proto` in the route listing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Routes to other nodes' pods, which this node may delete when the other node is removed.
    Node,
    /// All other routes.
    Other(u8),
}

const PROTOCOL_NODE: u8 = 107;
const PROTOCOL_STATIC: u8 = 4;

impl RouteKind {
    /// Routes inside pods, and the node's route to services (protocol `static`). They are set anew whenever they are
    /// needed; existing ones are not read.
    pub const STATIC: Self = Self::Other(PROTOCOL_STATIC);

    fn number(self) -> u8 {
        match self {
            Self::Node => PROTOCOL_NODE,
            Self::Other(number) => number,
        }
    }

    fn from_number(number: u8) -> Self {
        if number == PROTOCOL_NODE { Self::Node } else { Self::Other(number) }
    }
}

/// One unicast route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub destination: Ipv4Cidr,
    pub gateway: Option<Ipv4Addr>,
    pub device: Option<u32>,
    /// The source address of packets that this node itself sends.
    pub source: Option<Ipv4Addr>,
    pub kind: RouteKind,
}

impl Route {
    fn header(&self) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[0] = libc::AF_INET as u8;
        header[1] = self.destination.prefix_len();
        header[4] = RT_TABLE_MAIN;
        header[5] = self.kind.number();
        header[6] = if self.gateway.is_some() { RT_SCOPE_UNIVERSE } else { RT_SCOPE_LINK };
        header[7] = RTN_UNICAST;
        header
    }

    fn parse(message: Message<'_>) -> Option<Self> {
        let header = message.payload.get(..HEADER_LEN)?;
        if header[0] != libc::AF_INET as u8 || header[4] != RT_TABLE_MAIN || header[7] != RTN_UNICAST {
            return None;
        }
        let attributes = message.attributes(HEADER_LEN);
        let network = attributes.find_kind(RTA_DST).and_then(|a| a.ipv4()).unwrap_or(Ipv4Addr::UNSPECIFIED);
        Some(Self {
            destination: Ipv4Cidr::new(network, header[1]),
            gateway: attributes.find_kind(RTA_GATEWAY).and_then(|a| a.ipv4()),
            device: attributes.find_kind(RTA_OIF).map(|a| a.u32()),
            source: attributes.find_kind(RTA_PREFSRC).and_then(|a| a.ipv4()),
            kind: RouteKind::from_number(header[5]),
        })
    }
}

impl Links {
    /// Returns the unicast routes of the main table.
    pub fn routes(&mut self) -> Result<Vec<Route>, NetlinkError> {
        let mut header = [0; HEADER_LEN];
        header[0] = libc::AF_INET as u8;
        self.netlink.dump("list routes", RTM_GETROUTE, &header, |_| {}, Route::parse)
    }

    /// Sets the route and replaces any other to the same destination.
    pub fn replace_route(&mut self, route: Route) -> Result<(), NetlinkError> {
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
        self.route_request("set route to", RTM_NEWROUTE, flags, route)
    }

    /// Removes the route; succeeds if it does not exist.
    pub fn delete_route(&mut self, route: Route) -> Result<(), NetlinkError> {
        ignore_missing(self.route_request("delete route to", RTM_DELROUTE, 0, route))
    }

    fn route_request(&mut self, act: &str, kind: u16, flags: u16, route: Route) -> Result<(), NetlinkError> {
        let what = format!("{act} {}", route.destination);
        self.netlink.request(&what, kind, flags, &route.header(), |writer| {
            if route.destination.prefix_len() > 0 {
                writer.attribute(RTA_DST, &route.destination.network().octets());
            }
            if let Some(gateway) = route.gateway {
                writer.attribute(RTA_GATEWAY, &gateway.octets());
            }
            if let Some(device) = route.device {
                writer.u32(RTA_OIF, device);
            }
            if let Some(source) = route.source {
                writer.attribute(RTA_PREFSRC, &source.octets());
            }
        })
    }

    /// Returns the MTU of the device of the default route; `None` without a default route.
    pub fn uplink_mtu(&mut self) -> Result<Option<u32>, NetlinkError> {
        let Some(index) = self
            .routes()?
            .into_iter()
            .find(|route| route.destination.prefix_len() == 0)
            .and_then(|route| route.device)
        else {
            return Ok(None);
        };
        Ok(self.list()?.into_iter().find(|link| link.index == index).map(|link| link.mtu))
    }
}
