//! ConfigMap: plain and binary configuration data.

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["cm"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::ConfigMap::RESOURCE, "ConfigMapList", "configmap", &Rules)
};

const COLUMNS: &[Column] = &[NAME, Column::new("Data", "string", "How many entries it has."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ConfigMap>().unwrap_or_default();
    let entries = o.data.as_ref().map_or(0, |d| d.len()) + o.binary_data.as_ref().map_or(0, |d| d.len());
    vec![
        Value::from(object.name()),
        Value::from(entries),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
