//! Connection tracking entries of UDP: finds those that are stale after endpoints changed, and deletes them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::netlink::{Attribute, Message, Netlink, NetlinkError, Writer, ignore_missing};
use crate::protocol::Protocol;

const SUBSYSTEM_CTNETLINK: u16 = 1;
const CT_GET: u16 = SUBSYSTEM_CTNETLINK << 8 | 1;
const CT_DELETE: u16 = SUBSYSTEM_CTNETLINK << 8 | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const HEADER: [u8; 4] = [libc::AF_INET as u8, 0, 0, 0];

/// Addresses and ports of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    pub protocol: u8,
    pub source: (Ipv4Addr, u16),
    pub destination: (Ipv4Addr, u16),
}

/// A tracked flow: the direction of the client, and the direction of the answers (whose source is the
/// endpoint).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub original: Tuple,
    pub reply: Tuple,
}

/// The valid endpoints of UDP destinations; with an empty set, no flow to the destination is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpDestinations {
    pub by_address: BTreeMap<(Ipv4Addr, u16), BTreeSet<(Ipv4Addr, u16)>>,
    /// Destinations on the addresses of the node.
    pub by_node_port: BTreeMap<u16, BTreeSet<(Ipv4Addr, u16)>>,
}

/// Returns the flows to an endpoint that their destination no longer has, and those that were tracked before it
/// had any. Packets of such a flow would continue to go to the old endpoint while they keep arriving.
pub fn stale_flows<'a>(
    flows: &'a [Flow],
    destinations: &UdpDestinations,
    node_ips: &[Ipv4Addr],
) -> Vec<&'a Flow> {
    let stale = |flow: &&Flow| {
        let to = flow.original.destination;
        let endpoints = destinations
            .by_address
            .get(&to)
            .or_else(|| node_ips.contains(&to.0).then(|| destinations.by_node_port.get(&to.1)).flatten());
        flow.original.protocol == Protocol::Udp.number()
            && endpoints.is_some_and(|endpoints| !endpoints.contains(&flow.reply.source))
    };
    flows.iter().filter(stale).collect()
}

/// Returns all tracked IPv4 flows of UDP.
pub fn udp_flows(netlink: &mut Netlink) -> Result<Vec<Flow>, NetlinkError> {
    netlink.dump(
        "list tracked connections",
        CT_GET,
        &HEADER,
        |_| {},
        |message| Flow::parse(message).filter(|f| f.original.protocol == Protocol::Udp.number()),
    )
}

/// Deletes a flow; succeeds if it does not exist any more.
pub fn delete_flow(netlink: &mut Netlink, flow: &Flow) -> Result<(), NetlinkError> {
    let result = netlink.request("delete a tracked connection", CT_DELETE, 0, &HEADER, |writer| {
        writer.nested(CTA_TUPLE_ORIG, |w| flow.original.write(w));
    });
    ignore_missing(result)
}

impl Flow {
    fn parse(message: Message<'_>) -> Option<Self> {
        let attributes = message.attributes(HEADER.len());
        Some(Self {
            original: Tuple::parse(attributes.find_kind(CTA_TUPLE_ORIG)?)?,
            reply: Tuple::parse(attributes.find_kind(CTA_TUPLE_REPLY)?)?,
        })
    }
}

impl Tuple {
    fn parse(attribute: Attribute<'_>) -> Option<Self> {
        let ip = attribute.nested().find_kind(CTA_TUPLE_IP)?.nested();
        let ports = attribute.nested().find_kind(CTA_TUPLE_PROTO)?.nested();
        let port = |kind| ports.find_kind(kind).map(|a| a.be16()).unwrap_or_default();
        Some(Self {
            protocol: ports.find_kind(CTA_PROTO_NUM)?.u8(),
            source: (ip.find_kind(CTA_IP_V4_SRC)?.ipv4()?, port(CTA_PROTO_SRC_PORT)),
            destination: (ip.find_kind(CTA_IP_V4_DST)?.ipv4()?, port(CTA_PROTO_DST_PORT)),
        })
    }

    fn write(&self, writer: &mut Writer) {
        writer.nested(CTA_TUPLE_IP, |ip| {
            ip.attribute(CTA_IP_V4_SRC, &self.source.0.octets());
            ip.attribute(CTA_IP_V4_DST, &self.destination.0.octets());
        });
        writer.nested(CTA_TUPLE_PROTO, |ports| {
            ports.u8(CTA_PROTO_NUM, self.protocol);
            ports.be16(CTA_PROTO_SRC_PORT, self.source.1);
            ports.be16(CTA_PROTO_DST_PORT, self.destination.1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(to: (&str, u16), answered_by: (&str, u16)) -> Flow {
        let client = (Ipv4Addr::new(10, 42, 0, 9), 4000);
        let side = |(ip, port): (&str, u16)| (ip.parse().unwrap(), port);
        Flow {
            original: Tuple { protocol: 17, source: client, destination: side(to) },
            reply: Tuple { protocol: 17, source: side(answered_by), destination: client },
        }
    }

    #[test]
    fn flows_to_former_endpoints_are_stale() {
        let endpoint = ("10.42.0.5".parse().unwrap(), 53);
        let vip = ("10.43.0.10".parse().unwrap(), 53);
        let destinations = UdpDestinations {
            by_address: BTreeMap::from([(vip, BTreeSet::from([endpoint]))]),
            by_node_port: BTreeMap::from([(30053, BTreeSet::from([endpoint]))]),
        };
        let node = ["192.0.2.1".parse().unwrap()];
        for (to, from, expected) in [
            (("10.43.0.10", 53), ("10.42.0.5", 53), false),
            (("10.43.0.10", 53), ("10.42.0.6", 53), true),
            // Tracked while there was no endpoint, and therefore never translated.
            (("10.43.0.10", 53), ("10.43.0.10", 53), true),
            (("192.0.2.1", 30053), ("10.42.0.6", 53), true),
            (("192.0.2.2", 30053), ("10.42.0.6", 53), false),
            (("8.8.8.8", 53), ("8.8.8.8", 53), false),
        ] {
            let flows = [flow(to, from)];
            assert_eq!(
                stale_flows(&flows, &destinations, &node).len(),
                usize::from(expected),
                "{to:?} {from:?}"
            );
        }
    }
}
