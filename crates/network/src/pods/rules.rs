//! The packet rules of the pod network: masquerade of outgoing traffic, host ports, and destinations that pods
//! may not reach.

use std::net::Ipv4Addr;

use super::source_guard::from_pods;
use super::{PodLease, PodNetworkConfig, PortMapping};
use crate::cidr::Ipv4Cidr;
use crate::nft::{
    BaseChain, Batch, Data, DataType, Expr, Hook, KeyType, NatKind, Reg, RejectKind, Rule, SetRef, SetSpec,
    Verdict, fib_flags, key,
};
use crate::protocol::Protocol;

const HOST_PORTS: &str = "host-ports";
const HOST_PORTS_BY_ADDRESS: &str = "host-ports-by-address";
const HAIRPIN: &str = "hairpin";
const CHAIN: &str = "host-port";
const BLOCKED: &str = "blocked";
const ICMP_ADMIN_PROHIBITED: u8 = 13;
const DNS_PORT: u16 = 53;
const RTN_LOCAL: u32 = 2;
const INTERFACE_NAME_LEN: usize = 16;
const IPS_DST_NAT: u32 = 1 << 5;

/// Returns a batch that replaces the whole table.
pub fn rebuild<'a>(config: &PodNetworkConfig, leases: impl Iterator<Item = &'a PodLease>) -> Batch {
    let mut batch = Batch::new(&config.table);
    batch.recreate_table();
    for set in sets() {
        batch.add_set(&set);
    }
    for (name, kind, hook, priority) in [
        ("raw-prerouting", "filter", Hook::Prerouting, -300),
        // After the service proxy's chains: a node port belongs to the cluster, a host port to one pod.
        ("prerouting", "nat", Hook::Prerouting, -99),
        ("output", "nat", Hook::Output, -99),
        ("forward", "filter", Hook::Forward, 0),
        ("postrouting", "nat", Hook::Postrouting, 100),
    ] {
        batch.add_base_chain(&BaseChain { name, kind, hook, priority });
    }
    batch.add_chain(CHAIN);
    for rule in host_port_rules(config) {
        batch.add_rule(CHAIN, &rule);
    }
    batch.add_rule("raw-prerouting", &drop_loopback_from_elsewhere());
    batch.add_rule("raw-prerouting", &from_pods(vec![Expr::Verdict(Verdict::Drop)]));
    for chain in ["prerouting", "output"] {
        batch.add_rule(chain, &to_local_address());
    }
    batch.add_chain(BLOCKED);
    for rule in blocked_rules() {
        batch.add_rule(BLOCKED, &rule);
    }
    for destination in &config.blocked_destinations {
        batch.add_rule("forward", &to_blocked(config, *destination));
    }
    batch.add_rule("postrouting", &masquerade(config));
    batch.add_rule("postrouting", &masquerade_hairpin());
    batch.add_rule("postrouting", &masquerade_loopback());
    for lease in leases {
        add_elements(&mut batch, lease);
    }
    batch
}

/// Returns a batch that adds the host ports of a pod.
pub fn add(config: &PodNetworkConfig, lease: &PodLease) -> Batch {
    let mut batch = Batch::new(&config.table);
    add_elements(&mut batch, lease);
    batch
}

/// Returns a batch that removes the host ports of a pod.
pub fn remove(config: &PodNetworkConfig, lease: &PodLease) -> Batch {
    let mut batch = Batch::new(&config.table);
    for (set, key, data) in elements(lease) {
        batch.delete_elements(set, [(key.as_slice(), &data)]);
    }
    batch
}

/// Returns the first host port of `lease` that another lease already has.
pub fn conflict<'a>(others: &[&PodLease], lease: &'a PodLease) -> Option<&'a PortMapping> {
    let same = |a: &PortMapping, b: &PortMapping| {
        a.protocol == b.protocol && a.host_port == b.host_port && listen(a) == listen(b)
    };
    let ports = &lease.owner.ports;
    ports.iter().enumerate().find_map(|(at, port)| {
        let taken = others.iter().flat_map(|l| &l.owner.ports).chain(&ports[..at]).any(|o| same(o, port));
        taken.then_some(port)
    })
}

/// Returns the first host port of `lease` that the configuration reserves for the node.
pub fn reserved<'a>(config: &PodNetworkConfig, lease: &'a PodLease) -> Option<&'a PortMapping> {
    lease.owner.ports.iter().find(|port| {
        let of_address = listen(port).is_some_and(|ip| config.local_addresses.contains(&ip));
        of_address || port.protocol == Protocol::Tcp && config.reserved_ports.contains(&port.host_port)
    })
}

/// Returns the address of a host port; `None` if it is for all addresses.
pub fn listen(port: &PortMapping) -> Option<Ipv4Addr> {
    port.host_ip.filter(|ip| !ip.is_unspecified())
}

fn add_elements(batch: &mut Batch, lease: &PodLease) {
    for (set, key, data) in elements(lease) {
        batch.add_elements(set, [(key.as_slice(), &data)]);
    }
}

