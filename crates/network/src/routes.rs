//! Routes to the pods of other nodes, for nodes that share a link: each node is the gateway to its own pod CIDR.
//!
//! A node may write anything into its own Node object. So a route is set only for pod addresses that no other
//! node has: a node cannot attract traffic that is not for its own pods.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use knarr_client::Informers;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::cidr::Ipv4Cidr;
use crate::links::{Address, Links, Route, RouteKind};
use crate::netlink::NetlinkError;

const RETRY: Duration = Duration::from_secs(5);
/// Node status changes every few seconds and rarely affects routes.
const GATHER: Duration = Duration::from_millis(100);

/// The label of nodes that only simulate pods.
const SIMULATED: &str = "knarr.dev/simulated";

/// Gateways by pod CIDR, and the nodes that cannot be reached by routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredRoutes {
    pub routes: BTreeMap<Ipv4Cidr, Ipv4Addr>,
    /// Names of nodes whose address is not on a link of this node.
    pub off_link: Vec<String>,
    /// Pod CIDRs that are not routed, with the names of the nodes that have them.
    pub refused: Vec<(String, Ipv4Cidr)>,
}

/// Returns the routes that this node should have. `addresses` are its own; a gateway must be inside the prefix
/// of one of them. Pod CIDRs must be inside `cluster`; if two overlap, this node's own has precedence, then
/// that of the older node.
pub fn desired_routes(
    nodes: &[Arc<Node>],
    this: &str,
    cluster: Ipv4Cidr,
    addresses: &[Address],
) -> DesiredRoutes {
    let mut desired = DesiredRoutes::default();
    let (own, mut others): (Vec<_>, Vec<_>) = nodes.iter().partition(|n| name(n) == this);
    others.sort_by_key(|n| (n.metadata.creation_timestamp.as_ref().map(|t| t.0), name(n)));
    let mut taken: Vec<Ipv4Cidr> = own.into_iter().flat_map(|n| pod_cidrs(n)).collect();
    for node in others {
        let gateway = internal_ip(node).filter(|_| !is_simulated(node));
        for cidr in pod_cidrs(node) {
            if !cluster.covers(&cidr) || taken.iter().any(|other| other.overlaps(&cidr)) {
                desired.refused.push((name(node).to_owned(), cidr));
                continue;
            }
            taken.push(cidr);
            let Some(gateway) = gateway else { continue };
            if is_on_link(gateway, cluster, addresses) {
                desired.routes.insert(cidr, gateway);
            } else if !desired.off_link.iter().any(|n| n == name(node)) {
                desired.off_link.push(name(node).to_owned());
            }
        }
    }
    desired
}

/// Returns whether the address belongs to another machine on one of the links.
fn is_on_link(gateway: Ipv4Addr, cluster: Ipv4Cidr, addresses: &[Address]) -> bool {
    !cluster.contains(gateway)
        && addresses.iter().all(|a| a.ip != gateway)
        && addresses.iter().any(|a| a.prefix_len < 32 && Ipv4Cidr::new(a.ip, a.prefix_len).contains(gateway))
}

/// Returns the routes to set and those to delete, given the existing routes to nodes.
pub fn plan(desired: &BTreeMap<Ipv4Cidr, Ipv4Addr>, existing: &[Route]) -> (Vec<Route>, Vec<Route>) {
    let existing: BTreeMap<Ipv4Cidr, &Route> =
        existing.iter().filter(|r| r.kind == RouteKind::Node).map(|r| (r.destination, r)).collect();
    let set = desired
        .iter()
        .filter(|(cidr, gateway)| existing.get(cidr).is_none_or(|r| r.gateway != Some(**gateway)))
        .map(|(cidr, gateway)| Route {
            destination: *cidr,
            gateway: Some(*gateway),
            device: None,
            source: None,
            kind: RouteKind::Node,
        })
        .collect();
    let delete = existing.iter().filter(|(cidr, _)| !desired.contains_key(cidr)).map(|(_, r)| **r).collect();
    (set, delete)
}

