//! PriorityClass: a name for a pod priority.

use k8s_openapi::api::scheduling::v1 as api;
use serde_json::Value;

use crate::defaults::unset;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["pc"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::PriorityClass::RESOURCE, "PriorityClassList", "priorityclass", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Value", "integer", "The priority."),
    Column::new("Global-Default", "boolean", "Whether pods without a class get it."),
    AGE,
    Column::wide("PreemptionPolicy", "string", "Whether its pods may push others out."),
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PriorityClass>().unwrap_or_default();
    vec![
        Value::from(object.name()),
        table::count(o.value),
        Value::from(o.global_default.unwrap_or(false)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
        Value::from(o.preemption_policy.as_deref().unwrap_or("")),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        unset(prepare::object(object), "preemptionPolicy", "PreemptLowerPriority");
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::set_generation(object, 1);
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
