//! Computes the rules of one service: a pure function of the service, its endpoint slices and the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::ProxyConfig;
use super::base::{REJECT_CHAIN, set_masquerade_mark};
use super::endpoints::{Selected, Target, select};
use crate::cidr::Ipv4Cidr;
use crate::conntrack::UdpDestinations;
use crate::nft::{
    AnonymousMap, Data, DataType, Expr, KeyType, NatKind, Reg, Rule, SetRef, Verdict, fib_flags, key,
};
use crate::per_service::service_key;
use crate::protocol::Protocol;

/// The sets that contain elements of services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetName {
    ClusterIps,
    FirewallIps,
    Hairpin,
    NoEndpointNodePorts,
    NoEndpointServices,
    ServiceIps,
    ServiceNodePorts,
}

/// Everything that a service adds to the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRules {
    pub chains: BTreeMap<String, Vec<Rule>>,
    /// Sets of clients that stick to an endpoint.
    pub affinity_sets: BTreeSet<String>,
    pub elements: BTreeMap<(SetName, Vec<u8>), Data>,
    pub udp: UdpDestinations,
}

const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;
const RTN_LOCAL: u32 = 2;
/// With more endpoints than this, a map selects one. A map for every service would make the time of a full sync
/// quadratic in their number, because the kernel keeps the sets of a table in a list.
const LONGEST_RULE_LIST: usize = 16;

/// Returns the rules for a service; empty for one that the proxy ignores.
pub fn service_rules(config: &ProxyConfig, service: &Service, slices: &[Arc<EndpointSlice>]) -> ServiceRules {
    let mut rules = ServiceRules::default();
    let Some((spec, cluster_ip)) = proxied(config, service) else { return rules };
    let key = service_key(service);
    rules.elements.insert((SetName::ClusterIps, key::addr(cluster_ip)), Data::None);
    for port in spec.ports.iter().flatten() {
        let Some(context) = PortContext::new(config, service, spec, &key, cluster_ip, port, slices) else {
            continue;
        };
        context.write(&mut rules);
    }
    rules
}

/// Returns whether labels assign the service or endpoint slice to other proxies.
///
/// Source: the label selector of the informers in `k8s.io/kubernetes/cmd/kube-proxy/app/server.go`.
pub(super) fn is_left_to_others(meta: &ObjectMeta) -> bool {
    let labels = meta.labels.as_ref();
    [PROXY_NAME_LABEL, HEADLESS_LABEL].iter().any(|label| labels.is_some_and(|all| all.contains_key(*label)))
}

/// Returns the spec and cluster IP of a service that this proxy handles.
fn proxied<'a>(config: &ProxyConfig, service: &'a Service) -> Option<(&'a ServiceSpec, Ipv4Addr)> {
    if is_left_to_others(&service.metadata) {
        return None;
    }
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    let ips = spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten());
    let cluster_ip = ips.filter_map(|ip| ip.parse().ok()).next()?;
    (!config.local_service_ips.contains(&cluster_ip)).then_some((spec, cluster_ip))
}

/// Everything that determines the rules of one port of a service.
struct PortContext<'a> {
    config: &'a ProxyConfig,
    /// `namespace/name/protocol/port`
    id: String,
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
    cluster_ip: Ipv4Addr,
    external_ips: BTreeSet<Ipv4Addr>,
    load_balancer_ips: BTreeSet<Ipv4Addr>,
    source_ranges: Option<BTreeSet<Ipv4Cidr>>,
    internal_local: bool,
    external_local: bool,
    affinity_seconds: Option<u32>,
    endpoints: Selected,
}