fn elements(lease: &PodLease) -> Vec<(&'static str, Vec<u8>, Data)> {
    let mut elements = Vec::new();
    for port in &lease.owner.ports {
        let to = Data::Value(key::addr_port(lease.address, port.container_port));
        let (protocol, number) = (port.protocol.number(), port.host_port);
        elements.push(match listen(port) {
            None => (HOST_PORTS, key::proto_port(protocol, number), to),
            Some(ip) => (HOST_PORTS_BY_ADDRESS, key::addr_proto_port(ip, protocol, number), to),
        });
    }
    if !elements.is_empty() {
        elements.push((HAIRPIN, key::addr_addr(lease.address, lease.address), Data::None));
    }
    elements
}

fn sets() -> [SetSpec; 3] {
    use KeyType::{InetProto, InetService, Ipv4Addr};
    let target = || DataType::Value(vec![Ipv4Addr, InetService]);
    [
        SetSpec::new(HOST_PORTS, &[InetProto, InetService], target()),
        SetSpec::new(HOST_PORTS_BY_ADDRESS, &[Ipv4Addr, InetProto, InetService], target()),
        SetSpec::new(HAIRPIN, &[Ipv4Addr, Ipv4Addr], DataType::None),
    ]
}

/// Matches packets to an address of the node.
fn to_local_address() -> Rule {
    vec![
        Expr::FibAddrType { dreg: Reg::R0, flags: fib_flags::DADDR },
        Expr::eq(Reg::R0, RTN_LOCAL.to_ne_bytes()),
        Expr::jump(CHAIN),
    ]
}

/// Matches packets from a pod to a blocked destination, except to the node itself: if the node has such an
/// address, it was configured on purpose, for example for a DNS cache. Service addresses are already translated
/// at this point.
fn to_blocked(config: &PodNetworkConfig, destination: Ipv4Cidr) -> Rule {
    let mut name = config.bridge.as_bytes().to_vec();
    name.resize(INTERFACE_NAME_LEN, 0);
    let mut rule = vec![Expr::iifname(Reg::R0), Expr::eq(Reg::R0, name), Expr::ip_daddr(Reg::R0)];
    rule.extend(in_prefix(destination, true));
    rule.push(Expr::ip_daddr(Reg::R0));
    rule.extend(in_prefix(config.cluster_cidr, false));
    rule.push(Expr::goto(BLOCKED));
    rule
}

/// Returns the rules for blocked destinations, which allow DNS: some clouds have their resolver at the same
/// address, and pods with `dnsPolicy: Default` ask it directly.
fn blocked_rules() -> [Rule; 3] {
    let dns = |protocol: Protocol| {
        vec![
            Expr::l4proto(Reg::R0),
            Expr::eq(Reg::R0, [protocol.number()]),
            Expr::th_dport(Reg::R0),
            Expr::eq(Reg::R0, DNS_PORT.to_be_bytes()),
            Expr::Verdict(Verdict::Accept),
        ]
    };
    let reject = Expr::Reject(RejectKind::Icmp(ICMP_ADMIN_PROHIBITED));
    [dns(Protocol::Udp), dns(Protocol::Tcp), vec![reject]]
}

