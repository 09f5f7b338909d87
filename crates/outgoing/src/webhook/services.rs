//! Resolves a Service and its EndpointSlices to the address of a ready endpoint.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_apimachinery::status::StatusError;

/// Resolves Services to addresses.
pub trait Services: Send + Sync {
    /// Returns the host and port of a backend of this port of the Service.
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<(String, u16), StatusError>;
}

/// Returns a ready endpoint, selected by a random number; endpoints of the Service's first address family are
/// preferred.
pub fn endpoint(
    service: &Service,
    slices: &[&EndpointSlice],
    port: u16,
    random: usize,
) -> Result<(String, u16), StatusError> {
    let name = service.metadata.name.as_deref().unwrap_or("");
    let spec = service.spec.as_ref();
    let type_ = spec.and_then(|s| s.type_.as_deref()).unwrap_or("ClusterIP");
    if type_ == "ExternalName" {
        let host = spec.and_then(|s| s.external_name.clone()).unwrap_or_default();
        return Ok((host, port));
    }
    if !matches!(type_, "ClusterIP" | "NodePort" | "LoadBalancer") {
        return Err(StatusError::internal(format!("unsupported service type {type_:?}")));
    }
    let mut ports = spec.into_iter().flat_map(|s| s.ports.iter().flatten());
    let Some(found) = ports.find(|p| p.port == i32::from(port)) else {
        let why = format!("no service port {port} found for service {name:?}");
        return Err(StatusError::unavailable(why));
    };
    let port_name = found.name.as_deref().unwrap_or("");
    let family = spec.and_then(|s| s.ip_families.as_ref()).and_then(|f| f.first());
    let preferred = |s: &&EndpointSlice| family.is_none_or(|f| *f == s.address_type);
    let (first, second): (Vec<&EndpointSlice>, Vec<&EndpointSlice>) =
        slices.iter().copied().partition(preferred);
    for slice in rotated(&first, random).chain(rotated(&second, random)) {
        let ports = slice.ports.iter().flatten();
        let Some(port) = ports
            .filter(|p| p.name.as_deref().unwrap_or("") == port_name)
            .find_map(|p| p.port.and_then(|p| u16::try_from(p).ok()))
        else {
            continue;
        };
        let endpoints = slice.endpoints.as_deref().unwrap_or_default();
        let ready =
            rotated(endpoints, random).find(|e| e.conditions.as_ref().is_none_or(|c| c.ready != Some(false)));
        if let Some(address) = ready.and_then(|e| e.addresses.first()) {
            return Ok((address.clone(), port));
        }
    }
    Err(StatusError::unavailable(format!("no endpoints available for service {name:?}")))
}

/// Iterates over a whole list, starting at a random position.
fn rotated<T>(list: &[T], random: usize) -> impl Iterator<Item = &T> {
    let start = if list.is_empty() { 0 } else { random % list.len() };
    list[start..].iter().chain(&list[..start])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn resolve(spec: Value, slices: &[Value], port: u16, random: usize) -> String {
        let service = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap();
        let slices: Vec<EndpointSlice> =
            slices.iter().map(|s| serde_json::from_value(s.clone()).unwrap()).collect();
        let slices: Vec<&EndpointSlice> = slices.iter().collect();
        match endpoint(&service, &slices, port, random) {
            Ok((host, port)) => format!("{host} {port}"),
            Err(error) => error.message().to_owned(),
        }
    }

    fn slice(type_: &str, port: &str, endpoints: Value) -> Value {
        json!({"addressType": type_, "ports": [{"name": port, "port": 8443}], "endpoints": endpoints})
    }

    #[test]
    fn a_ready_endpoint_of_the_port() {
        let spec =
            json!({"type": "ClusterIP", "ipFamilies": ["IPv4"], "ports": [{"name": "web", "port": 443}]});
        let not_ready = json!({"addresses": ["10.0.0.1"], "conditions": {"ready": false}});
        let ready = json!({"addresses": ["10.0.0.2"], "conditions": {"ready": true}});
        let other = json!({"addresses": ["10.0.0.3"], "conditions": {}});
        let six = slice("IPv6", "web", json!([{"addresses": ["fd00::1"], "conditions": {}}]));
        let both = slice("IPv4", "web", json!([not_ready, ready, other]));
        for (slices, port, random, expected) in [
            (vec![both.clone(), six.clone()], 443, 0, "10.0.0.2 8443"),
            (vec![six.clone(), both.clone()], 443, 2, "10.0.0.3 8443"),
            (vec![six.clone()], 443, 7, "fd00::1 8443"),
            (vec![both.clone()], 80, 0, "no service port 80 found for service \"s\""),
            (
                vec![slice("IPv4", "web", json!([not_ready]))],
                443,
                0,
                "no endpoints available for service \"s\"",
            ),
            (vec![slice("IPv4", "x", json!([ready]))], 443, 0, "no endpoints available for service \"s\""),
            (vec![], 443, 0, "no endpoints available for service \"s\""),
        ] {
            assert_eq!(resolve(spec.clone(), &slices, port, random), expected);
        }
        let named = json!({"type": "ExternalName", "externalName": "a.example"});
        assert_eq!(resolve(named, &[], 443, 0), "a.example 443");
    }
}