impl<'a> PortContext<'a> {
    fn new(
        config: &'a ProxyConfig,
        service: &Service,
        spec: &ServiceSpec,
        key: &str,
        cluster_ip: Ipv4Addr,
        port: &ServicePort,
        slices: &[Arc<EndpointSlice>],
    ) -> Option<Self> {
        let protocol = Protocol::from_api(port.protocol.as_deref())?;
        let number = u16::try_from(port.port).ok().filter(|n| *n != 0)?;
        let local = |policy: &Option<String>| policy.as_deref() == Some("Local");
        let external_ips = spec.external_ips.iter().flatten().filter_map(|ip| ip.parse().ok()).collect();
        Some(Self {
            config,
            id: format!("{key}/{protocol}/{number}"),
            protocol,
            port: number,
            node_port: port.node_port.and_then(|n| u16::try_from(n).ok()).filter(|n| *n != 0),
            cluster_ip,
            external_ips,
            load_balancer_ips: load_balancer_ips(service),
            source_ranges: source_ranges(spec),
            internal_local: local(&spec.internal_traffic_policy),
            external_local: local(&spec.external_traffic_policy),
            affinity_seconds: affinity_seconds(spec),
            endpoints: select(config, port, slices),
        })
    }

    fn write(&self, rules: &mut ServiceRules) {
        let cluster_chain = format!("service-{}", self.id);
        let local_chain = format!("local-{}", self.id);
        let external_chain = format!("external-{}", self.id);
        let external =
            self.node_port.is_some() || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty();
        let uses_local = self.internal_local || (external && self.external_local);
        let (cluster, local) = (&self.endpoints.cluster, &self.endpoints.local);
        if !cluster.is_empty() && (external || !self.internal_local) {
            rules.chains.insert(cluster_chain.clone(), self.balance(cluster));
        }
        if !local.is_empty() && uses_local {
            rules.chains.insert(local_chain.clone(), self.balance(local));
        }
        let internal = if self.internal_local { (local, &local_chain) } else { (cluster, &cluster_chain) };
        let verdict = match internal.0.is_empty() {
            false => Ok(Verdict::Goto(internal.1.clone())),
            true => Err(self.no_endpoint_verdict(self.internal_local)),
        };
        self.address_element(rules, self.cluster_ip, verdict);
        if external {
            self.write_external(rules, &cluster_chain, &local_chain, &external_chain);
        }
        self.write_affinity(rules);
        for ip in &self.endpoints.on_node {
            rules.elements.insert((SetName::Hairpin, key::addr_addr(*ip, *ip)), Data::None);
        }
        if self.protocol == Protocol::Udp {
            self.write_udp(rules);
        }
    }

    fn write_external(&self, rules: &mut ServiceRules, cluster: &str, local: &str, external: &str) {
        let usable = if self.external_local { &self.endpoints.local } else { &self.endpoints.cluster };
        if !self.endpoints.cluster.is_empty() {
            let chain = self.external_rules(cluster, local, !usable.is_empty());
            rules.chains.insert(external.to_owned(), chain);
        }
        let goto = (!self.endpoints.cluster.is_empty()).then(|| Verdict::Goto(external.to_owned()));
        let refuse = usable.is_empty().then(|| self.no_endpoint_verdict(self.external_local));
        for ip in self.external_ips.union(&self.load_balancer_ips) {
            // With policy Local both may exist: the node's own pods are served, and external traffic is
            // dropped.
            if let Some(goto) = &goto {
                self.address_element(rules, *ip, Ok(goto.clone()));
            }
            if let Some(refuse) = &refuse {
                self.address_element(rules, *ip, Err(refuse.clone()));
            }
        }
        if let Some(node_port) = self.node_port {
            let key = key::proto_port(self.protocol.number(), node_port);
            if let Some(goto) = goto {
                rules.elements.insert((SetName::ServiceNodePorts, key.clone()), Data::Verdict(goto));
            }
            if let Some(refuse) = refuse {
                rules.elements.insert((SetName::NoEndpointNodePorts, key), Data::Verdict(refuse));
            }
        }
        self.write_firewall(rules);
    }

    /// Implements `loadBalancerSourceRanges`: packets from other sources are dropped before translation.
    fn write_firewall(&self, rules: &mut ServiceRules) {
        let Some(ranges) = self.source_ranges.as_ref().filter(|_| !self.load_balancer_ips.is_empty()) else {
            return;
        };
        let chain = format!("firewall-{}", self.id);
        let mut allowed: Vec<Rule> = ranges
            .iter()
            .map(|range| {
                let mut rule = vec![Expr::ip_saddr(Reg::R0)];
                rule.extend(crate::pods::in_prefix(*range, true));
                rule.push(Expr::Verdict(Verdict::Return));
                rule
            })
            .collect();
        allowed.push(vec![Expr::Verdict(Verdict::Drop)]);
        rules.chains.insert(chain.clone(), allowed);
        for ip in &self.load_balancer_ips {
            let key = key::addr_proto_port(*ip, self.protocol.number(), self.port);
            rules.elements.insert((SetName::FirewallIps, key), Data::Verdict(Verdict::Goto(chain.clone())));
        }
    }

