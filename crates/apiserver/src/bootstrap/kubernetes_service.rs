//! The `kubernetes` Service in the default namespace, and its endpoints: the live servers.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::state::State;
use knarr_registry::managed::Change;
use knarr_registry::options::WriteParams;
use knarr_registry::own::ensure;
use knarr_registry::target::Target;
use knarr_registry::update::modify;
use knarr_wire::request::Request;

const TARGET: Target<'_> = Target { namespace: "default", name: "kubernetes", subresource: None };

pub async fn reconcile(server: &State, request: &Request) -> Result<(), StatusError> {
    let advertise = server.config.advertise;
    let (network, length) = server.config.service_cidr;
    let mask = u32::MAX << (32 - u32::from(length.clamp(8, 30)));
    let address = Ipv4Addr::from((u32::from(network) & mask) + 1);
    let labels = json!({"component": "apiserver", "provider": "kubernetes"});
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": labels},
        "spec": {
            "type": "ClusterIP", "clusterIP": address.to_string(), "clusterIPs": [address.to_string()],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": advertise.port()}],
        },
    });
    if let Some(services) = server.registry.table.v1("", "services") {
        ensure(&server.registry, request, &services, service).await?;
    }
    Ok(())
}

/// Writes the endpoints of the Service. Addresses of another family than this server's are left out.
pub async fn set_endpoints(
    server: &State,
    request: &Request,
    servers: &BTreeSet<IpAddr>,
) -> Result<(), StatusError> {
    let advertise = server.config.advertise;
    let family = if advertise.is_ipv4() { "IPv4" } else { "IPv6" };
    let ips: Vec<String> =
        servers.iter().filter(|ip| ip.is_ipv4() == advertise.is_ipv4()).map(ToString::to_string).collect();
    let ports = json!([{"name": "https", "port": advertise.port(), "protocol": "TCP"}]);
    let addresses: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    let subsets = if ips.is_empty() { json!([]) } else { json!([{"addresses": addresses, "ports": ports}]) };
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": subsets,
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": family,
        "endpoints": ips.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect::<Vec<_>>(),
        "ports": ports,
    });
    set(server, request, "", "endpoints", endpoints, &["subsets"]).await?;
    set(server, request, "discovery.k8s.io", "endpointslices", slice, &["endpoints", "ports"]).await
}

/// Creates the object, or updates these fields of it, because the server's address may have changed.
async fn set(
    server: &State,
    request: &Request,
    group: &str,
    plural: &str,
    object: Value,
    fields: &[&str],
) -> Result<(), StatusError> {
    let Some(served) = server.registry.table.v1(group, plural) else { return Ok(()) };
    ensure(&server.registry, request, &served, object.clone()).await?;
    let change = |old: &Value| {
        let mut new = old.clone();
        for field in fields {
            new[*field] = object[*field].clone();
        }
        Ok(new)
    };
    modify(&server.registry, request, &served, &WriteParams::own(), TARGET, Change::Update, &change)
        .await
        .map(|_| ())
}
