//! Tests that a pod that writes its own frames cannot impersonate another pod or the node.

mod lab;

use std::net::{Ipv4Addr, UdpSocket};

use knarr_network::cidr::Ipv4Cidr;
use knarr_network::links::{Address, Links, Mac, Route, RouteKind, gateway_mac};
use knarr_network::netlink::Netlink;
use knarr_network::nft::{Batch, Family, chains_of};
use knarr_network::pods::{PodNetwork, host_veth_name};
use lab::frames::{BROADCAST, LLDP, PacketSocket, arp, arp_question, ethernet, holds, ipv6, udp};
use lab::{Node, Pod, pod_ref};

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const EVERYBODY: (Ipv4Addr, u16) = (Ipv4Addr::BROADCAST, 9);

/// Returns frames of `pod` with false senders, each with a name that is also a marker in the frame.
fn forged(pod: &Pod, victim: &Pod, gateway: Ipv4Addr) -> Vec<(&'static str, Vec<u8>)> {
    let (own, theirs, node) = (gateway_mac(pod.ip), gateway_mac(victim.ip), gateway_mac(gateway));
    let from_ip = |name: &'static str, mac: Mac, ip: Ipv4Addr| {
        (name, ethernet(BROADCAST, mac, IPV4, &udp((ip, 9), EVERYBODY, name.as_bytes())))
    };
    let from_arp = |name: &'static str, mac: Mac, sender: (Mac, Ipv4Addr)| {
        (name, ethernet(BROADCAST, mac, ARP, &arp(sender, name.as_bytes())))
    };
    let honest = |name: &str| udp((pod.ip, 9), EVERYBODY, name.as_bytes());
    let tagged = |name: &'static str, tag: u16| {
        let payload = [&[0, 7, 8, 0][..], &honest(name)].concat();
        (name, ethernet(BROADCAST, own, tag, &payload))
    };
    let other_type =
        |name: &'static str, ethertype: u16| (name, ethernet(BROADCAST, own, ethertype, &honest(name)));
    let token_ring_arp = {
        let mut arp = arp((own, pod.ip), b"<hardware of another type>");
        arp[1] = 4;
        ("<hardware of another type>", ethernet(BROADCAST, own, ARP, &arp))
    };
    let dhcp = udp((pod.ip, 67), (Ipv4Addr::BROADCAST, 68), b"<dhcp answer>");
    vec![
        from_ip("<the victim's ip>", own, victim.ip),
        from_ip("<the victim's ip and mac>", theirs, victim.ip),
        from_ip("<the victim's mac>", theirs, pod.ip),
        from_ip("<the gateway's ip>", own, gateway),
        from_ip("<the gateway's ip and mac>", node, gateway),
        from_ip("<loopback>", own, Ipv4Addr::LOCALHOST),
        from_ip("<no ip>", own, Ipv4Addr::UNSPECIFIED),
        from_arp("<arp: the victim's ip>", own, (own, victim.ip)),
        from_arp("<arp: the victim>", theirs, (theirs, victim.ip)),
        from_arp("<arp: the victim's mac>", own, (theirs, pod.ip)),
        from_arp("<arp: own words, the victim's frame>", theirs, (own, pod.ip)),
        from_arp("<arp: the gateway's ip>", own, (own, gateway)),
        token_ring_arp,
        tagged("<vlan>", 0x8100),
        tagged("<provider vlan>", 0x88a8),
        ("<ipv6>", ethernet(BROADCAST, own, 0x86dd, &ipv6(b"<ipv6>"))),
        other_type("<pppoe>", 0x8864),
        other_type("<mpls>", 0x8847),
        other_type("<lldp>", 0x88cc),
        ("<dhcp answer>", ethernet(BROADCAST, own, IPV4, &dhcp)),
    ]
}

/// Returns which of the frames that `pod` sends reach the victim or the node.
fn arriving(node_gateway: Ipv4Addr, pod: &Pod, victim: &Pod) -> Vec<&'static str> {
    let mut at_victim = victim.run(|| PacketSocket::on("eth0"));
    let mut at_node = PacketSocket::on("knarr0");
    let frames = forged(pod, victim, node_gateway);
    let own = gateway_mac(pod.ip);
    let last = "<honest ip>";
    let honest = [
        ("<honest arp>", ethernet(BROADCAST, own, ARP, &arp((own, pod.ip), b"<honest arp>"))),
        (last, ethernet(BROADCAST, own, IPV4, &udp((pod.ip, 9), EVERYBODY, last.as_bytes()))),
    ];
    let mut socket = pod.run(|| PacketSocket::on("eth0"));
    for (_, frame) in frames.iter().chain(&honest) {
        socket.send(frame);
    }
    let seen = [at_victim.until(last.as_bytes()), at_node.until(last.as_bytes())];
    let arrives = |name: &str, at: &[Vec<u8>]| at.iter().any(|frame| holds(frame, name.as_bytes()));
    for (name, _) in &honest {
        assert!(seen.iter().all(|at| arrives(name, at)), "{name} arrives everywhere");
    }
    let names = frames.iter().map(|(name, _)| *name);
    names.filter(|name| seen.iter().any(|at| arrives(name, at))).collect()
}

