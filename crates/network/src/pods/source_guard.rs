//! Restricts what a pod may send to frames with the hardware address and the IPv4 address that were leased to
//! it.
//!
//! Each pod's device has its own chain at the ingress hook (family netdev), which compares addresses. Every
//! frame that a process writes passes it before the bridge sees the frame. The bridge's own hooks (family
//! bridge) would not be sufficient: the kernel delivers frames to some group addresses, such as LLDP's, to the
//! host without passing them.
//!
//! Frames that arrive through an ifb device in the pod, which requires `NET_ADMIN`, skip the ingress hook. So
//! the chain marks the frames that it accepts, and the bridge drops unmarked ones; a mark does not leave the
//! pod's namespace. Frames to a group address of the link itself skip both, and are dropped on their way to the
//! host: by a second chain of the bridge, and by the table of family ip, because no IP packet arrives at a
//! bridge port itself.

use std::collections::BTreeSet;

use super::{HOST_VETH_PREFIX, PodLease, PodNetworkConfig, host_veth_name};
use crate::links::{Mac, gateway_mac};
use crate::netlink::Netlink;
use crate::nft::{BaseChain, Batch, Expr, Family, Hook, NftError, PayloadBase, Reg, Rule, Verdict};

/// Before all other chains that may be attached to the device.
const PRIORITY: i32 = -500;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
/// Ethernet and IPv4, with lengths of 6 and 4.
const ARP_HEADER: [u8; 6] = [0, 1, 0x08, 0, 6, 4];
const IPPROTO_UDP: u8 = 17;
/// The ports of a DHCP answer: from a server's port to a client's.
const DHCP_ANSWER: [u8; 4] = [0, 67, 0, 68];
const PROBE: &str = "probe";
const BRIDGE_CHAIN: BaseChain =
    BaseChain { name: "prerouting", kind: "filter", hook: Hook::Prerouting, priority: PRIORITY };
/// The hook for frames to the host itself. Frames to [`LINK_GROUPS`] skip the other chain but pass this one;
/// LLDP frames would skip both, and are forwarded instead.
const BRIDGE_INPUT: BaseChain =
    BaseChain { name: "input", kind: "filter", hook: Hook::Input, priority: PRIORITY };
/// The first bytes of the addresses of LLDP, spanning trees and similar protocols (IEEE 802.1D, 7.12.6), which
/// pods do not need.
const LINK_GROUPS: [u8; 5] = [0x01, 0x80, 0xc2, 0, 0];
/// The mark of accepted frames, which exists only between the two hooks.
const CHECKED_MARK: [u8; 4] = *b"knv\x01";
const NO_MARK: [u8; 4] = [0; 4];

/// How much of the checks the kernel supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    Nothing,
    /// Chains of devices, but not of bridges.
    Devices,
    Whole,
}

/// Probes the kernel's support. `device` is an existing device; it is left unchanged.
pub fn support(
    config: &PodNetworkConfig,
    device: &str,
    netfilter: &mut Netlink,
) -> Result<Support, NftError> {
    // Rules of the kinds that are needed later. They drop no packets.
    let mut devices = Batch::of(Family::Netdev, &config.table);
    devices.add_table();
    devices.add_ingress_chain(PROBE, device, PRIORITY);
    devices.add_rule(PROBE, &vec![Expr::ether_saddr(Reg::R0), Expr::eq(Reg::R0, [0xff; 6])]);
    devices.delete_chain(PROBE);
    if !works(devices.commit(netfilter))? {
        return Ok(Support::Nothing);
    }
    let mut bridge = Batch::of(Family::Bridge, &config.table);
    bridge.add_table();
    bridge.add_base_chain(&BaseChain { name: PROBE, ..BRIDGE_CHAIN });
    bridge.add_rule(PROBE, &from_pods(vec![Expr::mark(Reg::R0), Expr::eq(Reg::R0, NO_MARK)]));
    bridge.delete_chain(PROBE);
    Ok(if works(bridge.commit(netfilter))? { Support::Whole } else { Support::Devices })
}

