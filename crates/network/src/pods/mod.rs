//! The pod network of one node: a bridge, a veth pair and an address for each pod, host ports, masquerade.

mod config;
mod foreign;
mod listeners;
mod rules;
mod source_guard;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use config::PodNetworkConfig;
pub use foreign::open_without_pods;
pub(crate) use rules::in_prefix;

use crate::cidr::Ipv4Cidr;
use crate::conntrack;
use crate::ipam::{Ipam, IpamError, Lease};
use crate::links::{
    Address, Link, Links, NamespaceError, Route, RouteKind, SysctlError, Sysctls, Veth, gateway_mac,
    in_namespace,
};
use crate::netlink::{Netlink, NetlinkError};
use crate::nft::{Batch, Family, NftError, tables_of};
use crate::protocol::Protocol;
use source_guard::Support;

/// The name of a pod's interface.
pub const POD_INTERFACE: &str = "eth0";
/// The index of the loopback interface in every namespace.
const LOOPBACK_INDEX: u32 = 1;
const DEFAULT_MTU: u32 = 1500;
const HOST_VETH_PREFIX: &str = "knv";
/// How often the pods' devices are listed again because one was removed meanwhile.
const GUARD_ATTEMPTS: usize = 5;
const FORGERY: &str =
    "the kernel has no nf_tables of family netdev: pods with NET_RAW can send with the addresses of others";
const FORGERY_BY_ADMIN: &str =
    "the kernel has no nf_tables of family bridge: pods with NET_ADMIN can send with the addresses of others";

/// Why a pod could not be connected or disconnected.
#[derive(Debug, Error)]
pub enum PodNetworkError {
    #[error("changing network devices")]
    Netlink(#[from] NetlinkError),
    #[error("changing packet rules")]
    Nft(#[from] NftError),
    #[error("managing pod addresses")]
    Ipam(#[from] IpamError),
    #[error("changing kernel settings")]
    Sysctl(#[from] SysctlError),
    #[error("working in the pod's network namespace {}", path.display())]
    Namespace { path: PathBuf, source: NamespaceError },
    #[error("opening the pod's network namespace {}", path.display())]
    OpenNamespace { path: PathBuf, source: std::io::Error },
    #[error("host port {port}/{protocol} is in use by another pod")]
    HostPortInUse { port: u16, protocol: Protocol },
    #[error("host port {port}/{protocol} is in use by the node itself")]
    HostPortOfNode { port: u16, protocol: Protocol },
    #[error("reading which ports of the node are in use")]
    Listeners(#[source] std::io::Error),
    #[error("interface {name} is missing")]
    NoInterface { name: String },
    #[error("using the folder {}", path.display())]
    State { path: PathBuf, source: std::io::Error },
    #[error("removing {}", path.display())]
    Remove { path: PathBuf, source: std::io::Error },
}

/// A pod, and one of its sandboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub sandbox_id: String,
}

/// A `hostPort`: traffic to the node's port is forwarded to the pod's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    /// If `None`, every address of the node.
    pub host_ip: Option<Ipv4Addr>,
}

/// The addresses that a pod was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodAddresses {
    /// The pod's addresses, the primary one first.
    pub ips: Vec<Ipv4Addr>,
    pub gateway: Ipv4Addr,
}

/// The part of a lease that describes its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeaseOwner {
    namespace: String,
    name: String,
    uid: String,
    #[serde(default)]
    ports: Vec<PortMapping>,
}

type PodLease = Lease<LeaseOwner>;

/// The built-in pod network. All calls block for about a millisecond; async callers run them on a blocking
/// thread.
pub struct PodNetwork {
    config: PodNetworkConfig,
    bridge: Link,
    inner: Mutex<Inner>,
}

struct Inner {
    ipam: Ipam<LeaseOwner>,
    links: Links,
    netfilter: Netlink,
    /// How far the kernel can restrict pods to their own addresses.
    support: Support,
}

impl PodNetwork {
    /// Sets up the node's part in the network namespace of the calling thread: kernel settings, bridge,
    /// addresses, rules. Continues with the leases of an earlier run; calling it again changes nothing.
    pub fn open(config: PodNetworkConfig) -> Result<Self, PodNetworkError> {
        std::fs::create_dir_all(&config.state_dir)
            .map_err(|source| IpamError::State { path: config.state_dir.clone(), source })?;
        let ipam: Ipam<LeaseOwner> = Ipam::open(config.pod_cidr, config.leases_dir())?;
        let mut links = Links::open()?;
        let mtu = uplink_mtu(&mut links, &config)?;
        let bridge = links.ensure_bridge(&config.bridge, gateway_mac(ipam.gateway()), mtu)?;
        links.ignore_link_local_sources(bridge.index)?;
        let mut sysctls = Sysctls::open(config.sysctls_file())?;
        for (name, value) in config.sysctls() {
            sysctls.set(&name, value)?;
        }
        set_bridge_addresses(&mut links, &config, &bridge, Some(ipam.gateway()))?;
        let mut netfilter = Netlink::netfilter()?;
        rules::rebuild(&config, ipam.leases()).commit(&mut netfilter)?;
        for lease in ipam.leases() {
            if let Some(port) = rules::reserved(&config, lease) {
                let (pod, port) = (&lease.owner.name, port.host_port);
                tracing::warn!(
                    pod,
                    port,
                    "the pod's host port is the node's own now: it does not lead to the pod"
                );
            }
        }
        let support = source_guard::support(&config, &bridge.name, &mut netfilter)?;
        let mut inner = Inner { ipam, links, netfilter, support };
        inner.rebuild_guard(&config)?;
        let network = Self { config, bridge, inner: Mutex::new(inner) };
        if let Some(weakness) = network.weakness() {
            tracing::warn!("{weakness}");
        }
        Ok(network)
    }