    /// Returns the verdict without an endpoint. With policy Local, if other nodes have endpoints, they may
    /// answer, so the packet is dropped.
    fn no_endpoint_verdict(&self, policy_local: bool) -> Verdict {
        if policy_local && self.endpoints.any {
            Verdict::Drop
        } else {
            Verdict::Goto(REJECT_CHAIN.to_owned())
        }
    }

    fn address_element(&self, rules: &mut ServiceRules, ip: Ipv4Addr, verdict: Result<Verdict, Verdict>) {
        let key = key::addr_proto_port(ip, self.protocol.number(), self.port);
        let (set, verdict) = match verdict {
            Ok(verdict) => (SetName::ServiceIps, verdict),
            Err(verdict) => (SetName::NoEndpointServices, verdict),
        };
        rules.elements.insert((set, key), Data::Verdict(verdict));
    }

    /// Returns the rules for traffic to a node port, an external IP or a load balancer's IP.
    fn external_rules(&self, cluster: &str, local: &str, local_endpoints: bool) -> Vec<Rule> {
        if !self.external_local {
            let mut rule = set_masquerade_mark();
            rule.push(Expr::goto(cluster));
            return vec![rule];
        }
        let mut rules = Vec::new();
        if let Some(pods) = self.config.cluster_cidr {
            let mut from_pods = vec![Expr::ip_saddr(Reg::R0)];
            from_pods.extend(crate::pods::in_prefix(pods, true));
            from_pods.push(Expr::goto(cluster));
            rules.push(from_pods);
        }
        let mut from_node = vec![
            Expr::FibAddrType { dreg: Reg::R0, flags: fib_flags::SADDR },
            Expr::eq(Reg::R0, RTN_LOCAL.to_ne_bytes()),
        ];
        from_node.extend(set_masquerade_mark());
        from_node.push(Expr::goto(cluster));
        rules.push(from_node);
        if local_endpoints {
            rules.push(vec![Expr::goto(local)]);
        }
        rules
    }

    /// Returns the rules that pick an endpoint.
    fn balance(&self, targets: &BTreeSet<Target>) -> Vec<Rule> {
        if self.affinity_seconds.is_none() {
            if targets.len() > LONGEST_RULE_LIST {
                return vec![pick_from_map(targets)];
            }
            return pick_one(targets, |target| translate_to(*target));
        }
        let known = targets.iter().map(|target| {
            vec![
                Expr::ip_saddr(Reg::R0),
                Expr::lookup(&self.affinity_set(*target), Reg::R0),
                Expr::goto(&self.endpoint_chain(*target)),
            ]
        });
        known.chain(pick_one(targets, |target| vec![Expr::goto(&self.endpoint_chain(*target))])).collect()
    }

    /// With session affinity every endpoint has a chain, which records the client before it translates.
    fn write_affinity(&self, rules: &mut ServiceRules) {
        let Some(seconds) = self.affinity_seconds else { return };
        for target in self.endpoints.cluster.union(&self.endpoints.local) {
            let set = self.affinity_set(*target);
            let remember = [
                Expr::ip_saddr(Reg::R0),
                Expr::DynsetUpdate { set: set.clone(), key: Reg::R0, timeout_ms: u64::from(seconds) * 1000 },
            ];
            let mut rule = remember.to_vec();
            rule.extend(translate_to(*target));
            rules.chains.insert(self.endpoint_chain(*target), vec![rule]);
            rules.affinity_sets.insert(set);
        }
    }

    fn endpoint_chain(&self, (ip, port): Target) -> String {
        format!("endpoint-{}-{ip}/{port}", self.id)
    }

