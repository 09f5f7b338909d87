//! A pod that writes its own frames cannot pass for another pod or for the node.

mod lab;

use std::net::{Ipv4Addr, UdpSocket};

use knarr_network::links::{Mac, gateway_mac};
use knarr_network::netlink::Netlink;
use knarr_network::nft::{Batch, Family, chains_of};
use knarr_network::pods::{PodNetwork, host_veth_name};
use lab::frames::{BROADCAST, LLDP, PacketSocket, arp, ethernet, holds, ipv6, udp};
use lab::{Node, Pod, pod_ref};

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const EVERYBODY: (Ipv4Addr, u16) = (Ipv4Addr::BROADCAST, 9);

/// Frames of `pod` that claim to be something else, with a name for each that is also a marker in the frame.
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

/// Which of the frames that `pod` sends reach the victim or the node.
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

/// The kernel takes frames to the group address of LLDP past the bridge's own rules.
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
    // The sandbox's process may be gone, and the device with it, before anybody looks.
    knarr_network::links::Links::open().unwrap().delete(&host_veth_name("sandbox-victim")).unwrap();
    drop(network);
    let network = PodNetwork::open(Node::config(&folder)).unwrap();
    assert_eq!(chains(), of(&["hostile"]));
    network.setup_pod(&pod_ref("victim"), &victim.path, &[]).unwrap();
    assert_eq!(arriving(gateway, &hostile, &victim), NOTHING, "after the repair");
    assert_eq!(arriving(gateway, &victim, &hostile), NOTHING, "after the repair");
}

/// Other programs flush all tables now and then.
#[test]
fn a_flushed_table_comes_back_with_the_next_call() {
    let node = Node::new();
    let (hostile, victim) = (node.pod("hostile"), node.pod("victim"));
    let mut batch = Batch::of(Family::Netdev, "knarr-pods");
    batch.delete_table();
    batch.commit(&mut Netlink::netfilter().unwrap()).unwrap();
    assert_ne!(
        arriving(node.network.gateway(), &hostile, &victim),
        NOTHING,
        "the test sees what is not dropped"
    );
    node.network.setup_pod(&pod_ref("hostile"), &hostile.path, &[]).unwrap();
    assert_eq!(arriving(node.network.gateway(), &hostile, &victim), NOTHING);
    node.network.teardown_pod("sandbox-victim").unwrap();
}