    /// Returns what pods can do to each other because the kernel lacks a feature, as a message for an
    /// administrator.
    pub fn weakness(&self) -> Option<&'static str> {
        match self.lock().support {
            Support::Nothing => Some(FORGERY),
            Support::Devices => Some(FORGERY_BY_ADMIN),
            Support::Whole => None,
        }
    }

    /// Returns the address of the bridge, which is the pods' gateway and the node's own address on the pod
    /// network.
    pub fn gateway(&self) -> Ipv4Addr {
        self.lock().ipam.gateway()
    }

    pub fn mtu(&self) -> u32 {
        self.bridge.mtu
    }

    /// Connects a pod: an address, `eth0` and loopback up in the namespace at `netns`, host ports. Calling it
    /// again for the same sandbox repairs what is missing and returns the same address. After an error, nothing
    /// new is left.
    pub fn setup_pod(
        &self,
        pod: &PodRef,
        netns: &Path,
        ports: &[PortMapping],
    ) -> Result<PodAddresses, PodNetworkError> {
        let namespace = std::fs::File::open(netns)
            .map_err(|source| PodNetworkError::OpenNamespace { path: netns.to_owned(), source })?;
        let mut inner = self.lock();
        let known = inner.ipam.get(&pod.sandbox_id).cloned();
        let lease = match &known {
            Some(lease) => lease.clone(),
            None => {
                let ports = ports.iter().filter(|p| p.host_port != 0).cloned().collect();
                let owner = LeaseOwner {
                    namespace: pod.namespace.clone(),
                    name: pod.name.clone(),
                    uid: pod.uid.clone(),
                    ports,
                };
                let lease = inner.ipam.allocate(&pod.sandbox_id, owner)?;
                if let Err(error) = inner.add_host_ports(&self.config, &lease) {
                    inner.ipam.release(&pod.sandbox_id)?;
                    return Err(error);
                }
                lease
            }
        };
        if let Err(error) = self.connect(&mut inner, &lease, netns, &namespace) {
            // What existed before the call is left for the caller to tear down. The first error is the one to
            // report; if the disconnect fails too, the next teardown or garbage collection reports that.
            if known.is_none() {
                let _ = inner.disconnect(&self.config, &pod.sandbox_id);
            }
            return Err(error);
        }
        Ok(PodAddresses { ips: vec![lease.address], gateway: inner.ipam.gateway() })
    }

