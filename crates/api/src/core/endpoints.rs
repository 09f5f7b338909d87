//! Endpoints: the addresses behind a Service, in the older form.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::defaults::{blank, items};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["ep"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Endpoints::RESOURCE, "EndpointsList", "endpoints", &Rules)
};

const COLUMNS: &[Column] =
    &[NAME, Column::new("Endpoints", "string", "Addresses and ports that are ready."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Endpoints>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        Value::from(addresses(o.subsets.as_deref().unwrap_or_default())),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

/// Every ready address with every port, at most three shown.
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

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
