//! Decides which inconsistencies exist between a Service and its IPAddress objects, and how to repair them.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use knarr_api::kind::Kind;

use knarr_registry::allocators::addresses::{ALLOCATOR, FAMILY, MANAGED_BY};
use knarr_registry::allocators::ranges::Range;

/// How long an address may exist without its Service: a request in progress ends within this time.
const GRACE_SECONDS: i64 = 60;

/// The repair; the texts are reasons and messages of events.
#[derive(Debug, PartialEq, Eq)]
pub enum Mend {
    Fine,
    Report(&'static str, String),
    /// Writes the address again.
    Recreate(Option<(&'static str, String)>),
    /// Deletes the address.
    Delete(&'static str, String),
    /// Checks again later, because a write may still be in progress.
    Later(Duration),
}

pub fn ranges(cidr: &ServiceCIDR) -> Vec<Range> {
    let cidrs = cidr.spec.as_ref().and_then(|s| s.cidrs.as_ref());
    cidrs.into_iter().flatten().filter_map(|c| Range::parse(c)).collect()
}

/// Returns the addresses of a Service.
pub fn cluster_ips(service: &Service) -> Vec<String> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let headless = spec.cluster_ip.as_deref().is_none_or(|ip| ip.is_empty() || ip == "None");
    if headless || spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    spec.cluster_ips.clone().unwrap_or_default()
}

/// Checks one address of a Service. `address` is the object of that name, `referred` the Service that it refers to.
pub fn service(
    service: &Service,
    ip: &str,
    ranges: &[Range],
    address: Option<&IPAddress>,
    referred: Option<&Service>,
) -> Mend {
    let Ok(parsed) = ip.parse::<IpAddr>() else {
        let why = format!("Cluster IP {ip} is not a valid IP; please recreate Service");
        return Mend::Report("ClusterIPNotValid", why);
    };
    let family = if parsed.is_ipv4() { "IPv4" } else { "IPv6" };
    let of = (service.namespace(), service.name());
    let inside = |ip: Ipv4Addr| ranges.iter().any(|r| r.contains(ip));
    if matches!(parsed, IpAddr::V4(ip) if !inside(ip)) {
        let why = format!(
            "Cluster IP [{family}]: {ip} is not within any configured Service CIDR; please recreate service"
        );
        return Mend::Report("ClusterIPOutOfRange", why);
    }
    let Some(address) = address else {
        let why = format!("Cluster IP [{family}]: {ip} is not allocated; repairing");
        return Mend::Recreate(Some(("ClusterIPNotAllocated", why)));
    };
    let parent = &address.spec.parent_ref;
    let wrong = || {
        let why = format!(
            "the ClusterIP [{family}]: {ip} for Service {}/{} has a wrong reference; repairing",
            of.0, of.1
        );
        Mend::Recreate(Some(("ClusterIPNotAllocated", why)))
    };
    if parent.group.as_deref().is_some_and(|g| !g.is_empty()) || parent.resource != "services" {
        return wrong();
    }
    if (parent.namespace.as_deref().unwrap_or(""), parent.name.as_str()) != of {
        return match referred {
            Some(other) if cluster_ips(other).iter().any(|o| o == ip) => {
                let why = format!(
                    "Cluster IP [{family}]:{ip} was assigned to multiple services; please recreate service"
                );
                Mend::Report("ClusterIPAlreadyAllocated", why)
            }
            Some(_) => Mend::Fine,
            None => wrong(),
        };
    }
    let label = |key: &str| address.metadata.labels.as_ref().and_then(|l| l.get(key)).map(String::as_str);
    if label(MANAGED_BY) == Some(ALLOCATOR) && label(FAMILY) == Some(family) {
        Mend::Fine
    } else {
        Mend::Recreate(None)
    }
}

/// Checks an address and the Service that it refers to.
pub fn address(address: &IPAddress, service: Option<&Service>, now: Timestamp) -> Mend {
    let managed = address.metadata.labels.as_ref().and_then(|l| l.get(MANAGED_BY));
    if managed.map(String::as_str) != Some(ALLOCATOR) || address.metadata.deletion_timestamp.is_some() {
        return Mend::Fine;
    }
    let (name, parent) = (address.name(), &address.spec.parent_ref);
    if parent.group.as_deref().is_some_and(|g| !g.is_empty()) || parent.resource != "services" {
        let why = format!(
            "IPAddress {name} appears to have been modified, not referencing a Service &ParentReference{{Group:{},Resource:{},Namespace:{},Name:{},}}: cleaning up",
            parent.group.as_deref().unwrap_or(""),
            parent.resource,
            parent.namespace.as_deref().unwrap_or(""),
            parent.name
        );
        return Mend::Delete("IPAddressNotAllocated", why);
    }
    let of = format!("{}/{}", parent.namespace.as_deref().unwrap_or(""), parent.name);
    let age = address.metadata.creation_timestamp.as_ref().map_or(0, |t| now.duration_since(t.0).as_secs());
    let left = GRACE_SECONDS.saturating_sub(age);
    let later = || Mend::Later(Duration::from_secs(u64::try_from(left).unwrap_or(0).saturating_add(1)));
    let Some(service) = service else {
        if left >= 0 {
            return later();
        }
        let why = format!("IPAddress: {name} for Service {of} appears to have leaked: cleaning up");
        return Mend::Delete("IPAddressNotAllocated", why);
    };
    if cluster_ips(service).iter().any(|ip| ip == name) {
        return Mend::Fine;
    }
    let external = service.spec.as_ref().and_then(|s| s.type_.as_deref()) == Some("ExternalName");
    if external && left > 0 {
        return later();
    }
    Mend::Delete(
        "IPAddressWrongReference",
        format!("IPAddress: {name} for Service {of} has a wrong reference; cleaning up"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use knarr_registry::allocators::addresses;

    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn web(ip: &str) -> Service {
        of(json!({"metadata": {"namespace": "shop", "name": "web"},
            "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip]}}))
    }

    fn reason(mend: &Mend) -> &'static str {
        match mend {
            Mend::Fine => "fine",
            Mend::Recreate(None) => "labels",
            Mend::Report(reason, _) | Mend::Recreate(Some((reason, _))) | Mend::Delete(reason, _) => reason,
            Mend::Later(_) => "later",
        }
    }

    #[test]
    fn a_service_has_the_address_that_it_says() {
        let ranges = [Range::parse("10.43.0.0/16").unwrap()];
        let ip = "10.43.0.9";
        let own: IPAddress = of(addresses::object(ip, "shop", "web"));
        let mut bare = own.clone();
        bare.metadata.labels = None;
        let mut gateway = own.clone();
        gateway.spec.parent_ref.resource = "gateways".into();
        let others: IPAddress = of(addresses::object(ip, "shop", "api"));
        let elsewhere = web("10.43.0.10");
        for (service_ip, address, referred, want) in [
            (ip, Some(&own), None, "fine"),
            (ip, Some(&bare), None, "labels"),
            (ip, None, None, "ClusterIPNotAllocated"),
            (ip, Some(&gateway), None, "ClusterIPNotAllocated"),
            (ip, Some(&others), None, "ClusterIPNotAllocated"),
            (ip, Some(&others), Some(web(ip)), "ClusterIPAlreadyAllocated"),
            (ip, Some(&others), Some(elsewhere), "fine"),
            ("10.96.0.9", None, None, "ClusterIPOutOfRange"),
            ("nonsense", None, None, "ClusterIPNotValid"),
        ] {
            let mend = service(&web(service_ip), service_ip, &ranges, address, referred.as_ref());
            assert_eq!(reason(&mend), want, "{service_ip} {mend:?}");
        }
        assert!(cluster_ips(&web("None")).is_empty());
    }

    #[test]
    fn an_address_without_its_service_goes_after_a_minute() {
        let mut own: IPAddress = of(addresses::object("10.43.0.9", "shop", "web"));
        let born: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        own.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(born));
        let at = |s: i64| born + jiff::SignedDuration::from_secs(s);
        assert_eq!(address(&own, None, at(20)), Mend::Later(Duration::from_secs(41)));
        assert_eq!(reason(&address(&own, None, at(61))), "IPAddressNotAllocated");
        assert_eq!(reason(&address(&own, Some(&web("10.43.0.9")), at(61))), "fine");
        assert_eq!(reason(&address(&own, Some(&web("10.43.0.8")), at(61))), "IPAddressWrongReference");
        let mut users = own.clone();
        users.metadata.labels = None;
        assert_eq!(address(&users, None, at(1000)), Mend::Fine);
        own.spec.parent_ref.resource = "gateways".into();
        assert_eq!(reason(&address(&own, None, at(0))), "IPAddressNotAllocated");
    }
}