    /// Disconnects a sandbox and frees its address; does nothing for an unknown one.
    pub fn teardown_pod(&self, sandbox_id: &str) -> Result<(), PodNetworkError> {
        self.lock().disconnect(&self.config, sandbox_id)
    }

    /// Returns the addresses of a sandbox if it is connected, as far as the node can see.
    pub fn check(&self, sandbox_id: &str) -> Result<Option<PodAddresses>, PodNetworkError> {
        let mut inner = self.lock();
        let Some(address) = inner.ipam.get(sandbox_id).map(|lease| lease.address) else { return Ok(None) };
        let link = inner.links.get(&host_veth_name(sandbox_id))?;
        let connected = link.is_some_and(|link| link.up && link.master == Some(self.bridge.index));
        Ok(connected.then(|| PodAddresses { ips: vec![address], gateway: inner.ipam.gateway() }))
    }

    /// Disconnects every sandbox that is not in `live`; returns their ids. For the start of a node, when pods
    /// may have ended while the agent was not running.
    pub fn retain(&self, live: &BTreeSet<String>) -> Result<Vec<String>, PodNetworkError> {
        let mut inner = self.lock();
        let gone: Vec<String> = inner
            .ipam
            .leases()
            .map(|lease| lease.sandbox_id.clone())
            .filter(|id| !live.contains(id))
            .collect();
        for sandbox_id in &gone {
            inner.disconnect(&self.config, sandbox_id)?;
        }
        Ok(gone)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The next call repeats every change completely, so the state is usable after a panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(
        &self,
        inner: &mut Inner,
        lease: &PodLease,
        netns: &Path,
        namespace: &std::fs::File,
    ) -> Result<(), PodNetworkError> {
        let in_pod = |source| PodNetworkError::Namespace { path: netns.to_owned(), source };
        let host_name = host_veth_name(&lease.sandbox_id);
        if inner.links.get(&host_name)?.is_some()
            && in_namespace(namespace, pod_interface).map_err(in_pod)??.is_none()
        {
            // Its other end is in a namespace that the sandbox had before.
            inner.links.delete(&host_name)?;
        }
        if inner.links.get(&host_name)?.is_none() {
            inner.links.create_veth(Veth {
                host_name: &host_name,
                bridge: self.bridge.index,
                pod_name: POD_INTERFACE,
                pod_mac: gateway_mac(lease.address),
                pod_namespace: namespace.as_fd(),
                mtu: self.bridge.mtu,
            })?;
        }
        let host = inner.links.get(&host_name)?.ok_or(PodNetworkError::NoInterface { name: host_name })?;
        inner.change_guard(&self.config, source_guard::add(&self.config, inner.support, lease), None)?;
        inner.links.set_hairpin(host.index)?;
        // This comes last: a process in the namespace may have set up the other end already.
        inner.links.set_up(host.index)?;
        let (address, gateway) = (lease.address, inner.ipam.gateway());
        in_namespace(namespace, || configure_pod(address, gateway)).map_err(in_pod)?
    }
}

impl Inner {
    /// Rebuilds the chains of all pods whose devices exist.
    fn rebuild_guard(&mut self, config: &PodNetworkConfig) -> Result<(), PodNetworkError> {
        if self.support == Support::Nothing {
            return Ok(());
        }
        let mut result = Ok(());
        for _ in 0..GUARD_ATTEMPTS {
            let devices = self.links.list()?.into_iter().map(|link| link.name).collect();
            result = source_guard::rebuild(config, self.support, self.ipam.leases(), &devices)
                .commit(&mut self.netfilter);
            // The device of a pod disappears when the pod ends.
            if !result.as_ref().is_err_and(|error| error.is(libc::ENOENT)) {
                break;
            }
        }
        Ok(result?)
    }

