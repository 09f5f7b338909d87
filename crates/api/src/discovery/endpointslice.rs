//! EndpointSlice: a part of the addresses behind a Service.

use k8s_openapi::api::discovery::v1 as api;
use serde_json::Value;

use crate::defaults::{items, unset};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::EndpointSlice::RESOURCE, "EndpointSliceList", "endpointslice", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("AddressType", "string", "IPv4, IPv6 or FQDN."),
    Column::new("Ports", "string", "The ports of every endpoint."),
    Column::new("Endpoints", "string", "The addresses."),
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

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