const NOTHING: [&str; 0] = [];

#[test]
fn frames_with_foreign_addresses_are_dropped() {
    lab::in_both_bridge_modes(|node| {
        let (hostile, victim) = (node.pod("hostile"), node.pod("victim"));
        assert_eq!(arriving(node.network.gateway(), &hostile, &victim), NOTHING);
    });
}

/// The kernel passes frames to LLDP's group address around the bridge's own rules.
#[test]
fn no_group_address_leads_past_the_rules() {
    let node = Node::new();
    let (hostile, victim) = (node.pod("hostile"), node.pod("victim"));
    let gateway = node.network.gateway();
    let server = UdpSocket::bind((gateway, 9)).unwrap();
    server.set_read_timeout(Some(lab::TIMEOUT)).unwrap();
    let mut socket = hostile.run(|| PacketSocket::on("eth0"));
    let own = gateway_mac(hostile.ip);
    let to = (gateway, 9);
    let forged = udp((victim.ip, 9), to, b"forged");
    socket.send(&ethernet(LLDP, own, IPV4, &forged));
    socket.send(&ethernet(LLDP, gateway_mac(victim.ip), IPV4, &forged));
    socket.send(&ethernet(gateway_mac(gateway), own, IPV4, &udp((hostile.ip, 9), to, b"honest")));
    let mut buffer = [0; 64];
    let length = server.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"honest");
}

#[test]
fn rules_outlive_the_server_and_go_with_the_pod() {
    let node = Node::new();
    let (hostile, victim, other) = (node.pod("hostile"), node.pod("victim"), node.pod("other"));
    let gateway = node.network.gateway();
    let chains = || {
        let mut netlink = Netlink::netfilter().unwrap();
        let mut chains = chains_of(&mut netlink, Family::Netdev, "knarr-pods").unwrap();
        chains.sort();
        chains
    };
    let of = |pods: &[&str]| {
        let mut names: Vec<_> = pods.iter().map(|p| host_veth_name(&format!("sandbox-{p}"))).collect();
        names.sort();
        names
    };
    assert_eq!(chains(), of(&["hostile", "victim", "other"]));
    let Node { network, folder } = node;
    drop(network);
    assert_eq!(arriving(gateway, &hostile, &victim), NOTHING, "without the server");
    let network = PodNetwork::open(Node::config(&folder)).unwrap();
    assert_eq!(network.weakness(), None);
    assert_eq!(arriving(gateway, &hostile, &victim), NOTHING, "after the restart");
    drop(other);
    network.teardown_pod("sandbox-other").unwrap();
    assert_eq!(chains(), of(&["hostile", "victim"]));
    // The sandbox's process, and the device with it, may have ended before the network is opened again.
    Links::open().unwrap().delete(&host_veth_name("sandbox-victim")).unwrap();
    drop(network);
    let network = PodNetwork::open(Node::config(&folder)).unwrap();
    assert_eq!(chains(), of(&["hostile"]));
    network.setup_pod(&pod_ref("victim"), &victim.path, &[]).unwrap();
    assert_eq!(arriving(gateway, &hostile, &victim), NOTHING, "after the repair");
    assert_eq!(arriving(gateway, &victim, &hostile), NOTHING, "after the repair");
}

fn flush() {
    let mut batch = Batch::of(Family::Netdev, "knarr-pods");
    batch.delete_table();
    batch.switch(Family::Bridge);
    batch.delete_table();
    batch.commit(&mut Netlink::netfilter().unwrap()).unwrap();
}

/// Corresponds to `ip address add` in a pod with `NET_ADMIN`.
#[test]
fn an_address_that_a_pod_gives_itself_does_not_work() {
    let node = Node::new();
    let (hostile, mut other) = (node.pod("hostile"), node.pod("other"));
    other.serve_tcp(80);
    let gateway = node.network.gateway();
    let foreign = Ipv4Addr::new(10, 42, 3, 254);
    let from = |ip: Ipv4Addr| {
        hostile.run(|| {
            let mut links = Links::open().unwrap();
            let index = links.get("eth0").unwrap().unwrap().index;
            links.add_address(Address { index, ip, prefix_len: 32 }).unwrap();
            let route = Route {
                destination: Ipv4Cidr::new(Ipv4Addr::UNSPECIFIED, 0),
                gateway: Some(gateway),
                device: Some(index),
                source: Some(ip),
                kind: RouteKind::STATIC,
            };
            links.replace_route(route).unwrap();
        });
        hostile.get(other.ip, 80)
    };
    assert!(from(foreign).is_err());
    assert_eq!(from(hostile.ip).unwrap().client, hostile.ip);
    flush();
    assert_eq!(from(foreign).unwrap().client, foreign, "it is the rules that keep it");
}

