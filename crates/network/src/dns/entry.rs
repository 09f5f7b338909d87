//! The DNS entry of one service: a pure function of the service and its endpoint slices.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::protocol::Protocol;

/// A service's records, without its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceEntry {
    /// Empty for a headless service.
    pub cluster_ips: Vec<IpAddr>,
    /// The target name of a service of type ExternalName.
    pub external_name: Option<String>,
    pub ports: Vec<Port>,
    /// The published endpoints, sorted.
    pub endpoints: Vec<EndpointEntry>,
}

/// A port as in SRV records; the name may be empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub name: String,
    pub protocol: Protocol,
    pub number: u16,
}

/// An address of an endpoint, and its label below the service's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointEntry {
    pub hostname: String,
    pub ip: IpAddr,
    pub ports: Vec<Port>,
}

impl ServiceEntry {
    pub fn is_headless(&self) -> bool {
        self.cluster_ips.is_empty() && self.external_name.is_none()
    }
}

/// Returns the entry of a service.
pub fn service_entry(service: &Service, slices: &[Arc<EndpointSlice>]) -> ServiceEntry {
    let Some(spec) = &service.spec else { return ServiceEntry::default() };
    if spec.type_.as_deref() == Some("ExternalName") {
        let name = spec.external_name.as_deref().unwrap_or_default();
        return ServiceEntry { external_name: Some(name.to_ascii_lowercase()), ..ServiceEntry::default() };
    }
    let ips = match spec.cluster_ips.as_deref() {
        Some([]) | None => spec.cluster_ip.as_slice(),
        Some(ips) => ips,
    };
    let ports = spec
        .ports
        .iter()
        .flatten()
        .filter_map(|p| Port::new(p.name.as_deref(), p.protocol.as_deref(), p.port));
    let publish_all = spec.publish_not_ready_addresses.unwrap_or(false);
    let mut endpoints: Vec<_> =
        slices.iter().flat_map(|slice| endpoint_entries(slice, publish_all)).collect();
    endpoints.sort();
    endpoints.dedup();
    ServiceEntry {
        cluster_ips: ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
        external_name: None,
        ports: ports.collect(),
        endpoints,
    }
}

impl Port {
    fn new(name: Option<&str>, protocol: Option<&str>, number: i32) -> Option<Self> {
        Some(Self {
            name: name.unwrap_or_default().to_ascii_lowercase(),
            protocol: Protocol::from_api(protocol)?,
            number: u16::try_from(number).ok()?,
        })
    }
}

fn endpoint_entries(slice: &EndpointSlice, publish_all: bool) -> Vec<EndpointEntry> {
    let ports: Vec<_> = slice
        .ports
        .iter()
        .flatten()
        .filter_map(|p| Port::new(p.name.as_deref(), p.protocol.as_deref(), p.port?))
        .collect();
    let published = |endpoint: &&Endpoint| {
        publish_all || endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)
    };
    let entries = |endpoint: &Endpoint| -> Vec<EndpointEntry> {
        let ips = endpoint.addresses.iter().filter_map(|ip| ip.parse::<IpAddr>().ok());
        ips.map(|ip| EndpointEntry {
            hostname: match endpoint.hostname.as_deref() {
                Some(hostname) if !hostname.is_empty() => hostname.to_ascii_lowercase(),
                _ => dashed(ip),
            },
            ip,
            ports: ports.clone(),
        })
        .collect()
    };
    slice.endpoints.iter().flatten().filter(published).flat_map(entries).collect()
}

/// Returns the label of an endpoint without a hostname, for example `10-42-0-5`.
fn dashed(ip: IpAddr) -> String {
    ip.to_string().replace(['.', ':'], "-")
}
