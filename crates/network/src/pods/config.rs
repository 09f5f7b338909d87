//! What the pod network of a node is told.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::cidr::Ipv4Cidr;

/// Settings of the pod network; `new` fills in the defaults.
#[derive(Clone, Debug)]
pub struct PodNetworkConfig {
    /// The node's own prefix, from `Node.spec.podCIDR`.
    pub pod_cidr: Ipv4Cidr,
    /// The prefix of all nodes' pods: traffic that stays within it is not masqueraded.
    pub cluster_cidr: Ipv4Cidr,
    /// The prefix of service addresses, for the node's own way to them.
    pub service_cidr: Option<Ipv4Cidr>,
    /// Addresses the node itself answers on, such as that of the cluster DNS.
    pub local_addresses: Vec<Ipv4Addr>,
    /// TCP ports of the node that no pod may have as a host port, such as that of its kubelet.
    pub reserved_ports: Vec<u16>,
    /// Where leases and previous kernel settings are kept.
    pub state_dir: PathBuf,
    /// Name of the bridge, at most 15 characters.
    pub bridge: String,
    /// That of the uplink when absent.
    pub mtu: Option<u32>,
    /// Prefixes that pods do not reach, except by DNS; the cluster's pods and what the node itself answers are not meant.
    pub blocked_destinations: Vec<Ipv4Cidr>,
    /// The nf_tables table of masquerade and host ports.
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
            // Where clouds offer a machine its metadata, credentials among it.
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

    /// Forwarding, and no redirects: packets between pods leave by the bridge they came from, and a pod that
    /// believed a redirect would send service traffic straight to a neighbour. Host ports answer on loopback too.
    pub(crate) fn sysctls(&self) -> Vec<(String, &'static str)> {
        vec![
            ("net/ipv4/ip_forward".to_owned(), "1"),
            ("net/ipv4/conf/all/send_redirects".to_owned(), "0"),
            (format!("net/ipv4/conf/{}/send_redirects", self.bridge), "0"),
            (format!("net/ipv4/conf/{}/route_localnet", self.bridge), "1"),
        ]
    }
}
