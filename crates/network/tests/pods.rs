//! Tests of the pod network, with real traffic between namespaces.

mod lab;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use knarr_network::cidr::Ipv4Cidr;
use knarr_network::links::{Address, Links, Route, RouteKind, in_namespace};
use knarr_network::netlink::Netlink;
use knarr_network::nft;
use knarr_network::pods::{PodNetwork, PodNetworkConfig, PodNetworkError, PortMapping, host_veth_name};
use knarr_network::protocol::Protocol;
use lab::{Folder, Node, Outside, Pod, pod_ref, tcp_get, udp_get};

fn host_port(protocol: Protocol, host_port: u16, host_ip: Option<Ipv4Addr>) -> PortMapping {
    PortMapping { protocol, container_port: 80, host_port, host_ip }
}

#[test]
fn pods_reach_each_other_and_the_node() {
    let node = Node::new();
    let (mut a, mut b) = (node.pod("a"), node.pod("b"));
    assert_ne!(a.ip, b.ip);
    a.serve_tcp(80);
    b.serve_tcp(80);
    b.serve_udp(53);
    let answer = a.get(b.ip, 80).unwrap();
    assert_eq!((answer.server.as_str(), answer.client), ("b", a.ip));
    assert_eq!(a.udp_get(b.ip, 53).unwrap().client, a.ip);
    assert_eq!(a.get(a.ip, 80).unwrap().server, "a");
    assert_eq!(a.get([127, 0, 0, 1], 80).unwrap().server, "a");
    assert_eq!(tcp_get(b.ip, 80).unwrap().client, node.network.gateway());
    let listener = std::net::TcpListener::bind("0.0.0.0:8080").unwrap();
    let _server = lab::Server::tcp(listener, "node".to_owned());
    assert_eq!(a.get(node.network.gateway(), 8080).unwrap().client, a.ip);
}

#[test]
fn a_pod_set_up_twice_is_one_pod() {
    let node = Node::new();
    let a = node.pod("a");
    let again = node.network.setup_pod(&pod_ref("a"), &a.path, &[]).unwrap();
    assert_eq!(again.ips, [a.ip]);
    assert_eq!(node.network.check("sandbox-a").unwrap(), Some(again));
    assert_eq!(node.network.check("sandbox-b").unwrap(), None);
}

#[test]
fn a_sandbox_with_a_new_namespace_keeps_its_address() {
    let node = Node::new();
    let a = node.pod("a");
    let mut again = node.pod("a");
    assert_eq!(again.ip, a.ip);
    again.serve_tcp(80);
    assert_eq!(tcp_get(a.ip, 80).unwrap().server, "a");
}

#[test]
fn a_restart_takes_up_what_is_there() {
    let node = Node::new();
    let mut a = node.pod_with_ports("a", &[host_port(Protocol::Tcp, 8080, None)]);
    a.serve_tcp(80);
    let b = node.pod("b");
    let Node { network, folder } = node;
    drop(network);
    let network = PodNetwork::open(Node::config(&folder)).unwrap();
    assert_eq!(b.get(a.ip, 80).unwrap().server, "a");
    assert_eq!(b.get(network.gateway(), 8080).unwrap().server, "a");
    let live = BTreeSet::from(["sandbox-a".to_owned()]);
    assert_eq!(network.retain(&live).unwrap(), ["sandbox-b"]);
    assert!(Links::open().unwrap().get(&host_veth_name("sandbox-b")).unwrap().is_none());
    assert!(network.check("sandbox-a").unwrap().is_some());
}

#[test]
fn teardown_frees_everything() {
    let node = Node::new();
    let a = node.pod_with_ports("a", &[host_port(Protocol::Tcp, 8080, None)]);
    node.network.teardown_pod("sandbox-a").unwrap();
    node.network.teardown_pod("sandbox-a").unwrap();
    node.network.teardown_pod("never-there").unwrap();
    assert!(a.run(|| Links::open().unwrap().get("eth0").unwrap()).is_none());
    assert!(tcp_get(node.network.gateway(), 8080).is_err());
    let next = node.pod_with_ports("next", &[host_port(Protocol::Tcp, 8080, None)]);
    assert_ne!(next.ip, a.ip, "a freed address rests");
}

