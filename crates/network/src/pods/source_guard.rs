//! What a pod may send: frames with the hardware address and the IPv4 address that were leased to it, and nothing else.
//!
//! Each pod's device has a chain of its own at the ingress hook (family netdev). Every frame passes there before the
//! bridge sees it. The bridge's own hooks (family bridge) would not do: the kernel hands frames to some group addresses,
//! such as that of LLDP, past them to the host, after it has learned their source address.

use std::collections::BTreeSet;

use super::{PodLease, PodNetworkConfig, host_veth_name};
use crate::links::{Mac, gateway_mac};
use crate::netlink::Netlink;
use crate::nft::{Batch, Expr, Family, NftError, PayloadBase, Reg, Rule, Verdict};

/// Before everything else that may be attached to the device.
const PRIORITY: i32 = -500;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
/// Ethernet and IPv4, with lengths of 6 and 4.
const ARP_HEADER: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const IPPROTO_UDP: u8 = 17;
/// From a DHCP server's port to a client's.
const DHCP_ANSWER: [u8; 4] = [0, 67, 0, 68];
const PROBE: &str = "probe";

/// Whether the kernel can do it. `device` is one that exists; it keeps nothing.
pub fn supported(config: &PodNetworkConfig, device: &str, netfilter: &mut Netlink) -> Result<bool, NftError> {
    let mut batch = Batch::of(Family::Netdev, &config.table);
    batch.add_table();
    batch.add_ingress_chain(PROBE, device, PRIORITY);
    // A rule of the kind that is needed later; it drops nothing.
    batch.add_rule(PROBE, &vec![Expr::ether_saddr(Reg::R0), Expr::eq(Reg::R0, [0xff; 6])]);
    batch.delete_chain(PROBE);
    match batch.commit(netfilter) {
        Ok(()) => Ok(true),
        Err(error) if MISSING.iter().any(|errno| error.is(*errno)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// How kernels say that they were built without the family, its hook or an expression.
const MISSING: [i32; 4] = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT, libc::ENOENT];

/// The whole table anew, for those leases whose devices are there. Frames are checked all the while: the chains before
/// are in force until the transaction is.
pub fn rebuild<'a>(
    config: &PodNetworkConfig,
    leases: impl Iterator<Item = &'a PodLease>,
    devices: &BTreeSet<String>,
) -> Batch {
    let mut batch = Batch::of(Family::Netdev, &config.table);
    batch.recreate_table();
    for lease in leases {
        let device = host_veth_name(&lease.sandbox_id);
        if devices.contains(&device) {
            add_chain(&mut batch, &device, lease);
        }
    }
    batch
}

/// The chain of one pod, in place of any that there is. Its device must exist.
pub fn add(config: &PodNetworkConfig, lease: &PodLease) -> Batch {
    let device = host_veth_name(&lease.sandbox_id);
    let mut batch = without(config, &device);
    add_chain(&mut batch, &device, lease);
    batch
}

/// Takes a pod's chain away; that it is gone already is fine. For after its device is gone.
pub fn remove(config: &PodNetworkConfig, sandbox_id: &str) -> Batch {
    without(config, &host_veth_name(sandbox_id))
}

/// Kernels before 6.16 delete a chain with its device, later ones keep it. Adding it first makes it certain that there
/// is one to delete.
fn without(config: &PodNetworkConfig, device: &str) -> Batch {
    let mut batch = Batch::of(Family::Netdev, &config.table);
    batch.add_table();
    batch.add_chain(device);
    batch.delete_chain(device);
    batch
}

fn add_chain(batch: &mut Batch, device: &str, lease: &PodLease) {
    batch.add_ingress_chain(device, device, PRIORITY);
    for rule in rules(gateway_mac(lease.address), lease.address.octets()) {
        batch.add_rule(device, &rule);
    }
}

/// The last rule drops, not the chain's policy: that would be in force before the transaction is.
fn rules(mac: Mac, ip: [u8; 4]) -> [Rule; 4] {
    // The type is loaded apart from the address: only so does a tagged frame show the type of its tag.
    let frame = |ethertype: [u8; 2]| {
        vec![
            Expr::ether_type(Reg::R0),
            Expr::eq(Reg::R0, ethertype),
            Expr::ether_saddr(Reg::R0),
            Expr::eq(Reg::R0, mac),
        ]
    };
    let rule = |mut rule: Rule, rest: Vec<Expr>, verdict: Verdict| {
        rule.extend(rest);
        rule.push(Expr::Verdict(verdict));
        rule
    };
    let load = |base, offset, len| Expr::Payload { base, offset, len, dreg: Reg::R0 };
    let dhcp_answer = vec![
        Expr::l4proto(Reg::R0),
        Expr::eq(Reg::R0, [IPPROTO_UDP]),
        load(PayloadBase::Transport, 0, 4),
        Expr::eq(Reg::R0, DHCP_ANSWER),
    ];
    let own_ip = vec![Expr::ip_saddr(Reg::R0), Expr::eq(Reg::R0, ip)];
    let own_arp = vec![
        load(PayloadBase::Network, 0, 6),
        Expr::eq(Reg::R0, ARP_HEADER),
        // The sender: hardware and protocol address.
        load(PayloadBase::Network, 8, 10),
        Expr::eq(Reg::R0, [&mac[..], &ip].concat()),
    ];
    [
        rule(frame(ETHERTYPE_IPV4), dhcp_answer, Verdict::Drop),
        rule(frame(ETHERTYPE_IPV4), own_ip, Verdict::Accept),
        rule(frame(ETHERTYPE_ARP), own_arp, Verdict::Accept),
        vec![Expr::Verdict(Verdict::Drop)],
    ]
}