/// Sets and deletes routes until they are as desired; returns the desired routes.
pub fn sync(
    links: &mut Links,
    nodes: &[Arc<Node>],
    this: &str,
    cluster: Ipv4Cidr,
) -> Result<DesiredRoutes, NetlinkError> {
    let desired = desired_routes(nodes, this, cluster, &links.addresses()?);
    let (set, delete) = plan(&desired.routes, &links.routes()?);
    for route in delete {
        links.delete_route(route)?;
    }
    for route in set {
        links.replace_route(route)?;
    }
    Ok(desired)
}

/// Logs the error with its causes. A separate function, because a borrowed error must not live across an await.
fn report(error: &NetlinkError) {
    let error: &dyn std::error::Error = error;
    tracing::error!(error, "routes to other nodes are not in place");
}

/// Keeps the routes up to date with the cluster's nodes until `stop`. The routes stay afterwards, because pods
/// keep running while the node's agent restarts.
pub async fn run(
    informers: &Informers,
    this: &str,
    cluster: Ipv4Cidr,
    stop: CancellationToken,
) -> Result<(), NetlinkError> {
    let mut links = Links::open()?;
    let nodes = informers.informer::<Node>();
    if !nodes.wait_synced().await {
        return Ok(());
    }
    let changed = Arc::new(Notify::new());
    let notify = changed.clone();
    nodes.add_handler(move |_| notify.notify_one());
    changed.notify_one();
    let lister = nodes.lister();
    let mut reported = (Vec::new(), Vec::new());
    while stop.run_until_cancelled(changed.notified()).await.is_some() {
        match sync(&mut links, &lister.list(), this, cluster) {
            Ok(desired) => {
                if desired.off_link != reported.0 && !desired.off_link.is_empty() {
                    tracing::warn!(nodes = ?desired.off_link, "no common link: pods of these nodes are unreachable");
                }
                if desired.refused != reported.1 && !desired.refused.is_empty() {
                    let refused: Vec<_> = desired.refused.iter().map(|(n, c)| format!("{n} {c}")).collect();
                    tracing::warn!(
                        nodes = ?refused,
                        %cluster,
                        "no route to pod CIDRs outside of the cluster's or taken by another node"
                    );
                }
                reported = (desired.off_link, desired.refused);
            }
            Err(error) => {
                report(&error);
                changed.notify_one();
                tokio::time::sleep(RETRY).await;
            }
        }
        tokio::time::sleep(GATHER).await;
    }
    Ok(())
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// Returns whether the node's pods are simulated, so that no address of them can be reached.
fn is_simulated(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|l| l.contains_key(SIMULATED))
}

fn internal_ip(node: &Node) -> Option<Ipv4Addr> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    addresses.iter().filter(|a| a.type_ == "InternalIP").find_map(|a| a.address.parse().ok())
}