#[test]
fn a_failed_setup_leaves_nothing() {
    let node = Node::new();
    let missing = std::path::Path::new("/proc/self/fd/99999");
    assert!(node.network.setup_pod(&pod_ref("a"), missing, &[]).is_err());
    let no_namespace = std::path::Path::new("/proc/self/status");
    assert!(node.network.setup_pod(&pod_ref("a"), no_namespace, &[]).is_err());
    assert_eq!(node.network.check("sandbox-a").unwrap(), None);
    let ports = Links::open().unwrap().list().unwrap().into_iter().filter(|l| l.master.is_some()).count();
    assert_eq!(ports, 0);
}

#[test]
fn host_ports_lead_to_the_pod() {
    lab::in_both_bridge_modes(host_ports);
}

fn host_ports(node: Node) {
    let outside = Outside::new();
    let mut a = node.pod_with_ports(
        "a",
        &[
            host_port(Protocol::Tcp, 8080, None),
            host_port(Protocol::Udp, 8080, None),
            host_port(Protocol::Tcp, 8081, Some(outside.node_ip)),
        ],
    );
    a.serve_tcp(80);
    a.serve_udp(80);
    let b = node.pod("b");
    let from_outside = outside.host.get(outside.node_ip, 8080).unwrap();
    assert_eq!((from_outside.server.as_str(), from_outside.client), ("a", outside.host.ip));
    assert_eq!(outside.host.udp_get(outside.node_ip, 8080).unwrap().server, "a");
    assert_eq!(outside.host.get(outside.node_ip, 8081).unwrap().server, "a");
    assert_eq!(b.get(outside.node_ip, 8080).unwrap().client, b.ip);
    assert_eq!(a.get(outside.node_ip, 8080).unwrap().server, "a", "hairpin");
    assert_eq!(tcp_get(outside.node_ip, 8080).unwrap().server, "a", "from the node itself");
    assert!(tcp_get(node.network.gateway(), 8081).is_err(), "bound to one address");
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    assert_eq!(udp_get(&socket, outside.node_ip, 8080).unwrap().server, "a");

    let namespace = lab::new_namespace();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&namespace));
    let taken = node.network.setup_pod(
        &pod_ref("c"),
        std::path::Path::new(&path),
        &[host_port(Protocol::Tcp, 8080, None)],
    );
    assert!(matches!(taken, Err(PodNetworkError::HostPortInUse { port: 8080, .. })));
    assert_eq!(node.network.check("sandbox-c").unwrap(), None);
}

/// A pod with such host ports would answer in place of the node's DNS and kubelet.
#[test]
fn ports_of_the_node_are_not_taken() {
    lab::isolate();
    let folder = Folder::new();
    let mut config = Node::config(&folder);
    let dns = Ipv4Addr::new(10, 43, 0, 10);
    config.local_addresses = vec![dns];
    config.reserved_ports = vec![10250];
    let node = Node { network: PodNetwork::open(config).unwrap(), folder };
    let of_node = |ip: Ipv4Addr, port| {
        lab::Server::udp(std::net::UdpSocket::bind((ip, port)).unwrap(), "node".to_owned())
    };
    let _dns = of_node(dns, 53);
    let local = Ipv4Addr::new(127, 0, 0, 53);
    let _local = of_node(local, 53);
    let listener = std::net::TcpListener::bind("0.0.0.0:9000").unwrap();

    let mut a = node.pod_with_ports("a", &[host_port(Protocol::Udp, 53, None)]);
    a.serve_udp(80);
    let b = node.pod("b");
    assert_eq!(b.udp_get(node.network.gateway(), 53).unwrap().server, "a", "the host port works");
    assert_eq!(b.udp_get(dns, 53).unwrap().server, "node");
    let asked = |ip| udp_get(&std::net::UdpSocket::bind("0.0.0.0:0").unwrap(), ip, 53).unwrap().server;
    assert_eq!((asked(dns).as_str(), asked(local).as_str()), ("node", "node"));
    assert_eq!(asked(Ipv4Addr::LOCALHOST), "a");

    let namespace = lab::new_namespace();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&namespace));
    let refused = |port: PortMapping| {
        let result = node.network.setup_pod(&pod_ref("c"), std::path::Path::new(&path), &[port]);
        result.map(drop).map_err(|error| error.to_string())
    };
    for port in [
        host_port(Protocol::Tcp, 10250, None),
        host_port(Protocol::Tcp, 9000, None),
        host_port(Protocol::Tcp, 9000, Some(node.network.gateway())),
        host_port(Protocol::Udp, 53, Some(dns)),
    ] {
        let wanted = format!("host port {}/{} is in use by the node itself", port.host_port, port.protocol);
        assert_eq!(refused(port), Err(wanted));
    }
    drop(listener);
    refused(host_port(Protocol::Tcp, 9000, None)).unwrap();
}