/// Other programs occasionally flush all tables.
#[test]
fn flushed_tables_come_back_with_the_next_pod() {
    let node = Node::new();
    let (hostile, victim) = (node.pod("hostile"), node.pod("victim"));
    let gateway = node.network.gateway();
    flush();
    let seen = arriving(gateway, &hostile, &victim);
    assert_eq!(
        seen.len(),
        forged(&hostile, &victim, gateway).len(),
        "the test sees what is not dropped: {seen:?}"
    );
    let _next = node.pod("next");
    assert_eq!(arriving(gateway, &hostile, &victim), NOTHING);
    assert_eq!(arriving(gateway, &victim, &hostile), NOTHING);
}

/// Removes the rules of a pod's device, to simulate frames that skip them: those from an ifb device in the pod.
fn skip_device_rules(pod: &Pod) {
    let mut batch = Batch::of(Family::Netdev, "knarr-pods");
    batch.delete_chain(&host_veth_name(&format!("sandbox-{}", pod.name)));
    batch.commit(&mut Netlink::netfilter().unwrap()).unwrap();
}

#[test]
fn the_bridge_takes_only_what_a_device_has_checked() {
    let node = Node::new();
    let (hostile, victim) = (node.pod("hostile"), node.pod("victim"));
    let gateway = node.network.gateway();
    skip_device_rules(&hostile);
    let mut at_node = PacketSocket::on("knarr0");
    let mut socket = hostile.run(|| PacketSocket::on("eth0").mark(*b"knv\x01"));
    let frames = forged(&hostile, &victim, gateway);
    for (_, frame) in &frames {
        socket.send(frame);
    }
    let last = ethernet(BROADCAST, gateway_mac(victim.ip), IPV4, &udp((victim.ip, 9), EVERYBODY, b"<last>"));
    victim.run(|| PacketSocket::on("eth0")).send(&last);
    let seen = at_node.until(b"<last>");
    for (name, _) in frames {
        assert!(!seen.iter().any(|frame| holds(frame, name.as_bytes())), "{name}");
    }
}

#[test]
fn nothing_is_learned_or_taken_from_what_skips_all_rules_of_frames() {
    let node = Node::new();
    let (hostile, victim) = (node.pod("hostile"), node.pod("victim"));
    let gateway = node.network.gateway();
    let at_victim = victim.run(|| UdpSocket::bind((victim.ip, 9)).unwrap());
    at_victim.set_read_timeout(Some(lab::TIMEOUT)).unwrap();
    let at_node = UdpSocket::bind((gateway, 9)).unwrap();
    at_node.set_read_timeout(Some(lab::TIMEOUT)).unwrap();
    let mut buffer = [0; 64];
    // The node learns the victim's hardware address.
    at_node.send_to(b"first", (victim.ip, 9)).unwrap();
    assert_eq!(at_victim.recv(&mut buffer).unwrap(), 5);
    skip_device_rules(&hostile);
    let forged = udp((victim.ip, 9), (gateway, 9), b"forged");
    let frame = ethernet(LLDP, gateway_mac(victim.ip), IPV4, &forged);
    let mut socket = hostile.run(|| PacketSocket::on("eth0"));
    socket.send(&frame);
    // Frames that are not IP packets reach the host on the same path.
    let stranger = Ipv4Addr::from(u32::from(gateway) + 200);
    let question = arp_question((gateway_mac(stranger), stranger), gateway);
    for last in 0..16 {
        let group = [0x01, 0x80, 0xc2, 0, 0, last];
        socket.send(&ethernet(group, gateway_mac(stranger), ARP, &question));
    }
    at_node.send_to(b"second", (victim.ip, 9)).unwrap();
    assert_eq!(at_victim.recv(&mut buffer).unwrap(), 6, "the bridge still knows where the victim is");
    at_victim.send_to(b"honest", (gateway, 9)).unwrap();
    let length = at_node.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"honest");
    let known = std::process::Command::new("ip").args(["-4", "neighbour", "show"]).output().unwrap();
    let known = String::from_utf8_lossy(&known.stdout);
    assert!(known.contains(&victim.ip.to_string()) && !known.contains(&stranger.to_string()), "{known}");
}