fn works(probed: Result<(), NftError>) -> Result<bool, NftError> {
    match probed {
        Ok(()) => Ok(true),
        Err(error) if MISSING.iter().any(|errno| error.is(*errno)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The errors of kernels that were built without the family, its hook or an expression.
const MISSING: [i32; 4] = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT, libc::ENOENT];

/// Returns a batch that rewrites both tables, for the leases whose devices exist. Frames are checked at all
/// times: the previous chains stay in force until the transaction is committed.
pub fn rebuild<'a>(
    config: &PodNetworkConfig,
    support: Support,
    leases: impl Iterator<Item = &'a PodLease>,
    devices: &BTreeSet<String>,
) -> Batch {
    let mut batch = Batch::of(Family::Netdev, &config.table);
    batch.recreate_table();
    for lease in leases {
        let device = host_veth_name(&lease.sandbox_id);
        if devices.contains(&device) {
            add_chain(&mut batch, support, &device, lease);
        }
    }
    if support == Support::Whole {
        batch.switch(Family::Bridge);
        batch.recreate_table();
        batch.add_base_chain(&BRIDGE_CHAIN);
        for rule in bridge_rules() {
            batch.add_rule(BRIDGE_CHAIN.name, &rule);
        }
        batch.add_base_chain(&BRIDGE_INPUT);
        batch.add_rule(BRIDGE_INPUT.name, &to_link_groups());
    }
    batch
}

/// Returns a batch that adds or replaces the chain of one pod. Its device must exist. Fails with ENOENT if the
/// table is missing.
pub fn add(config: &PodNetworkConfig, support: Support, lease: &PodLease) -> Batch {
    let device = host_veth_name(&lease.sandbox_id);
    let mut batch = without(config, &device);
    add_chain(&mut batch, support, &device, lease);
    batch
}

/// Returns a batch that removes a pod's chain, after its device was removed; succeeds if the chain does not
/// exist. Fails with ENOENT if the table is missing.
pub fn remove(config: &PodNetworkConfig, sandbox_id: &str) -> Batch {
    without(config, &host_veth_name(sandbox_id))
}

/// Removes a chain. Kernels before 6.16 delete a chain with its device, later ones keep it. Adding the chain
/// first ensures that there is one to delete.
fn without(config: &PodNetworkConfig, device: &str) -> Batch {
    let mut batch = Batch::of(Family::Netdev, &config.table);
    batch.add_chain(device);
    batch.delete_chain(device);
    batch
}

/// Drops frames of pods without the mark that a device's chain sets, and removes the mark from the others.
fn bridge_rules() -> [Rule; 2] {
    let checked = from_pods(vec![
        Expr::mark(Reg::R0),
        Expr::eq(Reg::R0, CHECKED_MARK),
        Expr::Immediate { dreg: Reg::R0, data: NO_MARK.to_vec() },
        Expr::set_mark(Reg::R0),
        Expr::Verdict(Verdict::Accept),
    ]);
    [checked, from_pods(vec![Expr::Verdict(Verdict::Drop)])]
}

/// Drops frames of any type to the link itself.
fn to_link_groups() -> Rule {
    from_pods(vec![
        Expr::Payload { base: PayloadBase::Link, offset: 0, len: 5, dreg: Reg::R0 },
        Expr::eq(Reg::R0, LINK_GROUPS),
        Expr::Verdict(Verdict::Drop),
    ])
}

/// Matches what arrives at a pod's device; compares only the beginning of the device's name.
pub fn from_pods(rest: Vec<Expr>) -> Rule {
    let mut rule = vec![Expr::iifname(Reg::R0), Expr::eq(Reg::R0, HOST_VETH_PREFIX)];
    rule.extend(rest);
    rule
}

fn add_chain(batch: &mut Batch, support: Support, device: &str, lease: &PodLease) {
    batch.add_ingress_chain(device, device, PRIORITY);
    let mut pass = Vec::new();
    if support == Support::Whole {
        pass.push(Expr::Immediate { dreg: Reg::R0, data: CHECKED_MARK.to_vec() });
        pass.push(Expr::set_mark(Reg::R0));
    }
    pass.push(Expr::Verdict(Verdict::Accept));
    for rule in rules(gateway_mac(lease.address), lease.address.octets(), &pass) {
        batch.add_rule(device, &rule);
    }
}

/// Returns the rules of a pod's chain. The last rule drops; a drop policy would take effect before the
/// transaction is committed.
fn rules(mac: Mac, ip: [u8; 4], pass: &[Expr]) -> [Rule; 4] {
    // The type is loaded separately from the address: only then does a tagged frame have the type of its tag.
    let frame = |ethertype: [u8; 2]| {
        vec![
            Expr::ether_type(Reg::R0),
            Expr::eq(Reg::R0, ethertype),
            Expr::ether_saddr(Reg::R0),
            Expr::eq(Reg::R0, mac),
        ]
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
        // The sender's hardware and protocol addresses.
        load(PayloadBase::Network, 8, 10),
        Expr::eq(Reg::R0, [&mac[..], &ip].concat()),
    ];
    [
        [frame(ETHERTYPE_IPV4), dhcp_answer, vec![Expr::Verdict(Verdict::Drop)]].concat(),
        [frame(ETHERTYPE_IPV4), own_ip, pass.to_vec()].concat(),
        [frame(ETHERTYPE_ARP), own_arp, pass.to_vec()].concat(),
        vec![Expr::Verdict(Verdict::Drop)],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_was_built_without_is_no_error() {
        let refused =
            |errno| Err(NftError::Refused { what: "add chain probe".to_owned(), errno, detail: None });
        assert!(works(Ok(())).unwrap());
        for errno in MISSING {
            assert!(!works(refused(errno)).unwrap(), "{errno}");
        }
        for errno in [libc::EPERM, libc::ENOMEM, libc::EBUSY, libc::EINVAL] {
            assert!(works(refused(errno)).is_err(), "{errno}");
        }
    }
}