/// Other programs occasionally flush all tables.
#[test]
fn flushed_tables_come_back_with_the_next_pod() {
    let node = Node::new();
    let mut a = node.pod_with_ports("a", &[host_port(Protocol::Tcp, 8080, None)]);
    a.serve_tcp(80);
    let flush = || {
        let mut netlink = Netlink::netfilter().unwrap();
        let mut batch = nft::Batch::of(nft::Family::Ip, "knarr-pods");
        batch.delete_table();
        for family in [nft::Family::Netdev, nft::Family::Bridge] {
            batch.switch(family);
            batch.delete_table();
        }
        batch.commit(&mut netlink).unwrap();
    };
    let reached = || tcp_get(node.network.gateway(), 8080).map(|answer| answer.server).ok();
    let works = Some("a".to_owned());
    flush();
    assert_eq!(reached(), None);
    let _without_ports = node.pod("b");
    assert_eq!(reached(), works);
    flush();
    let mut with_ports = node.pod_with_ports("c", &[host_port(Protocol::Tcp, 8081, None)]);
    with_ports.serve_tcp(80);
    assert_eq!(reached(), works);
    assert_eq!(tcp_get(node.network.gateway(), 8081).unwrap().server, "c");
    flush();
    node.network.teardown_pod("sandbox-c").unwrap();
    assert_eq!(reached(), works);
    assert!(tcp_get(node.network.gateway(), 8081).is_err());
}

#[test]
fn only_traffic_to_the_outside_is_masqueraded() {
    let node = Node::new();
    let mut outside = Outside::new();
    outside.host.serve_tcp(80);
    let a: Pod = node.pod("a");
    assert_eq!(a.get(outside.host.ip, 80).unwrap().client, outside.node_ip);
}

#[test]
fn what_is_set_is_what_is_listed() {
    let node = Node::new();
    let a = node.pod_with_ports("a", &[host_port(Protocol::Tcp, 8080, None)]);
    let mut netlink = Netlink::netfilter().unwrap();
    assert_eq!(nft::tables(&mut netlink).unwrap(), ["knarr-pods"]);
    let listing = nft::list_table(&mut netlink, "knarr-pods").unwrap().unwrap();
    assert_eq!(listing.chains["postrouting"].rules, 3, "to the outside, to itself, from loopback");
    let elements = nft::elements(&mut netlink, "knarr-pods", "host-ports").unwrap();
    assert_eq!(elements.len(), 1);
    assert_eq!(elements[0].key, nft::key::proto_port(6, 8080));
    assert_eq!(elements[0].data, nft::Data::Value(nft::key::addr_port(a.ip, 80)));
    assert!(nft::list_table(&mut netlink, "nobody").unwrap().is_none());
}

#[test]
fn devices_carry_the_mtu_and_loopback_is_up() {
    let node = Node::new();
    let a = node.pod("a");
    let links = in_namespace(&a.namespace, || Links::open().unwrap().list().unwrap()).unwrap();
    assert!(links.iter().all(|link| link.up), "{links:?}");
    assert_eq!(links.iter().find(|l| l.name == "eth0").unwrap().mtu, node.network.mtu());
}

