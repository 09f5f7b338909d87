//! Tests that reset removes everything, and that routes to other nodes work.

mod lab;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node as NodeObject;
use knarr_network::cleanup::{CleanupConfig, cleanup};
use knarr_network::links::{Address, Links, RouteKind, in_namespace};
use knarr_network::netlink::Netlink;
use knarr_network::nft;
use knarr_network::pods::{PodNetwork, PodNetworkConfig};
use knarr_network::proxy::{ProxyConfig, ServiceProxy};
use knarr_network::routes;
use lab::{Folder, Node, Outside, pod_ref};
use serde_json::json;

fn settings() -> BTreeMap<&'static str, String> {
    ["net/ipv4/ip_forward", "net/ipv4/conf/all/send_redirects"]
        .into_iter()
        .map(|name| (name, std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap()))
        .collect()
}

#[test]
fn nothing_is_left() {
    lab::isolate();
    let before = settings();
    let node = Node::here();
    let _pods = [node.pod("a"), node.pod("b")];
    ServiceProxy::new(ProxyConfig::new("this", vec![])).unwrap().sync(&[], &[]).unwrap();
    let mut netlink = Netlink::netfilter().unwrap();
    let mut foreign = nft::Batch::new("somebody-elses");
    foreign.add_table();
    foreign.commit(&mut netlink).unwrap();
    assert_ne!(settings(), before);
    let config = CleanupConfig::new(node.folder.0.clone());
    let (removed, errors) = cleanup(&config);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(removed.len(), 8, "{removed:?}");
    assert_eq!(settings(), before);
    assert!(!node.folder.0.exists());
    assert_eq!(nft::tables(&mut netlink).unwrap(), ["somebody-elses"]);
    for family in [nft::Family::Netdev, nft::Family::Bridge] {
        assert!(nft::tables_of(&mut netlink, family).unwrap().is_empty());
    }
    let left: Vec<_> = Links::open().unwrap().list().unwrap().into_iter().map(|l| l.name).collect();
    assert_eq!(left, ["lo"]);
    let (removed, errors) = cleanup(&config);
    assert!(removed.is_empty() && errors.is_empty(), "a second time there is nothing to do");
}

/// The host outside becomes a second node.
#[test]
fn pods_of_two_nodes_reach_each_other() {
    let node = Node::new();
    let outside = Outside::new();
    let mut here = node.pod("here");
    here.serve_tcp(80);
    let folder = Folder::new();
    let other = in_namespace(&outside.host.namespace, || {
        let mut config = PodNetworkConfig::new(
            "10.42.9.0/24".parse().unwrap(),
            "10.42.0.0/16".parse().unwrap(),
            folder.0.clone(),
        );
        config.bridge = "knarr0".to_owned();
        PodNetwork::open(config).unwrap()
    })
    .unwrap();
    let namespace = lab::new_namespace();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&namespace));
    let there = other.setup_pod(&pod_ref("there"), path.as_ref(), &[]).unwrap().ips[0];
    let object = |name: &str, ip: Ipv4Addr, cidr: &str| -> Arc<NodeObject> {
        let object = json!({"metadata": {"name": name}, "spec": {"podCIDR": cidr},
                            "status": {"addresses": [{"type": "InternalIP", "address": ip}]}});
        Arc::new(serde_json::from_value(object).unwrap())
    };
    let nodes =
        [object("this", outside.node_ip, "10.42.3.0/24"), object("other", outside.host.ip, "10.42.9.0/24")];
    let cluster = "10.42.0.0/16".parse().unwrap();
    let desired = routes::sync(&mut Links::open().unwrap(), &nodes, "this", cluster).unwrap();
    assert_eq!(desired.routes.len(), 1);
    in_namespace(&outside.host.namespace, || {
        routes::sync(&mut Links::open().unwrap(), &nodes, "other", cluster).unwrap()
    })
    .unwrap();
    let answer = in_namespace(&namespace, || lab::tcp_get(here.ip, 80)).unwrap().unwrap();
    assert_eq!((answer.server.as_str(), answer.client), ("here", there), "not masqueraded");
    let count = || {
        let routes = Links::open().unwrap().routes().unwrap();
        routes.into_iter().filter(|r| r.kind == RouteKind::Node).count()
    };
    assert_eq!(count(), 1);
    routes::sync(&mut Links::open().unwrap(), &nodes[..1], "this", cluster).unwrap();
    assert_eq!(count(), 0);
}

#[test]
fn addresses_the_node_answers_on_follow_the_configuration() {
    lab::isolate();
    let folder = Folder::new();
    let addresses = |local: &[Ipv4Addr]| {
        let mut config = Node::config(&folder);
        config.local_addresses = local.to_vec();
        let network = PodNetwork::open(config).unwrap();
        let mut links = Links::open().unwrap();
        let index = links.get("knarr0").unwrap().unwrap().index;
        let mut found: Vec<_> = links
            .addresses()
            .unwrap()
            .into_iter()
            .filter(|a: &Address| a.index == index && a.ip != network.gateway())
            .map(|a| a.ip)
            .collect();
        found.sort();
        found
    };
    let (a, b) = (Ipv4Addr::new(10, 43, 0, 10), Ipv4Addr::new(10, 43, 0, 11));
    assert_eq!(addresses(&[a]), [a]);
    assert_eq!(addresses(&[b]), [b]);
    assert!(addresses(&[]).is_empty());
}
