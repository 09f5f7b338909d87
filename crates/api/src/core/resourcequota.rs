//! ResourceQuota: how much a namespace may use.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["quota"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::ResourceQuota::RESOURCE, "ResourceQuotaList", "resourcequota", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Request", "string", "Used and allowed, requests and counts."),
    Column::new("Limit", "string", "Used and allowed limits."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ResourceQuota>().unwrap_or_default();
    let status = o.status.clone().unwrap_or_default();
    let used = status.used.unwrap_or_default();
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in status.hard.iter().flatten() {
        let line = format!("{resource}: {}/{}", used.get(resource).map_or("0", |q| &q.0), hard.0);
        if resource.starts_with("limits.") { limits.push(line) } else { requests.push(line) }
    }
    vec![
        Value::from(object.name()),
        Value::from(requests.join(", ")),
        Value::from(limits.join(", ")),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::clear(object, "status");
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_status(new, old, subresource);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
