//! PodDisruptionBudget: how many pods of a set may be away at once.

use k8s_openapi::api::policy::v1 as api;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    short_names: &["pdb"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::PodDisruptionBudget::RESOURCE,
        "PodDisruptionBudgetList",
        "poddisruptionbudget",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Min Available", "string", "How many must stay."),
    Column::new("Max Unavailable", "string", "How many may be away."),
    Column::new("Allowed Disruptions", "integer", "How many may go now."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::PodDisruptionBudget>().unwrap_or_default();
    let shown = |bound: Option<&IntOrString>| match bound {
        None => Value::from("N/A"),
        Some(IntOrString::Int(n)) => Value::from(n.to_string()),
        Some(IntOrString::String(s)) => Value::from(s.as_str()),
    };
    let spec = o.spec.as_ref();
    vec![
        Value::from(object.name()),
        shown(spec.and_then(|s| s.min_available.as_ref())),
        shown(spec.and_then(|s| s.max_unavailable.as_ref())),
        table::count(o.status.as_ref().and_then(|s| s.disruptions_allowed)),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
