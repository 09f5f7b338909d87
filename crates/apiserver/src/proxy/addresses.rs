//! Checks the addresses to which the proxies of nodes and pods connect: an address that a node or a pod reports must
//! not lead back to the API server's own machine.
//!
//! Source: Go's `IP.IsGlobalUnicast`, as `pkg/registry/core/{node,pod}` use it.

use std::net::IpAddr;

use knarr_apimachinery::status::StatusError;
use tokio::net::lookup_host;

/// Returns whether the address is neither unspecified, broadcast, loopback, multicast nor link-local. Private
/// addresses are allowed.
fn is_allowed(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified()
                || ip.is_broadcast()
                || ip.is_loopback()
                || ip.is_multicast()
                || ip.is_link_local())
        }
        IpAddr::V6(ip) => {
            !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || ip.is_unicast_link_local())
        }
    }
}

fn not_allowed() -> StatusError {
    StatusError::bad_request("address not allowed")
}

/// Checks a pod's address.
pub fn check(address: &str) -> Result<(), StatusError> {
    let allowed = address.parse().is_ok_and(is_allowed);
    if allowed { Ok(()) } else { Err(not_allowed()) }
}

/// Resolves the address of a node, which may be a host name; all addresses of the name must be allowed. The caller
/// dials the returned address, not the name, because the name may resolve to another address later.
pub async fn of_host(host: &str) -> Result<IpAddr, StatusError> {
    if let Ok(address) = host.parse() {
        return if is_allowed(address) { Ok(address) } else { Err(not_allowed()) };
    }
    let found = lookup_host((host, 0)).await.map_err(|e| StatusError::bad_request(e.to_string()))?;
    let mut found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    match found.first() {
        None => Err(StatusError::bad_request("no addresses for hostname")),
        Some(first) if found.iter().copied().all(is_allowed) => Ok(*first),
        Some(_) => Err(not_allowed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_and_link_are_refused() {
        for (address, allowed) in [
            ("10.0.0.1", true),
            ("203.0.113.7", true),
            ("fd00::1", true),
            ("2001:db8::1", true),
            ("0.0.0.0", false),
            ("127.0.0.1", false),
            ("127.8.8.8", false),
            ("169.254.169.254", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::ffff:127.0.0.1", false),
            ("localhost", false),
            ("", false),
        ] {
            assert_eq!(check(address).is_ok(), allowed, "{address}");
        }
    }

    #[tokio::test]
    async fn host_names_are_judged_by_their_addresses() {
        assert_eq!(of_host("localhost").await.unwrap_err().message(), "address not allowed");
        assert_eq!(of_host("10.0.0.1").await.unwrap(), IpAddr::from([10, 0, 0, 1]));
        assert!(of_host("127.0.0.1").await.is_err());
    }
}
