//! Endpoints: the addresses behind a Service; the older form of EndpointSlice.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::addresses;
use crate::defaults::{blank, items};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["ep"],
    deprecated: Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Endpoints::RESOURCE, "EndpointsList", "endpoints", &Rules)
};

const COLUMNS: &[Column] =
    &[NAME, Column::new("Endpoints", "string", "The ready addresses with their ports."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Endpoints>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(addresses(o.subsets.as_deref().unwrap_or_default())),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

/// Returns the cell with every ready address and port, at most three.
fn addresses(subsets: &[api::EndpointSubset]) -> String {
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let all = subsets.iter().flat_map(|subset| {
        let ips = subset.addresses.iter().flatten();
        let ports = subset.ports.as_deref().unwrap_or_default();
        match ports {
            [] => ips.map(|a| a.ip.clone()).collect::<Vec<_>>(),
            ports => ports.iter().flat_map(|p| ips.clone().map(|a| join(&a.ip, p.port))).collect(),
        }
    });
    table::three_of(all, "")
}

fn join(ip: &str, port: i32) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        for subset in items(prepare::object(object), "subsets") {
            for port in items(subset, "ports") {
                blank(port, "protocol", "TCP");
            }
        }
    }

    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Endpoints>().map(|o| validate_subsets(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::Endpoints>(), old.typed::<api::Endpoints>()) else {
            return ErrorList::new();
        };
        if new.subsets == old.subsets {
            // Unchanged subsets are not validated again, so that rules may become stricter.
            return ErrorList::new();
        }
        validate_subsets(&new)
    }

    fn warnings(&self, new: &Object, _: Option<&Object>) -> Vec<String> {
        let Ok(endpoints) = new.typed::<api::Endpoints>() else { return Vec::new() };
        if new.header().label("endpoints.kubernetes.io/managed-by") == Some("endpoint-controller") {
            return Vec::new();
        }
        let mut warnings = Vec::new();
        for (i, subset) in endpoints.subsets.iter().flatten().enumerate() {
            let path = Path::new("subsets").index(i);
            let lists =
                [("addresses", &subset.addresses), ("notReadyAddresses", &subset.not_ready_addresses)];
            for (field, list) in lists {
                for (j, address) in list.iter().flatten().enumerate() {
                    let path = path.child(field).index(j).child("ip");
                    warnings.extend(addresses::ip_warning(&path, &address.ip));
                }
            }
        }
        warnings
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

fn validate_subsets(endpoints: &api::Endpoints) -> ErrorList {
    let mut errors = ErrorList::new();
    for (i, subset) in endpoints.subsets.iter().flatten().enumerate() {
        let path = Path::new("subsets").index(i);
        let ready = subset.addresses.as_deref().unwrap_or_default();
        let not_ready = subset.not_ready_addresses.as_deref().unwrap_or_default();
        if ready.is_empty() && not_ready.is_empty() {
            errors.push(Error::required(&path, "must specify `addresses` or `notReadyAddresses`"));
        }
        for (field, list) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
            for (j, address) in list.iter().enumerate() {
                validate_address(&mut errors, &path.child(field).index(j), address);
            }
        }
        let ports = subset.ports.as_deref().unwrap_or_default();
        for (j, port) in ports.iter().enumerate() {
            validate_port(&mut errors, &path.child("ports").index(j), port, ports.len() > 1);
        }
    }
    errors
}

fn validate_address(errors: &mut ErrorList, path: &Path, address: &api::EndpointAddress) {
    addresses::ip(errors, &path.child("ip"), &address.ip);
    if let Some(name) = address.hostname.as_deref().filter(|n| !n.is_empty()) {
        validate::dns_label(errors, &path.child("hostname"), name);
    }
    if let Some(name) = &address.node_name {
        validate::dns_subdomain(errors, &path.child("nodeName"), name);
    }
    endpoint_ip(errors, &path.child("ip"), &address.ip);
}

fn validate_port(errors: &mut ErrorList, path: &Path, port: &api::EndpointPort, needs_name: bool) {
    match port.name.as_deref().unwrap_or("") {
        "" if needs_name => errors.push(Error::required(&path.child("name"), "")),
        "" => {}
        name => validate::dns_label(errors, &path.child("name"), name),
    }
    let number = i64::from(port.port);
    validate::number_problems(errors, &path.child("port"), number, names::port_number(number));
    let protocol = port.protocol.as_deref().unwrap_or("");
    validate::one_of(errors, &path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]);
    if let Some(protocol) = &port.app_protocol {
        validate::label_key(errors, &path.child("appProtocol"), protocol);
    }
}

/// Validates an address that other machines can send traffic to.
pub(crate) fn endpoint_ip(errors: &mut ErrorList, path: &Path, text: &str) {
    let mut unused = ErrorList::new();
    let Some(ip) = addresses::ip(&mut unused, path, text) else {
        errors.push(Error::invalid(path, text, "must be a valid IP address"));
        return;
    };
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(ip) => (ip.is_unicast_link_local(), ip.segments()[0] & 0xff0f == 0xff02),
    };
    for (found, problem) in [
        (ip.is_unspecified(), format!("may not be unspecified ({text})")),
        (ip.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()),
        (link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()),
        (
            link_local_multicast,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned(),
        ),
    ] {
        if found {
            errors.push(Error::invalid(path, text, problem));
        }
    }
}
