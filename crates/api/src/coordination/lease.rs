//! Lease: who holds what until when.

use k8s_openapi::api::coordination::v1 as api;
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Lease::RESOURCE, "LeaseList", "lease", &Rules)
};

const COLUMNS: &[Column] = &[NAME, Column::new("Holder", "string", "Who holds it."), AGE];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Lease>().unwrap_or_default();
    let holder = o.spec.as_ref().and_then(|s| s.holder_identity.as_deref()).unwrap_or("");
    vec![
        Value::from(object.name()),
        Value::from(holder),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