/// Not a test of correctness: prints the cost of one pod.
#[test]
fn setup_is_quick() {
    let node = Node::new();
    let namespaces: Vec<_> = (0..30).map(|_| lab::new_namespace()).collect();
    let mut times = Vec::new();
    for (number, namespace) in namespaces.iter().enumerate() {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(namespace));
        let start = std::time::Instant::now();
        node.network.setup_pod(&pod_ref(&number.to_string()), path.as_ref(), &[]).unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    println!("setup of a pod: median {:?}, slowest {:?}", times[times.len() / 2], times[times.len() - 1]);
    let start = std::time::Instant::now();
    node.network.teardown_pod("sandbox-0").unwrap();
    println!("teardown of a pod: {:?}", start.elapsed());
}

/// The address of a cloud's metadata service.
const METADATA: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// Creates pods on a node whose cloud answers at [`METADATA`], on the ports of HTTP and DNS.
fn cloud(config: impl FnOnce(&mut PodNetworkConfig)) -> (Node, Outside) {
    lab::isolate();
    let folder = Folder::new();
    let mut own = Node::config(&folder);
    config(&mut own);
    let node = Node { network: PodNetwork::open(own).unwrap(), folder };
    let mut outside = Outside::new();
    outside.host.run(|| {
        let mut links = Links::open().unwrap();
        let index = links.get("eth0").unwrap().unwrap().index;
        links.add_address(Address { index, ip: METADATA, prefix_len: 32 }).unwrap();
    });
    let route = Route {
        destination: Ipv4Cidr::new(METADATA, 32),
        gateway: Some(outside.host.ip),
        device: None,
        source: None,
        kind: RouteKind::STATIC,
    };
    Links::open().unwrap().replace_route(route).unwrap();
    outside.host.serve_tcp(80);
    outside.host.serve_tcp(53);
    for port in [80, 53] {
        outside.host.serve_udp_at(METADATA, port);
    }
    (node, outside)
}

#[test]
fn pods_do_not_reach_the_metadata_of_the_machine() {
    let (node, outside) = cloud(|_| {});
    let a = node.pod("a");
    let refused = a.get(METADATA, 80).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::HostUnreachable, "at once: {refused}");
    assert!(a.udp_get(METADATA, 80).is_err());
    assert_eq!(a.get(METADATA, 53).unwrap().server, "outside", "some clouds have their resolver there");
    assert_eq!(a.udp_get(METADATA, 53).unwrap().server, "outside");
    assert_eq!(a.get(outside.host.ip, 80).unwrap().server, "outside");
    assert_eq!(tcp_get(METADATA, 80).unwrap().server, "outside", "the node does");
}

#[test]
fn what_the_node_answers_at_such_addresses_is_reached() {
    let (node, _outside) = cloud(|_| {});
    let a = node.pod("a");
    let mut links = Links::open().unwrap();
    let index = links.get("lo").unwrap().unwrap().index;
    let dns_cache = Ipv4Addr::new(169, 254, 20, 10);
    links.add_address(Address { index, ip: dns_cache, prefix_len: 32 }).unwrap();
    let listener = std::net::TcpListener::bind((dns_cache, 8080)).unwrap();
    let _server = lab::Server::tcp(listener, "node".to_owned());
    assert_eq!(a.get(dns_cache, 8080).unwrap().client, a.ip);
}

#[test]
fn blocked_destinations_follow_the_configuration() {
    let (node, outside) = cloud(|config| config.blocked_destinations.clear());
    let (mut a, b) = (node.pod("a"), node.pod("b"));
    a.serve_tcp(80);
    assert_eq!(a.get(METADATA, 80).unwrap().server, "outside");
    assert_eq!(a.udp_get(METADATA, 80).unwrap().server, "outside");
    let Node { network, folder } = node;
    drop(network);
    let mut config = Node::config(&folder);
    config.blocked_destinations = vec![Ipv4Cidr::new(outside.host.ip, 32), "10.0.0.0/8".parse().unwrap()];
    let _network = PodNetwork::open(config).unwrap();
    assert!(a.get(outside.host.ip, 80).is_err());
    assert_eq!(a.get(METADATA, 80).unwrap().server, "outside");
    assert_eq!(b.get(a.ip, 80).unwrap().server, "a", "pods are not blocked");
}
