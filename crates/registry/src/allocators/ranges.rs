//! The ranges of cluster addresses, from every ServiceCIDR that is ready.

use std::fmt;
use std::net::Ipv4Addr;

use knarr_apimachinery::status::StatusError;
use knarr_storage::RangeRequest;
use serde_json::Value;

use crate::Registry;
use crate::metadata;
use crate::store_errors::status_of;

/// The name of the ServiceCIDR that the server itself creates.
pub const DEFAULT: &str = "kubernetes";
const GROUP: &str = "networking.k8s.io";

/// A contiguous range of IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub base: u32,
    /// The number of addresses, network and broadcast address included. For the whole address family it is one too
    /// small.
    pub size: u32,
}

impl Range {
    pub fn new(network: Ipv4Addr, length: u8) -> Self {
        let bits = 32 - u32::from(length.min(32));
        let mask = u32::MAX.checked_shl(bits).unwrap_or(0);
        Self { base: u32::from(network) & mask, size: 1u32.checked_shl(bits).unwrap_or(u32::MAX) }
    }

    /// Parses a range such as `10.43.0.0/16`; `None` for IPv6.
    pub fn parse(cidr: &str) -> Option<Self> {
        let (network, length) = cidr.split_once('/')?;
        Some(Self::new(network.parse().ok()?, length.parse().ok().filter(|l| *l <= 32)?))
    }

    /// Returns whether a Service may have this address. Network and broadcast addresses are excluded.
    pub fn contains(&self, ip: Ipv4Addr) -> bool {
        u32::from(ip).checked_sub(self.base).is_some_and(|o| o > 0 && o < self.size.saturating_sub(1))
    }

    pub fn address(&self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.base.saturating_add(offset))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = if self.size == u32::MAX { 0 } else { 32 - self.size.trailing_zeros() };
        write!(f, "{}/{length}", Ipv4Addr::from(self.base))
    }
}

/// Returns the IPv4 ranges of a ServiceCIDR if it is open for allocation.
fn open(cidr: &Value) -> Vec<Range> {
    let conditions = cidr["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True");
    if !ready || metadata::is_deleting(cidr) {
        return Vec::new();
    }
    let cidrs = cidr["spec"]["cidrs"].as_array();
    cidrs.into_iter().flatten().filter_map(|c| Range::parse(c.as_str()?)).collect()
}

/// Returns the ready ranges that the store holds, the default one first.
pub async fn ready(registry: &Registry) -> Result<Vec<Range>, StatusError> {
    let Some(served) = registry.table.find(GROUP, "v1", "servicecidrs") else {
        let (network, length) = registry.settings.service_cidr;
        return Ok(vec![Range::new(network, length)]);
    };
    let request = RangeRequest::prefix(served.prefix(None)).without_count();
    let all = registry.store.range(request).await.map_err(|e| status_of(&e))?;
    let mut cidrs: Vec<Value> =
        all.kvs.iter().filter_map(|kv| serde_json::from_slice(&kv.value).ok()).collect();
    cidrs.sort_by_key(|c| metadata::text(c, "name") != DEFAULT);
    Ok(cidrs.iter().flat_map(open).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_and_the_last_address_are_left_out() {
        for (cidr, ip, inside) in [
            ("10.43.0.0/16", "10.43.0.0", false),
            ("10.43.0.0/16", "10.43.0.1", true),
            ("10.43.0.0/16", "10.43.255.254", true),
            ("10.43.0.0/16", "10.43.255.255", false),
            ("10.43.0.0/16", "10.44.0.1", false),
            ("10.43.7.9/16", "10.43.0.1", true),
            ("10.1.0.0/30", "10.1.0.2", true),
            ("10.1.0.0/30", "10.1.0.3", false),
            ("10.1.0.0/31", "10.1.0.1", false),
            ("10.1.0.0/32", "10.1.0.0", false),
            ("0.0.0.0/0", "200.1.2.3", true),
        ] {
            assert_eq!(Range::parse(cidr).unwrap().contains(ip.parse().unwrap()), inside, "{cidr} {ip}");
        }
        for bad in ["fd00::/64", "10.0.0.0/33", "10.0.0.0", "x/8"] {
            assert_eq!(Range::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn ranges_are_shown_as_they_are_read() {
        for cidr in ["10.43.0.0/16", "10.0.0.0/8", "10.1.2.4/30", "0.0.0.0/0", "10.0.0.1/32"] {
            assert_eq!(Range::parse(cidr).unwrap().to_string(), cidr);
        }
    }

    #[test]
    fn only_ready_ranges_are_open() {
        let cidr = |status: &str| {
            json!({"spec": {"cidrs": ["10.1.0.0/24", "fd00::/64"]},
                "status": {"conditions": [{"type": "Ready", "status": status}]}})
        };
        assert_eq!(open(&cidr("True")), [Range::new(Ipv4Addr::new(10, 1, 0, 0), 24)]);
        assert!(open(&cidr("False")).is_empty());
        assert!(open(&json!({"spec": {"cidrs": ["10.1.0.0/24"]}})).is_empty());
        let mut leaving = cidr("True");
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(open(&leaving).is_empty());
    }
}
