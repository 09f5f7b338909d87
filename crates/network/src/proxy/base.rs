//! The part of the table that does not depend on services: base chains, dispatch, masquerade, rejection.

use std::net::Ipv4Addr;

use super::ProxyConfig;
use super::service::SetName;
use crate::nft::{
    BaseChain, Batch, Data, DataType, Expr, Hook, KeyType, Reg, RejectKind, Rule, SetSpec, key,
};
use crate::pods::in_prefix;

pub const REJECT_CHAIN: &str = "reject-chain";
const SERVICES: &str = "services";
const MASQUERADING: &str = "masquerading";
const SERVICE_CHECK: &str = "service-endpoints-check";
const NODE_PORT_CHECK: &str = "nodeport-endpoints-check";
const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";
const FIREWALL_CHECK: &str = "firewall-check";
const NODE_PORT_IPS: &str = "nodeport-ips";
/// The highest number of clients that are remembered for one endpoint.
const AFFINITY_CLIENTS: u32 = 65_536;
/// The packet mark that requests masquerade; the default of upstream's proxy.
const MASQUERADE_MARK: u32 = 0x4000;
const CT_STATE_NEW: u32 = 8;
const IPS_DST_NAT: u32 = 1 << 5;
const ICMP_PORT_UNREACHABLE: u8 = 3;

/// By the kernel's names of hook and priority. The checks come after translation: a packet that still has a
/// service's address then has no endpoint. The firewall comes before translation.
const BASE_CHAINS: [BaseChain; 8] = [
    BaseChain { name: "nat-prerouting", kind: "nat", hook: Hook::Prerouting, priority: -100 },
    BaseChain { name: "nat-output", kind: "nat", hook: Hook::Output, priority: -100 },
    BaseChain { name: "nat-postrouting", kind: "nat", hook: Hook::Postrouting, priority: 100 },
    BaseChain { name: "filter-prerouting", kind: "filter", hook: Hook::Prerouting, priority: -110 },
    BaseChain { name: "filter-output-before", kind: "filter", hook: Hook::Output, priority: -110 },
    BaseChain { name: "filter-input", kind: "filter", hook: Hook::Input, priority: -110 },
    BaseChain { name: "filter-forward", kind: "filter", hook: Hook::Forward, priority: -110 },
    BaseChain { name: "filter-output", kind: "filter", hook: Hook::Output, priority: -90 },
];

impl SetName {
    pub const ALL: [Self; 7] = [
        Self::ClusterIps,
        Self::FirewallIps,
        Self::Hairpin,
        Self::NoEndpointNodePorts,
        Self::NoEndpointServices,
        Self::ServiceIps,
        Self::ServiceNodePorts,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIps => "cluster-ips",
            Self::FirewallIps => "firewall-ips",
            Self::Hairpin => "hairpin-connections",
            Self::NoEndpointNodePorts => "no-endpoint-nodeports",
            Self::NoEndpointServices => "no-endpoint-services",
            Self::ServiceIps => "service-ips",
            Self::ServiceNodePorts => "service-nodeports",
        }
    }

    fn spec(self) -> SetSpec {
        use KeyType::{InetProto, InetService, Ipv4Addr};
        let (key, data): (&[KeyType], _) = match self {
            Self::ClusterIps => (&[Ipv4Addr], DataType::None),
            Self::Hairpin => (&[Ipv4Addr, Ipv4Addr], DataType::None),
            Self::FirewallIps | Self::NoEndpointServices | Self::ServiceIps => {
                (&[Ipv4Addr, InetProto, InetService], DataType::Verdict)
            }
            Self::NoEndpointNodePorts | Self::ServiceNodePorts => {
                (&[InetProto, InetService], DataType::Verdict)
            }
        };
        SetSpec::new(self.as_str(), key, data)
    }
}

/// Returns the set of clients that stick to one endpoint.
pub fn affinity_set(name: &str) -> SetSpec {
    SetSpec::new(name, &[KeyType::Ipv4Addr], DataType::None).dynamic(AFFINITY_CLIENTS)
}

/// Marks the packet for masquerade; overwrites register 0.
pub fn set_masquerade_mark() -> Rule {
    vec![Expr::mark(Reg::R0), bits(!MASQUERADE_MARK, MASQUERADE_MARK), Expr::set_mark(Reg::R0)]
}

/// Returns a batch that empties the table and writes everything that does not depend on services.
pub fn rebuild(config: &ProxyConfig) -> Batch {
    let mut batch = Batch::new(&config.table);
    batch.recreate_table();
    for set in SetName::ALL {
        batch.add_set(&set.spec());
    }
    batch.add_set(&SetSpec::new(NODE_PORT_IPS, &[KeyType::Ipv4Addr], DataType::None));
    let node_ips: Vec<_> = node_port_ips(config).into_iter().map(key::addr).collect();
    batch.add_elements(NODE_PORT_IPS, node_ips.iter().map(|ip| (ip.as_slice(), &Data::None)));
    for chain in &BASE_CHAINS {
        batch.add_base_chain(chain);
    }
    let chains = plain_chains(config);
    for (chain, _) in &chains {
        batch.add_chain(chain);
    }
    for (chain, rules) in chains.iter().chain(&base_rules()) {
        for rule in rules {
            batch.add_rule(chain, rule);
        }
    }
    batch
}

