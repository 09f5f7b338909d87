//! The node's own network when another program connects the pods (a CNI plugin, a container runtime): an
//! address for the cluster DNS, a route to service addresses, forwarding.

use super::{
    Batch, Links, Netlink, PodNetworkConfig, PodNetworkError, Sysctls, set_bridge_addresses, uplink_mtu,
};
use crate::links::gateway_mac;
use crate::nft::{Family, tables_of};

/// Makes bridged packets pass the service proxy, as kube-proxy requires of a node. Exists only if the kernel
/// has the module.
const BRIDGE_FILTER: &str = "net/bridge/bridge-nf-call-iptables";

/// Sets up a bridge without ports in the network namespace of the calling thread, and removes the rules of pods
/// that the built-in network connected before. Calling it again changes nothing.
pub fn open_without_pods(config: &PodNetworkConfig) -> Result<(), PodNetworkError> {
    std::fs::create_dir_all(&config.state_dir)
        .map_err(|source| PodNetworkError::State { path: config.state_dir.clone(), source })?;
    let mut links = Links::open()?;
    let mtu = uplink_mtu(&mut links, config)?;
    // The address is locally administered, and the same each time.
    let bridge = links.ensure_bridge(&config.bridge, gateway_mac(config.pod_cidr.network()), mtu)?;
    let mut sysctls = Sysctls::open(config.sysctls_file())?;
    for (name, value) in config.sysctls() {
        sysctls.set(&name, value)?;
    }
    if std::path::Path::new("/proc/sys").join(BRIDGE_FILTER).exists() {
        sysctls.set(BRIDGE_FILTER, "1")?;
    }
    set_bridge_addresses(&mut links, config, &bridge, None)?;
    let mut netfilter = Netlink::netfilter()?;
    for family in [Family::Ip, Family::Netdev, Family::Bridge] {
        if tables_of(&mut netfilter, family)?.contains(&config.table) {
            let mut batch = Batch::of(family, &config.table);
            batch.delete_table();
            batch.commit(&mut netfilter)?;
        }
    }
    Ok(())
}
