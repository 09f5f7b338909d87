//! The configuration of a node's service proxy.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::cidr::Ipv4Cidr;

/// Settings of the service proxy; `new` fills in the defaults.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// The name of this node, whose endpoints are local.
    pub node_name: String,
    /// This node's zone, for endpoints with hints.
    pub zone: Option<String>,
    /// The addresses on which node ports are reachable.
    pub node_ips: Vec<Ipv4Addr>,
    /// The prefix of all pods. Traffic to a service from other addresses is masqueraded.
    pub cluster_cidr: Option<Ipv4Cidr>,
    /// Service addresses that the node itself answers (the cluster DNS); the proxy ignores such services.
    pub local_service_ips: BTreeSet<Ipv4Addr>,
    /// The file for the previous values of kernel settings. Without it the proxy changes none.
    pub sysctls_file: Option<PathBuf>,
    /// The nf_tables table, which no other program may use.
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