/// Returns the addresses of node ports, sorted and without duplicates. Loopback is excluded, because a packet
/// from 127.0.0.1 cannot leave the node.
fn node_port_ips(config: &ProxyConfig) -> Vec<Ipv4Addr> {
    let mut ips: Vec<_> = config.node_ips.iter().copied().filter(|ip| !ip.is_loopback()).collect();
    ips.sort();
    ips.dedup();
    ips
}

fn base_rules() -> Vec<(&'static str, Vec<Rule>)> {
    let new = |chain| {
        let mut rule = vec![Expr::ct_state(Reg::R0), bits(CT_STATE_NEW, 0), Expr::neq(Reg::R0, [0; 4])];
        rule.push(Expr::jump(chain));
        rule
    };
    vec![
        ("nat-prerouting", vec![vec![Expr::jump(SERVICES)]]),
        ("nat-output", vec![vec![Expr::jump(SERVICES)]]),
        ("nat-postrouting", vec![vec![Expr::jump(MASQUERADING)]]),
        ("filter-prerouting", vec![new(FIREWALL_CHECK)]),
        ("filter-output-before", vec![new(FIREWALL_CHECK)]),
        ("filter-input", vec![new(NODE_PORT_CHECK), new(SERVICE_CHECK)]),
        ("filter-forward", vec![new(SERVICE_CHECK), new(CLUSTER_IPS_CHECK)]),
        ("filter-output", vec![new(SERVICE_CHECK), new(CLUSTER_IPS_CHECK)]),
    ]
}

fn plain_chains(config: &ProxyConfig) -> Vec<(&'static str, Vec<Rule>)> {
    let reject = || Expr::Reject(RejectKind::Icmp(ICMP_PORT_UNREACHABLE));
    let mut services = Vec::new();
    services.extend(masquerade_from_elsewhere(config));
    services.push(by_address(SetName::ServiceIps));
    services.push(by_node_port(SetName::ServiceNodePorts));
    let cluster_ips =
        vec![Expr::ip_daddr(Reg::R0), Expr::lookup(SetName::ClusterIps.as_str(), Reg::R0), reject()];
    vec![
        (REJECT_CHAIN, vec![vec![reject()]]),
        (SERVICES, services),
        (MASQUERADING, vec![masquerade_marked(), masquerade_hairpin()]),
        (SERVICE_CHECK, vec![by_address(SetName::NoEndpointServices)]),
        (NODE_PORT_CHECK, vec![by_node_port(SetName::NoEndpointNodePorts)]),
        (CLUSTER_IPS_CHECK, vec![cluster_ips]),
        (FIREWALL_CHECK, vec![by_address(SetName::FirewallIps)]),
    ]
}

fn by_address(set: SetName) -> Rule {
    vec![
        Expr::ip_daddr(Reg::R0),
        Expr::l4proto(Reg::R1),
        Expr::th_dport(Reg::R2),
        Expr::vmap(set.as_str(), Reg::R0),
    ]
}

fn by_node_port(set: SetName) -> Rule {
    vec![
        Expr::ip_daddr(Reg::R0),
        Expr::lookup(NODE_PORT_IPS, Reg::R0),
        Expr::l4proto(Reg::R0),
        Expr::th_dport(Reg::R1),
        Expr::vmap(set.as_str(), Reg::R0),
    ]
}

/// Masquerades traffic of clients outside of the pod network, so that their answers return through this node.
fn masquerade_from_elsewhere(config: &ProxyConfig) -> Option<Rule> {
    let mut rule = vec![Expr::ip_daddr(Reg::R0), Expr::lookup(SetName::ClusterIps.as_str(), Reg::R0)];
    rule.push(Expr::ip_saddr(Reg::R0));
    rule.extend(in_prefix(config.cluster_cidr?, false));
    rule.extend(set_masquerade_mark());
    Some(rule)
}

fn masquerade_marked() -> Rule {
    vec![
        Expr::mark(Reg::R0),
        bits(MASQUERADE_MARK, 0),
        Expr::neq(Reg::R0, [0; 4]),
        Expr::mark(Reg::R0),
        bits(!MASQUERADE_MARK, 0),
        Expr::set_mark(Reg::R0),
        Expr::Masquerade { fully_random: true },
    ]
}

/// Masquerades traffic of a pod that reached itself through a service: it must not see its own address as the
/// client's.
fn masquerade_hairpin() -> Rule {
    vec![
        Expr::ct_status(Reg::R0),
        bits(IPS_DST_NAT, 0),
        Expr::neq(Reg::R0, [0; 4]),
        Expr::ip_saddr(Reg::R0),
        Expr::ip_daddr(Reg::R1),
        Expr::lookup(SetName::Hairpin.as_str(), Reg::R0),
        Expr::Masquerade { fully_random: true },
    ]
}

/// Returns the expression that ands, then xors register 0.
fn bits(mask: u32, xor: u32) -> Expr {
    Expr::Bitwise {
        sreg: Reg::R0,
        dreg: Reg::R0,
        mask: mask.to_ne_bytes().to_vec(),
        xor: xor.to_ne_bytes().to_vec(),
    }
}
