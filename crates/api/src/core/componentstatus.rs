//! ComponentStatus: the health of the control plane's components (deprecated upstream).

use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::NAME;

pub const RESOURCE: Resource = Resource {
    short_names: &["cs"],
    verbs: &["get", "list"],
    deprecated: Some("v1 ComponentStatus is deprecated in v1.19+"),
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::ComponentStatus::RESOURCE, "ComponentStatusList", "componentstatus", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Status", "string", "The health of the component."),
    Column::new("Message", "string", "The message of the health check."),
    Column::new("Error", "string", "The error of the health check."),
];

fn cells(object: &Object, _: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ComponentStatus>().unwrap_or_default();
    let healthy = o.conditions.iter().flatten().find(|c| c.type_ == "Healthy");
    let status = match healthy.map(|c| c.status.as_str()) {
        None => "Unknown",
        Some("True") => "Healthy",
        Some(_) => "Unhealthy",
    };
    let text = |text: Option<&String>| Value::from(text.map_or("", String::as_str));
    vec![
        Value::from(object.name()),
        Value::from(status),
        text(healthy.and_then(|c| c.message.as_ref())),
        text(healthy.and_then(|c| c.error.as_ref())),
    ]
}

/// Objects of this kind are not stored: each request builds them.
struct Rules;

impl Strategy for Rules {
    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}
