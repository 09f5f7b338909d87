//! Resolves a Service to the address of a ready endpoint.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Why no address was found: the reason and message of the condition `Available`.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing {
    pub reason: &'static str,
    pub message: String,
}

/// The namespace, name and port of a Service.
#[derive(Debug, Clone, Copy)]
pub struct Reference<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub port: i32,
}

/// Returns an address and port of the Service; `choice` selects one of the ready endpoints.
pub fn resolve<'a>(
    to: Reference<'_>,
    service: Option<&'a Service>,
    slices: &'a [std::sync::Arc<EndpointSlice>],
    choice: usize,
) -> Result<(&'a str, u16), Missing> {
    let Reference { namespace, name, port } = to;
    let missing = |reason, message: String| Err(Missing { reason, message });
    let Some(spec) = service.and_then(|s| s.spec.as_ref()) else {
        return missing("ServiceNotFound", format!("service/{name} in \"{namespace}\" is not present"));
    };
    let number = u16::try_from(port).unwrap_or(0);
    if spec.type_.as_deref() == Some("ExternalName") {
        return Ok((spec.external_name.as_deref().unwrap_or(""), number));
    }
    let Some(found) = spec.ports.iter().flatten().find(|p| p.port == port) else {
        let message = format!("service/{name} in \"{namespace}\" is not listening on port {port}");
        return missing("ServicePortError", message);
    };
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in \"{namespace}\"");
        return missing("EndpointsNotFound", message);
    }
    let port_name = found.name.as_deref().unwrap_or("");
    let ready = ready_addresses(port_name, slices);
    match ready.len() {
        0 => missing(
            "MissingEndpoints",
            format!(
                "endpointslices for service/{name} in \"{namespace}\" have no addresses with port name \"{port_name}\""
            ),
        ),
        count => Ok(ready[choice % count]),
    }
}

fn ready_addresses<'a>(port_name: &str, slices: &'a [std::sync::Arc<EndpointSlice>]) -> Vec<(&'a str, u16)> {
    let mut ready = Vec::new();
    for slice in slices {
        let port = slice.ports.iter().flatten().find(|p| p.name.as_deref().unwrap_or("") == port_name);
        let Some(port) = port.and_then(|p| p.port).and_then(|p| u16::try_from(p).ok()) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            let is_ready = endpoint.conditions.as_ref().is_none_or(|c| c.ready != Some(false));
            if is_ready {
                ready.extend(endpoint.addresses.iter().map(|a| (a.as_str(), port)));
            }
        }
    }
    ready
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn slice(ready: bool) -> Arc<EndpointSlice> {
        Arc::new(
            serde_json::from_value(json!({
                "addressType": "IPv4", "ports": [{"name": "https", "port": 8443}],
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}},
                    {"addresses": ["10.0.0.2"], "conditions": {"ready": ready}}],
            }))
            .unwrap(),
        )
    }

    #[test]
    fn services_have_addresses_or_a_reason() {
        let to = Reference { namespace: "n", name: "s", port: 443 };
        let fine = service(json!({"type": "ClusterIP", "ports": [{"name": "https", "port": 443}]}));
        let other = service(json!({"type": "ClusterIP", "ports": [{"port": 80}]}));
        let external = service(json!({"type": "ExternalName", "externalName": "a.b"}));
        let reason = |service, slices: &[Arc<EndpointSlice>]| {
            resolve(to, service, slices, 0).map(|_| ()).unwrap_err().reason
        };
        assert_eq!(reason(None, &[]), "ServiceNotFound");
        assert_eq!(reason(Some(&other), &[]), "ServicePortError");
        assert_eq!(reason(Some(&fine), &[]), "EndpointsNotFound");
        assert_eq!(reason(Some(&fine), &[slice(false)]), "MissingEndpoints");
        let slices = [slice(true)];
        assert_eq!(resolve(to, Some(&fine), &slices, 0), Ok(("10.0.0.1", 8443)));
        assert_eq!(resolve(to, Some(&fine), &slices, 3), Ok(("10.0.0.2", 8443)));
        assert_eq!(resolve(to, Some(&external), &[], 0), Ok(("a.b", 443)));
    }
}
