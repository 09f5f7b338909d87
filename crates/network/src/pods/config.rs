//! The configuration of a node's pod network.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::cidr::Ipv4Cidr;

/// Settings of the pod network; `new` fills in the defaults.
#[derive(Clone, Debug)]
pub struct PodNetworkConfig {
    /// The node's own prefix, from `Node.spec.podCIDR`.
    pub pod_cidr: Ipv4Cidr,
    /// The prefix of all nodes' pods: traffic within it is not masqueraded.
    pub cluster_cidr: Ipv4Cidr,
    /// The prefix of service addresses, for the node's own route to them.
    pub service_cidr: Option<Ipv4Cidr>,
    /// Addresses that the node itself answers, for example that of the cluster DNS.
    pub local_addresses: Vec<Ipv4Addr>,
    /// TCP ports of the node that pods may not have as host ports, for example that of its kubelet.
    pub reserved_ports: Vec<u16>,
    /// The folder for leases and previous kernel settings.
    pub state_dir: PathBuf,
    /// The name of the bridge, at most 15 characters.
    pub bridge: String,
    /// If `None`, the MTU of the uplink.
    pub mtu: Option<u32>,
    /// Prefixes that pods cannot reach, except for DNS. The cluster's pods and addresses that the node itself
    /// answers are not affected.
    pub blocked_destinations: Vec<Ipv4Cidr>,
    /// The nf_tables table for masquerade and host ports.
    pub table: String,
}

impl PodNetworkConfig {
    pub fn new(pod_cidr: Ipv4Cidr, cluster_cidr: Ipv4Cidr, state_dir: PathBuf) -> Self {
        Self {
            pod_cidr,
            cluster_cidr,
            service_cidr: None,
            local_addresses: Vec::new(),
            reserved_ports: Vec::new(),
            state_dir,
            bridge: "knarr0".to_owned(),
            mtu: None,
            // Clouds serve a machine's metadata there, which includes credentials.
            blocked_destinations: vec![Ipv4Cidr::new(Ipv4Addr::new(169, 254, 0, 0), 16)],
            table: "knarr-pods".to_owned(),
        }
    }

    pub(crate) fn leases_dir(&self) -> PathBuf {
        self.state_dir.join("leases")
    }

    pub(crate) fn sysctls_file(&self) -> PathBuf {
        self.state_dir.join("sysctls.json")
    }

    /// Returns the kernel settings: forwarding is on, and redirects are off. Packets between pods leave through
    /// the bridge that they arrived at, and a pod that accepted a redirect would send service traffic directly
    /// to a neighbour. Host ports answer on loopback too.
    pub(crate) fn sysctls(&self) -> Vec<(String, &'static str)> {
        vec![
            ("net/ipv4/ip_forward".to_owned(), "1"),
            ("net/ipv4/conf/all/send_redirects".to_owned(), "0"),
            (format!("net/ipv4/conf/{}/send_redirects", self.bridge), "0"),
            (format!("net/ipv4/conf/{}/route_localnet", self.bridge), "1"),
        ]
    }
}
