//! Secret: data that is shown to few.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::core::v1 as api;
use serde_json::Value;

use crate::defaults::{blank, child};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};

pub const RESOURCE: Resource = Resource {
    selectable: &["type"],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Secret::RESOURCE, "SecretList", "secret", &Rules)
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Type", "string", "What the data is for."),
    Column::new("Data", "string", "How many entries it has."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::Secret>().unwrap_or_default();
    let entries = o.data.as_ref().map_or(0, |d| d.len());
    vec![
        Value::from(object.name()),
        Value::from(o.type_.as_deref().unwrap_or("")),
        Value::from(entries),
        table::age(o.metadata.creation_timestamp.as_ref(), cx),
    ]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        let fields = prepare::object(object);
        blank(fields, "type", "Opaque");
        let Some(Value::Object(plain)) = fields.remove("stringData") else { return };
        if !plain.is_empty() {
            let data = child(fields, "data");
            for (key, text) in plain {
                let encoded = BASE64.encode(text.as_str().unwrap_or(""));
                data.insert(key, Value::from(encoded));
            }
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }
}