    /// Applies a change of the tables that check addresses. `gone` is a sandbox that has ended.
    fn change_guard(
        &mut self,
        config: &PodNetworkConfig,
        change: Batch,
        gone: Option<&str>,
    ) -> Result<(), PodNetworkError> {
        let others: &[Family] = match self.support {
            Support::Nothing | Support::Devices => &[Family::Ip],
            Support::Whole => &[Family::Ip, Family::Bridge],
        };
        for family in others {
            if !tables_of(&mut self.netfilter, *family)?.contains(&config.table) {
                return self.restore(config, gone);
            }
        }
        if self.support == Support::Nothing {
            return Ok(());
        }
        let changed = change.commit(&mut self.netfilter);
        self.or_restored(changed, config, gone)
    }

    /// Handles a change whose table is missing: another program has flushed it, and perhaps all tables.
    fn or_restored(
        &mut self,
        changed: Result<(), NftError>,
        config: &PodNetworkConfig,
        gone: Option<&str>,
    ) -> Result<(), PodNetworkError> {
        match changed {
            Err(error) if error.is(libc::ENOENT) => self.restore(config, gone),
            other => Ok(other?),
        }
    }

    /// Writes all tables again, for all leases except that of a sandbox that has ended.
    fn restore(&mut self, config: &PodNetworkConfig, gone: Option<&str>) -> Result<(), PodNetworkError> {
        tracing::warn!(
            table = config.table,
            "the packet rules of pods were removed by another program: restoring them"
        );
        let leases = self.ipam.leases().filter(|lease| gone != Some(lease.sandbox_id.as_str()));
        rules::rebuild(config, leases).commit(&mut self.netfilter)?;
        self.rebuild_guard(config)?;
        let leases: Vec<_> = self.ipam.leases().cloned().collect();
        leases.iter().try_for_each(|lease| self.forget_udp_flows(lease))
    }

    fn add_host_ports(&mut self, config: &PodNetworkConfig, lease: &PodLease) -> Result<(), PodNetworkError> {
        if lease.owner.ports.is_empty() {
            return Ok(());
        }
        let others: Vec<_> = self.ipam.leases().filter(|l| l.sandbox_id != lease.sandbox_id).collect();
        if let Some(taken) = rules::conflict(&others, lease) {
            return Err(PodNetworkError::HostPortInUse { port: taken.host_port, protocol: taken.protocol });
        }
        let of_node = match rules::reserved(config, lease) {
            Some(port) => Some(port),
            None => {
                let found = listeners::first_in_use(&lease.owner.ports, &config.local_addresses);
                found.map_err(PodNetworkError::Listeners)?
            }
        };
        if let Some(port) = of_node {
            return Err(PodNetworkError::HostPortOfNode { port: port.host_port, protocol: port.protocol });
        }
        let added = rules::add(config, lease).commit(&mut self.netfilter);
        self.or_restored(added, config, None)?;
        self.forget_udp_flows(lease)
    }

    /// Deletes flows to a UDP host port that were tracked before the pod started, because they would never
    /// reach it.
    fn forget_udp_flows(&mut self, lease: &PodLease) -> Result<(), PodNetworkError> {
        let ports: BTreeSet<u16> =
            lease.owner.ports.iter().filter(|p| p.protocol == Protocol::Udp).map(|p| p.host_port).collect();
        if ports.is_empty() {
            return Ok(());
        }
        for flow in conntrack::udp_flows(&mut self.netfilter)? {
            if ports.contains(&flow.original.destination.1) {
                conntrack::delete_flow(&mut self.netfilter, &flow)?;
            }
        }
        Ok(())
    }

