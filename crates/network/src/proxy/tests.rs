//! Tests of the pure part of the proxy: the rules of a service, and the changes between two states.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::ProxyConfig;
use super::plan::Applied;
use super::service::{ServiceRules, SetName, service_rules};
use crate::nft::{Data, Expr, Verdict, key};
use crate::per_service::ServiceKey;

fn config() -> ProxyConfig {
    let mut config = ProxyConfig::new("node-a", vec![Ipv4Addr::new(192, 0, 2, 1)]);
    config.cluster_cidr = Some("10.42.0.0/16".parse().unwrap());
    config
}

fn service(name: &str, spec: Value) -> Service {
    let mut spec = spec;
    spec["clusterIP"] = spec.get("clusterIP").cloned().unwrap_or(json!("10.43.0.1"));
    spec["ports"] = spec.get("ports").cloned().unwrap_or(json!([{"port": 80, "name": "http"}]));
    let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

/// Returns a slice of endpoints, given as (address, node, ready, terminating).
fn slice(endpoints: &[(&str, &str, bool, bool)]) -> Arc<EndpointSlice> {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(ip, node, ready, terminating)| {
            json!({"addresses": [ip], "nodeName": node,
                   "conditions": {"ready": ready, "serving": true, "terminating": terminating}})
        })
        .collect();
    let object = json!({
        "addressType": "IPv4", "metadata": {"namespace": "default"},
        "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn verdict(rules: &ServiceRules, set: SetName) -> Option<Verdict> {
    let vip = key::addr_proto_port(Ipv4Addr::new(10, 43, 0, 1), 6, 80);
    match rules.elements.get(&(set, vip)) {
        Some(Data::Verdict(verdict)) => Some(verdict.clone()),
        _ => None,
    }
}

fn goto(chain: &str) -> Option<Verdict> {
    Some(Verdict::Goto(chain.to_owned()))
}

/// Returns the targets that a chain translates to.
fn targets(rules: &ServiceRules, chain: &str) -> BTreeSet<Vec<u8>> {
    let mut targets = BTreeSet::new();
    for expr in rules.chains.get(chain).into_iter().flatten().flatten() {
        match expr {
            Expr::Immediate { data, .. } if data.len() == 4 => {
                targets.insert(data.clone());
            }
            expr => targets.extend(expr.anonymous().into_iter().flat_map(|map| {
                map.elements.iter().filter_map(|(_, data)| match data {
                    Data::Value(value) => Some(value[..4].to_vec()),
                    _ => None,
                })
            })),
        }
    }
    targets
}

fn ips(ips: &[&str]) -> BTreeSet<Vec<u8>> {
    ips.iter().map(|ip| key::addr(ip.parse().unwrap())).collect()
}

#[test]
fn only_usable_endpoints_get_traffic() {
    let (ready, gone, leaving) = ((true, false), (false, false), (false, true));
    for (endpoints, expected) in [
        (vec![("10.42.0.2", ready), ("10.42.0.3", gone)], vec!["10.42.0.2"]),
        (vec![("10.42.0.2", ready), ("10.42.0.3", leaving)], vec!["10.42.0.2"]),
        (vec![("10.42.0.2", gone), ("10.42.0.3", leaving)], vec!["10.42.0.3"]),
        (vec![("10.42.0.2", ready), ("10.42.0.3", ready)], vec!["10.42.0.2", "10.42.0.3"]),
    ] {
        let endpoints: Vec<_> = endpoints.iter().map(|(ip, (r, t))| (*ip, "node-b", *r, *t)).collect();
        let rules = service_rules(&config(), &service("web", json!({})), &[slice(&endpoints)]);
        assert_eq!(verdict(&rules, SetName::ServiceIps), goto("service-default/web/tcp/80"));
        assert_eq!(targets(&rules, "service-default/web/tcp/80"), ips(&expected), "{endpoints:?}");
    }
}

#[test]
fn each_endpoint_is_as_likely() {
    for (count, expected) in [(1, vec![]), (3, vec![3, 2]), (20, vec![20])] {
        let ips: Vec<String> = (0..count).map(|n| format!("10.42.1.{n}")).collect();
        let endpoints: Vec<_> = ips.iter().map(|ip| (ip.as_str(), "node-b", true, false)).collect();
        let rules = service_rules(&config(), &service("web", json!({})), &[slice(&endpoints)]);
        let chain = "service-default/web/tcp/80";
        assert_eq!(targets(&rules, chain).len(), count);
        let moduli = rules.chains[chain].iter().flatten().filter_map(|expr| match expr {
            Expr::NumgenRandom { modulus, .. } => Some(*modulus),
            _ => None,
        });
        assert_eq!(moduli.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn without_endpoints_rejects_and_with_local_policy_drops() {
    let elsewhere = slice(&[("10.42.1.2", "node-b", true, false)]);
    let local_policy = json!({"internalTrafficPolicy": "Local"});
    for (spec, slices, expected) in [
        (json!({}), vec![], goto("reject-chain")),
        (json!({}), vec![slice(&[("10.42.0.2", "node-a", false, false)])], goto("reject-chain")),
        (local_policy.clone(), vec![], goto("reject-chain")),
        (local_policy, vec![elsewhere], Some(Verdict::Drop)),
    ] {
        let rules = service_rules(&config(), &service("web", spec.clone()), &slices);
        assert_eq!(verdict(&rules, SetName::NoEndpointServices), expected, "{spec}");
        assert_eq!(verdict(&rules, SetName::ServiceIps), None);
    }
}

#[test]
fn internal_local_policy_uses_local_endpoints() {
    let slices = [slice(&[("10.42.0.2", "node-a", true, false), ("10.42.1.2", "node-b", true, false)])];
    let rules = service_rules(&config(), &service("web", json!({"internalTrafficPolicy": "Local"})), &slices);
    assert_eq!(verdict(&rules, SetName::ServiceIps), goto("local-default/web/tcp/80"));
    assert_eq!(targets(&rules, "local-default/web/tcp/80"), ips(&["10.42.0.2"]));
    assert!(!rules.chains.contains_key("service-default/web/tcp/80"));
}

#[test]
fn external_local_policy_without_local_endpoints_drops_only_what_comes_from_outside() {
    let spec = json!({"type": "NodePort", "externalTrafficPolicy": "Local",
                      "ports": [{"port": 80, "name": "http", "nodePort": 30080}]});
    let rules =
        service_rules(&config(), &service("web", spec), &[slice(&[("10.42.1.2", "node-b", true, false)])]);
    let port = key::proto_port(6, 30080);
    let element = |set| rules.elements.get(&(set, port.clone())).cloned();
    assert_eq!(
        element(SetName::ServiceNodePorts),
        Some(Data::Verdict(Verdict::Goto("external-default/web/tcp/80".to_owned())))
    );
    assert_eq!(element(SetName::NoEndpointNodePorts), Some(Data::Verdict(Verdict::Drop)));
    let external = &rules.chains["external-default/web/tcp/80"];
    assert!(!external.iter().flatten().any(|e| *e == Expr::goto("local-default/web/tcp/80")));
    assert_eq!(verdict(&rules, SetName::ServiceIps), goto("service-default/web/tcp/80"));
}

#[test]
fn load_balancer_ips_are_served_and_fenced() {
    let mut web = service(
        "web",
        json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["203.0.113.0/24"],
               "externalIPs": ["198.51.100.7"]}),
    );
    web.status = serde_json::from_value(
        json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.9"}, {"ip": "198.51.100.8", "ipMode": "Proxy"}]}}),
    )
    .unwrap();
    let rules = service_rules(&config(), &web, &[slice(&[("10.42.1.2", "node-b", true, false)])]);
    let has =
        |set, ip: &str| rules.elements.contains_key(&(set, key::addr_proto_port(ip.parse().unwrap(), 6, 80)));
    assert!(has(SetName::ServiceIps, "198.51.100.9") && has(SetName::ServiceIps, "198.51.100.7"));
    assert!(!has(SetName::ServiceIps, "198.51.100.8"));
    assert!(has(SetName::FirewallIps, "198.51.100.9") && !has(SetName::FirewallIps, "198.51.100.7"));
}

#[test]
fn services_of_others_are_left_alone() {
    let labelled = |label: &str, value: &str| {
        let mut labelled = service("a", json!({}));
        labelled.metadata.labels = Some(BTreeMap::from([(label.to_owned(), value.to_owned())]));
        labelled
    };
    let mut with_own_dns = config();
    with_own_dns.local_service_ips.insert(Ipv4Addr::new(10, 43, 0, 1));
    for (config, service) in [
        (config(), labelled("service.kubernetes.io/service-proxy-name", "x")),
        (config(), labelled("service.kubernetes.io/headless", "")),
        (config(), service("a", json!({"clusterIP": "None"}))),
        (config(), service("a", json!({"clusterIP": "fd00::1"}))),
        (config(), service("a", json!({"type": "ExternalName"}))),
        (with_own_dns, service("a", json!({}))),
    ] {
        let rules = service_rules(&config, &service, &[slice(&[("10.42.1.2", "node-b", true, false)])]);
        assert_eq!(rules, ServiceRules::default());
    }
    for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"] {
        let mut marked = slice(&[("10.42.1.2", "node-b", true, false)]);
        let labels = BTreeMap::from([(label.to_owned(), String::new())]);
        Arc::make_mut(&mut marked).metadata.labels = Some(labels);
        let slices = [marked, slice(&[("10.42.1.3", "node-b", true, false)])];
        let rules = service_rules(&config(), &service("web", json!({})), &slices);
        assert_eq!(targets(&rules, "service-default/web/tcp/80"), ips(&["10.42.1.3"]), "{label}");
    }
}

#[test]
fn hints_keep_traffic_near_when_all_endpoints_have_them() {
    let mut config = config();
    config.zone = Some("east".to_owned());
    let with_zones = |zones: [Option<&str>; 2]| {
        let endpoints: Vec<_> = zones
            .iter()
            .zip(2..)
            .map(|(zone, n)| {
                json!({"addresses": [format!("10.42.1.{n}")], "conditions": {"ready": true},
                       "hints": zone.map(|z| json!({"forZones": [{"name": z}]}))})
            })
            .collect();
        let object = json!({"addressType": "IPv4", "ports": [{"name": "http", "port": 80}],
                            "metadata": {}, "endpoints": endpoints});
        Arc::new(serde_json::from_value::<EndpointSlice>(object).unwrap())
    };
    for (zones, expected) in [
        ([Some("east"), Some("west")], vec!["10.42.1.2"]),
        ([Some("east"), None], vec!["10.42.1.2", "10.42.1.3"]),
        ([Some("west"), Some("west")], vec!["10.42.1.2", "10.42.1.3"]),
    ] {
        let rules = service_rules(&config, &service("web", json!({})), &[with_zones(zones)]);
        assert_eq!(targets(&rules, "service-default/web/tcp/80"), ips(&expected), "{zones:?}");
    }
}

fn desired(services: &[(&str, ServiceRules)]) -> BTreeMap<ServiceKey, Arc<ServiceRules>> {
    services.iter().map(|(name, rules)| ((*name).into(), Arc::new(rules.clone()))).collect()
}

#[test]
fn an_endpoint_change_touches_one_chain() {
    let web = |endpoints: &[(&str, &str, bool, bool)]| {
        service_rules(&config(), &service("web", json!({})), &[slice(endpoints)])
    };
    let one = web(&[("10.42.1.2", "node-b", true, false)]);
    let two = web(&[("10.42.1.2", "node-b", true, false), ("10.42.1.3", "node-b", true, false)]);
    let mut applied = Applied::default();
    let first = applied.advance(&desired(&[("default/web", one.clone())]));
    assert_eq!((first.services, first.add_chains.len(), first.flush_chains.len()), (1, 1, 0));
    assert!(applied.advance(&desired(&[("default/web", one.clone())])).is_empty());
    let second = applied.advance(&desired(&[("default/web", two)]));
    assert_eq!(second.flush_chains, ["service-default/web/tcp/80"]);
    assert!(second.add_elements.is_empty() && second.delete_elements.is_empty());
    let none = applied.advance(&desired(&[("default/web", web(&[]))]));
    assert_eq!(none.delete_chains, ["service-default/web/tcp/80"]);
    assert!(none.delete_elements.contains_key(&SetName::ServiceIps));
    assert!(none.add_elements.contains_key(&SetName::NoEndpointServices));
    let gone = applied.advance(&desired(&[]));
    assert!(gone.delete_elements.contains_key(&SetName::ClusterIps));
    assert_eq!(applied.services().len(), 0);
}

#[test]
fn a_shared_element_outlives_one_of_its_owners() {
    let rules = |name: &str| {
        let endpoints = slice(&[("10.42.0.2", "node-a", true, false)]);
        service_rules(&config(), &service(name, json!({})), &[endpoints])
    };
    let (a, b) = (rules("a"), rules("b"));
    let mut applied = Applied::default();
    let both = applied.advance(&desired(&[("default/a", a), ("default/b", b.clone())]));
    assert_eq!(both.add_elements[&SetName::Hairpin].len(), 1);
    let vip = both.add_elements[&SetName::ServiceIps].values().next().unwrap();
    assert_eq!(*vip, Data::Verdict(Verdict::Goto("service-default/a/tcp/80".to_owned())));
    let one = applied.advance(&desired(&[("default/b", b)]));
    assert!(!one.delete_elements.contains_key(&SetName::Hairpin), "the pod is still reachable by b");
    let vip = one.add_elements[&SetName::ServiceIps].values().next().unwrap();
    assert_eq!(*vip, Data::Verdict(Verdict::Goto("service-default/b/tcp/80".to_owned())));
}

#[test]
fn udp_destinations_that_went_lead_nowhere() {
    let spec = json!({"ports": [{"port": 53, "name": "http", "protocol": "UDP"}]});
    let object = json!({
        "addressType": "IPv4", "metadata": {}, "endpoints": [{"addresses": ["10.42.0.2"]}],
        "ports": [{"name": "http", "port": 53, "protocol": "UDP"}],
    });
    let slice: EndpointSlice = serde_json::from_value(object).unwrap();
    let dns = service_rules(&config(), &service("dns", spec), &[Arc::new(slice)]);
    let mut applied = Applied::default();
    let to = (Ipv4Addr::new(10, 43, 0, 1), 53);
    let changes = applied.advance(&desired(&[("default/dns", dns)]));
    assert_eq!(changes.udp.by_address[&to], BTreeSet::from([(Ipv4Addr::new(10, 42, 0, 2), 53)]));
    assert!(applied.advance(&desired(&[])).udp.by_address[&to].is_empty());
}
