//! Removes every trace of the node's network: devices, routes, tables, settings, leases.

use std::path::PathBuf;

use crate::links::{Links, RouteKind, SysctlError, Sysctls};
use crate::netlink::{Netlink, NetlinkError};
use crate::nft::{Batch, Family, NftError, tables_of};
use crate::pods::{PodNetworkConfig, PodNetworkError};
use crate::proxy::ProxyConfig;

/// What to remove; `new` sets the names that are the defaults of the other parts.
#[derive(Clone, Debug)]
pub struct CleanupConfig {
    pub state_dir: PathBuf,
    pub bridge: String,
    pub tables: Vec<(Family, String)>,
}

impl CleanupConfig {
    /// Returns the default names with this state folder.
    pub fn new(state_dir: PathBuf) -> Self {
        let anywhere = crate::cidr::Ipv4Cidr::new(std::net::Ipv4Addr::UNSPECIFIED, 0);
        let pods = PodNetworkConfig::new(anywhere, anywhere, state_dir);
        let proxy = ProxyConfig::new("", Vec::new());
        let families = [Family::Ip, Family::Netdev, Family::Bridge];
        let mut tables = vec![(Family::Ip, proxy.table)];
        tables.extend(families.map(|family| (family, pods.table.clone())));
        Self { state_dir: pods.state_dir, bridge: pods.bridge, tables }
    }
}

/// Removes everything, in the network namespace of the calling thread; returns a line for each removed thing.
/// All steps are tried, and the errors of those that failed are returned too.
pub fn cleanup(config: &CleanupConfig) -> (Vec<String>, Vec<PodNetworkError>) {
    let mut removed = Vec::new();
    let results = [
        remove_devices(config, &mut removed).map_err(PodNetworkError::from),
        remove_tables(config, &mut removed).map_err(PodNetworkError::from),
        restore_settings(config).map_err(PodNetworkError::from),
        remove_state(config, &mut removed),
    ];
    (removed, results.into_iter().filter_map(Result::err).collect())
}

fn restore_settings(config: &CleanupConfig) -> Result<(), SysctlError> {
    Sysctls::open(config.state_dir.join("sysctls.json"))?.restore()
}

fn remove_devices(config: &CleanupConfig, removed: &mut Vec<String>) -> Result<(), NetlinkError> {
    let mut links = Links::open()?;
    for route in links.routes()?.into_iter().filter(|r| r.kind == RouteKind::Node) {
        links.delete_route(route)?;
        removed.push(format!("route to {}", route.destination));
    }
    let devices = links.list()?;
    let is_bridge = |kind: &Option<String>| kind.as_deref() == Some("bridge");
    let Some(bridge) = devices.iter().find(|l| l.name == config.bridge && is_bridge(&l.kind)) else {
        return Ok(());
    };
    // The bridge is removed last, because its ports are found through it, also by a second attempt.
    for port in devices.iter().filter(|link| link.master == Some(bridge.index)) {
        links.delete(&port.name)?;
        removed.push(format!("device {}", port.name));
    }
    links.delete(&bridge.name)?;
    removed.push(format!("device {}", bridge.name));
    Ok(())
}

fn remove_tables(config: &CleanupConfig, removed: &mut Vec<String>) -> Result<(), NftError> {
    let mut netlink = Netlink::netfilter()?;
    for (family, table) in &config.tables {
        if tables_of(&mut netlink, *family)?.contains(table) {
            let mut batch = Batch::of(*family, table);
            batch.delete_table();
            batch.commit(&mut netlink)?;
            removed.push(format!("nf_tables table {} {table}", family.name()));
        }
    }
    Ok(())
}

fn remove_state(config: &CleanupConfig, removed: &mut Vec<String>) -> Result<(), PodNetworkError> {
    match std::fs::remove_dir_all(&config.state_dir) {
        Ok(()) => removed.push(format!("folder {}", config.state_dir.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(PodNetworkError::Remove { path: config.state_dir.clone(), source }),
    }
    Ok(())
}
