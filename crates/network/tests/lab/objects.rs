//! Services and endpoint slices for tests.

use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

pub const VIP: Ipv4Addr = Ipv4Addr::new(10, 43, 0, 7);

/// Returns a service `default/NAME` on `ip` with TCP and UDP port 80; `extra` is merged into its spec.
pub fn service(name: &str, ip: Ipv4Addr, extra: Value) -> Arc<Service> {
    let mut spec = json!({
        "clusterIP": ip,
        "ports": [
            {"name": "t", "port": 80, "protocol": "TCP", "nodePort": extra.get("nodePort")},
            {"name": "u", "port": 80, "protocol": "UDP", "nodePort": extra.get("nodePort")},
        ],
    });
    if let (Some(spec), Value::Object(extra)) = (spec.as_object_mut(), extra) {
        spec.extend(extra.into_iter().filter(|(key, _)| key != "nodePort"));
    }
    let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
    Arc::new(serde_json::from_value(object).unwrap())
}

/// Returns ready endpoints of `default/NAME` at target port 8080, each (address, node).
pub fn slice(name: &str, endpoints: &[(Ipv4Addr, &str)]) -> Arc<EndpointSlice> {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|(ip, node)| json!({"addresses": [ip], "nodeName": node, "conditions": {"ready": true}}))
        .collect();
    let object = json!({
        "addressType": "IPv4",
        "metadata": {
            "name": format!("{name}-1"), "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "ports": [{"name": "t", "port": 8080, "protocol": "TCP"}, {"name": "u", "port": 8080, "protocol": "UDP"}],
        "endpoints": endpoints,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}