    fn disconnect(&mut self, config: &PodNetworkConfig, sandbox_id: &str) -> Result<(), PodNetworkError> {
        self.links.delete(&host_veth_name(sandbox_id))?;
        self.change_guard(config, source_guard::remove(config, sandbox_id), Some(sandbox_id))?;
        let Some(lease) = self.ipam.get(sandbox_id).cloned() else { return Ok(()) };
        if !lease.owner.ports.is_empty() {
            let removed = rules::remove(config, &lease).commit(&mut self.netfilter);
            self.or_restored(removed, config, Some(sandbox_id))?;
            self.forget_udp_flows(&lease)?;
        }
        self.ipam.release(sandbox_id)?;
        Ok(())
    }
}

fn pod_interface() -> Result<Option<Link>, NetlinkError> {
    Links::open()?.get(POD_INTERFACE)
}

/// Configures the interfaces inside the pod. Its address is a /32 and all traffic goes through the gateway,
/// also to other pods of the node: so traffic between pods passes the node's IP layer, and service translation
/// sees both directions without the kernel's bridge netfilter.
fn configure_pod(address: Ipv4Addr, gateway: Ipv4Addr) -> Result<(), PodNetworkError> {
    let mut links = Links::open()?;
    links.set_up(LOOPBACK_INDEX)?;
    let link = links
        .get(POD_INTERFACE)?
        .ok_or_else(|| PodNetworkError::NoInterface { name: POD_INTERFACE.to_owned() })?;
    links.set_up(link.index)?;
    links.add_address(Address { index: link.index, ip: address, prefix_len: 32 })?;
    let to_gateway = Route {
        destination: Ipv4Cidr::new(gateway, 32),
        gateway: None,
        device: Some(link.index),
        source: None,
        kind: RouteKind::STATIC,
    };
    links.replace_route(to_gateway)?;
    let default =
        Route { destination: Ipv4Cidr::new(Ipv4Addr::UNSPECIFIED, 0), gateway: Some(gateway), ..to_gateway };
    links.replace_route(default)?;
    Ok(())
}

fn uplink_mtu(links: &mut Links, config: &PodNetworkConfig) -> Result<u32, PodNetworkError> {
    Ok(match config.mtu {
        Some(mtu) => mtu,
        None => links.uplink_mtu()?.unwrap_or(DEFAULT_MTU),
    })
}

/// Sets the addresses of the bridge. Without a gateway, the bridge has no pods.
fn set_bridge_addresses(
    links: &mut Links,
    config: &PodNetworkConfig,
    bridge: &Link,
    gateway: Option<Ipv4Addr>,
) -> Result<(), PodNetworkError> {
    let prefix_len = config.pod_cidr.prefix_len();
    let mut wanted = Vec::from_iter(gateway.map(|ip| Address { index: bridge.index, ip, prefix_len }));
    wanted.extend(config.local_addresses.iter().map(|ip| Address {
        index: bridge.index,
        ip: *ip,
        prefix_len: 32,
    }));
    for address in links.addresses()?.into_iter().filter(|a| a.index == bridge.index) {
        if !wanted.contains(&address) {
            links.delete_address(address)?;
        }
    }
    for address in wanted {
        links.add_address(address)?;
    }
    if let Some(service_cidr) = config.service_cidr {
        // Gives the node's own packets to a service a route before they are translated, whatever other routes
        // the node has, and a source address that every pod can answer.
        links.replace_route(Route {
            destination: service_cidr,
            gateway: None,
            device: Some(bridge.index),
            source: gateway,
            kind: RouteKind::STATIC,
        })?;
    }
    Ok(())
}

/// Returns the name of the node's end of a sandbox's veth pair, within the kernel's 15 characters. FNV-1a is
/// sufficient because ids are random.
pub fn host_veth_name(sandbox_id: &str) -> String {
    let hash = sandbox_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{HOST_VETH_PREFIX}{:012x}", hash & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn veth_names_fit_the_kernel() {
        for id in ["", "a", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"] {
            assert_eq!(host_veth_name(id).len(), 15);
        }
        assert_ne!(host_veth_name("a"), host_veth_name("b"));
    }
}