/// Drops packets with loopback addresses from other machines. Processes of the node reach host ports through
/// loopback too, for which the bridge lets such addresses pass (`route_localnet`): neighbours must not reach
/// services that listen on loopback only.
fn drop_loopback_from_elsewhere() -> Rule {
    let mut rule = vec![Expr::iifname(Reg::R0), Expr::neq(Reg::R0, *b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0")];
    rule.push(Expr::ip_daddr(Reg::R0));
    rule.extend(in_prefix(loopback(), true));
    rule.push(Expr::Verdict(Verdict::Drop));
    rule
}

/// Masquerades packets from loopback addresses, which a pod could not answer.
fn masquerade_loopback() -> Rule {
    let mut rule = vec![Expr::ip_saddr(Reg::R0)];
    rule.extend(in_prefix(loopback(), true));
    rule.push(Expr::ip_daddr(Reg::R0));
    rule.extend(in_prefix(loopback(), false));
    rule.push(Expr::Masquerade { fully_random: true });
    rule
}

fn loopback() -> Ipv4Cidr {
    Ipv4Cidr::new(Ipv4Addr::new(127, 0, 0, 0), 8)
}

/// Returns the rules of host ports. The node's own addresses come first, because a pod must not take them.
/// Resolvers and similar services have loopback addresses of their own: host ports for all addresses are served
/// on the first loopback address only.
fn host_port_rules(config: &PodNetworkConfig) -> Vec<Rule> {
    let of_node = config.local_addresses.iter().map(|ip| {
        vec![Expr::ip_daddr(Reg::R0), Expr::eq(Reg::R0, ip.octets()), Expr::Verdict(Verdict::Return)]
    });
    let reserved = config.reserved_ports.iter().map(|port| {
        vec![
            Expr::l4proto(Reg::R0),
            Expr::eq(Reg::R0, [Protocol::Tcp.number()]),
            Expr::th_dport(Reg::R0),
            Expr::eq(Reg::R0, port.to_be_bytes()),
            Expr::Verdict(Verdict::Return),
        ]
    });
    let mut other_loopback = vec![Expr::ip_daddr(Reg::R0)];
    other_loopback.extend(in_prefix(loopback(), true));
    other_loopback.push(Expr::ip_daddr(Reg::R0));
    other_loopback.push(Expr::neq(Reg::R0, Ipv4Addr::LOCALHOST.octets()));
    other_loopback.push(Expr::Verdict(Verdict::Return));
    let [by_address, by_port] = translations();
    of_node.chain(reserved).chain([by_address, other_loopback, by_port]).collect()
}

fn translations() -> [Rule; 2] {
    let translate = |set: &str| {
        let set = SetRef::Named(set.to_owned());
        [
            Expr::Lookup { set, sreg: Reg::R0, dreg: Some(Reg::R0), invert: false },
            Expr::Nat { kind: NatKind::Dnat, addr: Reg::R0, port: Some(Reg::R1) },
        ]
    };
    let mut by_address = vec![Expr::ip_daddr(Reg::R0), Expr::l4proto(Reg::R1), Expr::th_dport(Reg::R2)];
    by_address.extend(translate(HOST_PORTS_BY_ADDRESS));
    let mut by_port = vec![Expr::l4proto(Reg::R0), Expr::th_dport(Reg::R1)];
    by_port.extend(translate(HOST_PORTS));
    [by_address, by_port]
}

/// Masquerades packets from the node's pods to destinations outside of the cluster, except multicast.
fn masquerade(config: &PodNetworkConfig) -> Rule {
    let mut rule = vec![Expr::ip_saddr(Reg::R0)];
    rule.extend(in_prefix(config.pod_cidr, true));
    rule.push(Expr::ip_daddr(Reg::R0));
    rule.extend(in_prefix(config.cluster_cidr, false));
    rule.push(Expr::ip_daddr(Reg::R0));
    rule.extend(in_prefix(Ipv4Cidr::new(Ipv4Addr::new(224, 0, 0, 0), 4), false));
    rule.push(Expr::Masquerade { fully_random: true });
    rule
}

/// Masquerades traffic of a pod that reaches itself through a host port: it must not see its own address as the
/// client's.
fn masquerade_hairpin() -> Rule {
    vec![
        Expr::ct_status(Reg::R0),
        Expr::Bitwise {
            sreg: Reg::R0,
            dreg: Reg::R0,
            mask: IPS_DST_NAT.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        },
        Expr::neq(Reg::R0, [0; 4]),
        Expr::ip_saddr(Reg::R0),
        Expr::ip_daddr(Reg::R1),
        Expr::lookup(HAIRPIN, Reg::R0),
        Expr::Masquerade { fully_random: true },
    ]
}

/// Matches if the address in register 0 is (or is not) in the prefix. Overwrites the register.
pub(crate) fn in_prefix(cidr: Ipv4Cidr, inside: bool) -> [Expr; 2] {
    let network = cidr.network().octets();
    [
        Expr::Bitwise { sreg: Reg::R0, dreg: Reg::R0, mask: cidr.mask().octets().to_vec(), xor: vec![0; 4] },
        if inside { Expr::eq(Reg::R0, network) } else { Expr::neq(Reg::R0, network) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::LeaseOwner;

    fn lease(id: &str, ports: &[(u16, Protocol, Option<&str>)]) -> PodLease {
        let mapping = |(host_port, protocol, ip): &(u16, Protocol, Option<&str>)| PortMapping {
            protocol: *protocol,
            container_port: 80,
            host_port: *host_port,
            host_ip: ip.map(|ip| ip.parse().unwrap()),
        };
        let owner = LeaseOwner {
            namespace: "default".to_owned(),
            name: id.to_owned(),
            uid: id.to_owned(),
            ports: ports.iter().map(mapping).collect(),
        };
        PodLease { address: Ipv4Addr::new(10, 42, 0, 2), sandbox_id: id.to_owned(), owner }
    }

    #[test]
    fn conflicts_are_by_address_protocol_and_port() {
        let other = lease("a", &[(80, Protocol::Tcp, None), (53, Protocol::Udp, Some("192.0.2.1"))]);
        for (ports, expected) in [
            (vec![(80, Protocol::Tcp, None)], Some(80)),
            (vec![(80, Protocol::Tcp, Some("0.0.0.0"))], Some(80)),
            (vec![(80, Protocol::Udp, None)], None),
            (vec![(53, Protocol::Udp, Some("192.0.2.2"))], None),
            (vec![(9, Protocol::Tcp, None), (9, Protocol::Tcp, None)], Some(9)),
        ] {
            let lease = lease("b", &ports);
            let taken = conflict(&[&other], &lease).map(|p| p.host_port);
            assert_eq!(taken, expected, "{ports:?}");
        }
    }
}
