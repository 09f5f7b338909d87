//! What the service proxy of a node is told.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::cidr::Ipv4Cidr;

/// Settings of the service proxy; `new` fills in the defaults.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Which endpoints are local.
    pub node_name: String,
    /// The node's zone, for endpoints with hints.
    pub zone: Option<String>,
    /// The addresses node ports are reachable on.
    pub node_ips: Vec<Ipv4Addr>,
    /// The prefix of all pods. Traffic to a service from elsewhere is masqueraded.
    pub cluster_cidr: Option<Ipv4Cidr>,
    /// Service addresses the node answers on itself (the cluster DNS); the proxy leaves such services alone.
    pub local_service_ips: BTreeSet<Ipv4Addr>,
    /// Where the previous values of kernel settings are kept. Without it the proxy changes none.
    pub sysctls_file: Option<PathBuf>,
    /// The nf_tables table, of which nobody else may make use.
    pub table: String,
}

impl ProxyConfig {
    pub fn new(node_name: &str, node_ips: Vec<Ipv4Addr>) -> Self {
        Self {
            node_name: node_name.to_owned(),
            zone: None,
            node_ips,
            cluster_cidr: None,
            local_service_ips: BTreeSet::new(),
            sysctls_file: None,
            table: "knarr".to_owned(),
        }
    }
}
