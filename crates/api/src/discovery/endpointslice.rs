//! EndpointSlice: a part of the addresses behind a Service.

use std::collections::BTreeSet;

use k8s_openapi::api::discovery::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use crate::addresses;
use crate::core::endpoints::endpoint_ip;
use crate::defaults::{items, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::EndpointSlice::RESOURCE, "EndpointSliceList", "endpointslice", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("AddressType", "string", "The address type: IPv4, IPv6 or FQDN."),
    Column::new("Ports", "string", "The ports of all endpoints in the slice."),
    Column::new("Endpoints", "string", "The addresses of the endpoints."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::EndpointSlice>().unwrap_or_default();
    let ports = o.ports.iter().flatten().map(|p| match (p.port, &p.name) {
        (Some(port), _) => port.to_string(),
        (None, Some(name)) => name.clone(),
        (None, None) => "*".to_owned(),
    });
    let addresses = o.endpoints.iter().flatten().flat_map(|e| &e.addresses);
    vec![
        Value::from(object.name()),
        Value::from(o.address_type.as_str()),
        Value::from(table::three_of(ports, "<unset>")),
        Value::from(table::three_of(addresses, "<unset>")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        for port in items(prepare::object(object), "ports") {
            unset(port, "name", "");
            unset(port, "protocol", "TCP");
        }
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, _: Option<&str>) {
        let parts = ["/addressType", "/endpoints", "/ports", "/metadata/labels"];
        prepare::bump_generation(new, old, &parts);
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::EndpointSlice>().map(|o| validate_slice(&o)).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Ok(new), Ok(old)) = (new.typed::<api::EndpointSlice>(), old.typed::<api::EndpointSlice>())
        else {
            return ErrorList::new();
        };
        let mut errors = validate_slice(&new);
        if new.address_type != old.address_type {
            errors.push(validate::changed(&Path::new("addressType")));
        }
        errors
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        let Ok(slice) = new.typed::<api::EndpointSlice>() else { return Vec::new() };
        let mut warnings = Vec::new();
        if old.is_none() && slice.address_type == "FQDN" {
            warnings.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        let manager = new.header().label("endpointslice.kubernetes.io/managed-by").unwrap_or("");
        if matches!(manager, "endpointslice-controller.k8s.io" | "endpointslicemirroring-controller.k8s.io") {
            return warnings;
        }
        for (i, endpoint) in slice.endpoints.iter().flatten().enumerate() {
            for (j, address) in endpoint.addresses.iter().enumerate() {
                let path = Path::new("endpoints").index(i).child("addresses").index(j);
                warnings.extend(addresses::ip_warning(&path, address));
            }
        }
        warnings
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}

const MAX_ENDPOINTS: usize = 1000;
const MAX_PORTS: usize = 20000;
const MAX_ADDRESSES: usize = 100;
const MAX_HINTS: usize = 8;

fn validate_slice(slice: &api::EndpointSlice) -> ErrorList {
    let mut errors = ErrorList::new();
    let types = ["FQDN", "IPv4", "IPv6"];
    validate::one_of(&mut errors, &Path::new("addressType"), &slice.address_type, &types);
    validate_ports(&mut errors, slice.ports.as_deref().unwrap_or_default());
    let endpoints = slice.endpoints.as_deref().unwrap_or_default();
    let path = Path::new("endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(Error::too_many(&path, endpoints.len(), MAX_ENDPOINTS));
        return errors;
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        validate_endpoint(&mut errors, &path.index(i), endpoint, &slice.address_type);
    }
    errors
}

fn validate_ports(errors: &mut ErrorList, ports: &[api::EndpointPort]) {
    let path = Path::new("ports");
    if ports.len() > MAX_PORTS {
        errors.push(Error::too_many(&path, ports.len(), MAX_PORTS));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = port.name.as_deref().unwrap_or("");
        if !name.is_empty() {
            validate::dns_label(errors, &path.child("name"), name);
        }
        if !seen.insert(name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
        let protocol = port.protocol.as_deref().unwrap_or("");
        validate::one_of(errors, &path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]);
        if let Some(protocol) = &port.app_protocol {
            validate::label_key(errors, &path.child("appProtocol"), protocol);
        }
    }
}

fn validate_endpoint(errors: &mut ErrorList, path: &Path, endpoint: &api::Endpoint, family: &str) {
    let at = path.child("addresses");
    match endpoint.addresses.len() {
        0 => errors.push(Error::required(&at, "")),
        n if n > MAX_ADDRESSES => errors.push(Error::too_many(&at, n, MAX_ADDRESSES)),
        _ => {}
    }
    for (i, address) in endpoint.addresses.iter().enumerate() {
        if family == "FQDN" {
            validate::dns_subdomain(errors, &at.index(i), address);
        } else if let Some(ip) = addresses::ip(errors, &at.index(i), address) {
            if matches!(family, "IPv4" | "IPv6") && ip.is_ipv4() != (family == "IPv4") {
                let problem = format!("must be an {family} address");
                errors.push(Error::invalid(&at, address.as_str(), problem));
            }
            endpoint_ip(errors, &at.index(i), address);
        }
    }
    if let Some(name) = &endpoint.node_name {
        validate::dns_subdomain(errors, &path.child("nodeName"), name);
    }
    if let Some(name) = &endpoint.hostname {
        validate::dns_label(errors, &path.child("hostname"), name);
    }
    let hints = endpoint.hints.clone().unwrap_or_default();
    let zones: Vec<String> = hints.for_zones.into_iter().flatten().map(|z| z.name).collect();
    let nodes: Vec<String> = hints.for_nodes.into_iter().flatten().map(|n| n.name).collect();
    let path = path.child("hints");
    validate_hints(errors, &path.child("forZones"), &zones, names::label_value);
    validate_hints(errors, &path.child("forNodes"), &nodes, names::dns1123_subdomain);
}

fn validate_hints(errors: &mut ErrorList, path: &Path, hints: &[String], rule: fn(&str) -> names::Problems) {
    if hints.len() > MAX_HINTS {
        errors.push(Error::too_many(path, hints.len(), MAX_HINTS));
        return;
    }
    for (i, name) in hints.iter().enumerate() {
        let path = path.index(i).child("name");
        if hints[..i].contains(name) {
            errors.push(Error::duplicate(&path, name.as_str()));
        }
        validate::problems(errors, &path, name, rule(name));
    }
}