fn pod_cidrs(node: &Node) -> Vec<Ipv4Cidr> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let texts = match spec.pod_cidrs.as_deref() {
        Some([]) | None => spec.pod_cidr.as_slice(),
        Some(cidrs) => cidrs,
    };
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, ip: &str, cidr: &str) -> Arc<Node> {
        let object = json!({
            "metadata": {"name": name}, "spec": {"podCIDR": cidr},
            "status": {"addresses": [{"type": "InternalIP", "address": ip}]},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn cidr(text: &str) -> Ipv4Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn every_other_node_on_the_link_is_a_gateway() {
        let nodes = [
            node("a", "192.0.2.1", "10.42.0.0/24"),
            node("b", "192.0.2.2", "10.42.1.0/24"),
            node("far", "198.51.100.1", "10.42.2.0/24"),
            node("new", "192.0.2.9", ""),
        ];
        let addresses = [Address { index: 2, ip: Ipv4Addr::new(192, 0, 2, 1), prefix_len: 24 }];
        let desired = desired_routes(&nodes, "a", cidr("10.42.0.0/16"), &addresses);
        let gateway = Ipv4Addr::new(192, 0, 2, 2);
        assert_eq!(desired.routes, BTreeMap::from([(cidr("10.42.1.0/24"), gateway)]));
        assert_eq!(desired.off_link, ["far"]);
    }

    #[test]
    fn a_node_gets_no_traffic_but_that_of_its_own_pods() {
        let addresses = [
            Address { index: 2, ip: Ipv4Addr::new(192, 0, 2, 1), prefix_len: 24 },
            Address { index: 3, ip: Ipv4Addr::new(10, 42, 0, 1), prefix_len: 24 },
        ];
        let aged = |mut node: Arc<Node>, second: i64| {
            let time = k8s_openapi::jiff::Timestamp::from_second(second).unwrap();
            Arc::make_mut(&mut node).metadata.creation_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time));
            node
        };
        let own = aged(node("this", "192.0.2.1", "10.42.0.0/24"), 50);
        let good = aged(node("good", "192.0.2.2", "10.42.1.0/24"), 10);
        let good_route = (cidr("10.42.1.0/24"), Ipv4Addr::new(192, 0, 2, 2));
        for (what, claimed, ip, age, routed) in [
            ("its own part", "10.42.2.0/24", "192.0.2.3", 20, true),
            ("everything", "0.0.0.0/0", "192.0.2.3", 1, false),
            ("services", "10.43.0.0/24", "192.0.2.3", 1, false),
            ("more than the cluster", "10.0.0.0/8", "192.0.2.3", 1, false),
            ("the whole cluster", "10.42.0.0/16", "192.0.2.3", 1, false),
            ("part of this node's", "10.42.0.128/25", "192.0.2.3", 1, false),
            ("an older node's", "10.42.1.0/24", "192.0.2.3", 20, false),
            ("part of an older node's", "10.42.1.0/25", "192.0.2.3", 20, false),
            ("a gateway elsewhere", "10.42.2.0/24", "198.51.100.1", 20, false),
            ("this node as gateway", "10.42.2.0/24", "192.0.2.1", 20, false),
            ("a pod as gateway", "10.42.2.0/24", "10.42.0.7", 20, false),
        ] {
            let bad = aged(node("bad", ip, claimed), age);
            let nodes = [bad, Arc::clone(&own), Arc::clone(&good)];
            let desired = desired_routes(&nodes, "this", cidr("10.42.0.0/16"), &addresses);
            let mut expected = BTreeMap::from([good_route]);
            if routed {
                expected.insert(cidr(claimed), ip.parse().unwrap());
            }
            assert_eq!(desired.routes, expected, "{what}");
            assert_eq!(desired.refused.is_empty() && desired.off_link.is_empty(), routed, "{what}");
        }
        // Of two nodes with the same pod CIDR, the older one has precedence.
        let (old, new) = (
            aged(node("z", "192.0.2.8", "10.42.5.0/24"), 1),
            aged(node("b", "192.0.2.9", "10.42.5.0/24"), 2),
        );
        let desired = desired_routes(&[new, old], "this", cidr("10.42.0.0/16"), &addresses);
        assert_eq!(desired.routes.values().collect::<Vec<_>>(), [&Ipv4Addr::new(192, 0, 2, 8)]);
        assert_eq!(desired.refused, [("b".to_owned(), cidr("10.42.5.0/24"))]);
    }

    #[test]
    fn only_routes_to_nodes_are_deleted() {
        let route = |destination, gateway, kind| Route {
            destination: cidr(destination),
            gateway: Some(Ipv4Addr::new(192, 0, 2, gateway)),
            device: Some(2),
            source: None,
            kind,
        };
        let existing = [
            route("10.42.1.0/24", 2, RouteKind::Node),
            route("10.42.2.0/24", 3, RouteKind::Node),
            route("10.42.3.0/24", 4, RouteKind::Node),
            route("10.9.0.0/16", 1, RouteKind::STATIC),
        ];
        let desired = BTreeMap::from([
            (cidr("10.42.1.0/24"), Ipv4Addr::new(192, 0, 2, 2)),
            (cidr("10.42.2.0/24"), Ipv4Addr::new(192, 0, 2, 7)),
        ]);
        let (set, delete) = plan(&desired, &existing);
        assert_eq!(set.iter().map(|r| r.destination).collect::<Vec<_>>(), [cidr("10.42.2.0/24")]);
        assert_eq!(delete.iter().map(|r| r.destination).collect::<Vec<_>>(), [cidr("10.42.3.0/24")]);
    }
}
