//! Event in its `events.k8s.io` form; stored as the core Event.

use k8s_openapi::api::events::v1 as api;
use serde_json::{Map, Value, json};

use crate::core::event::{COLUMNS, event_cells};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Resource, StoredAs};
use crate::strategy::Strategy;

pub const RESOURCE: Resource = Resource {
    short_names: &["ev"],
    selectable: &[
        "reason",
        "regarding.apiVersion",
        "regarding.fieldPath",
        "regarding.kind",
        "regarding.name",
        "regarding.namespace",
        "regarding.resourceVersion",
        "regarding.uid",
        "reportingController",
        "type",
    ],
    stored_as: Some(&StoredAs { resource: ("", "v1", "events"), to_stored, from_stored, stored_field }),
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Event::RESOURCE, "EventList", "event", &Rules)
};

/// The core form's cells, whichever form the object is in.
fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let parsed: Value = serde_json::from_slice(object.json()).unwrap_or_default();
    event_cells(&serde_json::from_value(to_stored(&parsed)).unwrap_or_default(), cx)
}

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

/// Fields by their name here and their name in the core form.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

fn convert(event: &Value, api_version: &str, rename: impl Fn(&str) -> &str) -> Value {
    let mut out = Map::new();
    for (field, value) in event.as_object().into_iter().flatten() {
        out.insert(rename(field).to_owned(), value.clone());
    }
    out.insert("apiVersion".to_owned(), json!(api_version));
    Value::Object(out)
}

/// The core form of an `events.k8s.io/v1` Event.
pub fn to_stored(event: &Value) -> Value {
    let mut out = convert(event, "v1", |field| {
        RENAMED.iter().find(|(here, _)| *here == field).map_or(field, |(_, core)| core)
    });
    // Both are required in the core form.
    for field in ["involvedObject", "metadata"] {
        if out[field].is_null() {
            out[field] = json!({});
        }
    }
    out
}

/// The `events.k8s.io/v1` form of a core Event.
pub fn from_stored(event: &Value) -> Value {
    convert(event, "events.k8s.io/v1", |field| {
        RENAMED.iter().find(|(_, core)| *core == field).map_or(field, |(here, _)| here)
    })
}

/// The core form's field path for one of this form.
pub fn stored_field(path: &str) -> Option<&'static str> {
    Some(match path {
        "metadata.name" => "metadata.name",
        "metadata.namespace" => "metadata.namespace",
        "reason" => "reason",
        "type" => "type",
        "reportingController" => "reportingComponent",
        "regarding.apiVersion" => "involvedObject.apiVersion",
        "regarding.fieldPath" => "involvedObject.fieldPath",
        "regarding.kind" => "involvedObject.kind",
        "regarding.name" => "involvedObject.name",
        "regarding.namespace" => "involvedObject.namespace",
        "regarding.resourceVersion" => "involvedObject.resourceVersion",
        "regarding.uid" => "involvedObject.uid",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_convert_into_each_other() {
        let here = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a"},
            "regarding": {"kind": "Pod", "name": "p"}, "note": "hello", "reason": "R", "type": "Normal",
            "reportingController": "c", "reportingInstance": "i", "action": "A",
            "deprecatedCount": 2, "series": {"count": 3}, "related": {"kind": "Node"},
        });
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"},
            "involvedObject": {"kind": "Pod", "name": "p"}, "message": "hello", "reason": "R", "type": "Normal",
            "reportingComponent": "c", "reportingInstance": "i", "action": "A",
            "count": 2, "series": {"count": 3}, "related": {"kind": "Node"},
        });
        assert_eq!(to_stored(&here), core);
        assert_eq!(from_stored(&core), here);
    }

    #[test]
    fn every_selectable_field_has_a_stored_one() {
        for path in RESOURCE.selectable {
            let stored = stored_field(path).unwrap_or_else(|| panic!("{path}"));
            assert!(crate::core::event::RESOURCE.selectable.contains(&stored), "{stored}");
        }
    }
}