    fn affinity_set(&self, (ip, port): Target) -> String {
        format!("affinity-{}-{ip}/{port}", self.id)
    }

    fn write_udp(&self, rules: &mut ServiceRules) {
        let all: BTreeSet<Target> = self.endpoints.cluster.union(&self.endpoints.local).copied().collect();
        let ips = self.external_ips.union(&self.load_balancer_ips).chain([&self.cluster_ip]);
        for ip in ips {
            rules.udp.by_address.insert((*ip, self.port), all.clone());
        }
        if let Some(node_port) = self.node_port {
            rules.udp.by_node_port.insert(node_port, all);
        }
    }
}

/// Applies `action` to one of the targets at random, each with the same probability: the first with 1/n, the
/// next with 1/(n-1), and so on. The rules are evaluated once per connection.
fn pick_one(targets: &BTreeSet<Target>, action: impl Fn(&Target) -> Rule) -> Vec<Rule> {
    targets
        .iter()
        .zip((1..=targets.len() as u32).rev())
        .map(|(target, left)| {
            let mut rule = Vec::new();
            if left > 1 {
                rule.push(Expr::NumgenRandom { dreg: Reg::R0, modulus: left });
                rule.push(Expr::eq(Reg::R0, [0; 4]));
            }
            rule.extend(action(target));
            rule
        })
        .collect()
}

/// Picks a target in one step, by a map from number to target.
fn pick_from_map(targets: &BTreeSet<Target>) -> Rule {
    let elements = targets
        .iter()
        .zip(0..)
        .map(|((ip, port), n)| (key::number(n), Data::Value(key::addr_port(*ip, *port))))
        .collect();
    let map = AnonymousMap {
        key: vec![KeyType::Integer],
        data: DataType::Value(vec![KeyType::Ipv4Addr, KeyType::InetService]),
        elements,
    };
    let set = SetRef::Anonymous(Arc::new(map));
    vec![
        Expr::NumgenRandom { dreg: Reg::R0, modulus: targets.len() as u32 },
        Expr::Lookup { set, sreg: Reg::R0, dreg: Some(Reg::R0), invert: false },
        Expr::Nat { kind: NatKind::Dnat, addr: Reg::R0, port: Some(Reg::R1) },
    ]
}

fn translate_to((ip, port): Target) -> Rule {
    vec![
        Expr::Immediate { dreg: Reg::R0, data: ip.octets().to_vec() },
        Expr::Immediate { dreg: Reg::R1, data: port.to_be_bytes().to_vec() },
        Expr::Nat { kind: NatKind::Dnat, addr: Reg::R0, port: Some(Reg::R1) },
    ]
}

fn load_balancer_ips(service: &Service) -> BTreeSet<Ipv4Addr> {
    let is_load_balancer = service.spec.as_ref().is_some_and(|s| s.type_.as_deref() == Some("LoadBalancer"));
    let status = service.status.as_ref().filter(|_| is_load_balancer);
    let ingress = status.and_then(|s| s.load_balancer.as_ref()).and_then(|l| l.ingress.as_ref());
    ingress
        .into_iter()
        .flatten()
        .filter(|i| i.ip_mode.as_deref().unwrap_or("VIP") == "VIP")
        .filter_map(|i| i.ip.as_ref()?.parse().ok())
        .collect()
}

/// Returns the permitted source ranges; `None` if all sources are permitted.
fn source_ranges(spec: &ServiceSpec) -> Option<BTreeSet<Ipv4Cidr>> {
    let ranges = spec.load_balancer_source_ranges.as_ref().filter(|ranges| !ranges.is_empty())?;
    let ranges: BTreeSet<Ipv4Cidr> = ranges.iter().filter_map(|r| r.trim().parse().ok()).collect();
    (!ranges.iter().any(|r| r.prefix_len() == 0)).then_some(ranges)
}

fn affinity_seconds(spec: &ServiceSpec) -> Option<u32> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let client_ip = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
    let configured = client_ip.and_then(|c| c.timeout_seconds).filter(|s| *s > 0);
    u32::try_from(configured.unwrap_or(DEFAULT_AFFINITY_SECONDS)).ok()
}
