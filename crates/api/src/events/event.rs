//! Event of `events.k8s.io`; stored as the core Event.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::events::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::{Map, Value, json};

use crate::core::event::{COLUMNS, event_cells, validate_event};
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Resource, StoredAs};
use crate::strategy::Strategy;
use crate::validate;

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

/// Returns the cells of the core form, for an object in either form.
fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    event_cells(&core_form(object).unwrap_or_default(), cx)
}

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let Some(event) = core_form(object) else { return ErrorList::new() };
        let mut errors = validate_event(&event, "reportingController");
        series(&mut errors, &event);
        if event.event_time.is_none() {
            errors.push(Error::required(&Path::new("eventTime"), ""));
        }
        let kind = event.type_.as_deref().unwrap_or("");
        if !matches!(kind, "Normal" | "Warning") {
            errors.push(Error::invalid(&Path::new("type"), "", format!("has invalid value: {kind}")));
        }
        let has_source = event.source.as_ref().is_some_and(|s| *s != Default::default());
        for (field, set) in [
            ("firstTimestamp", event.first_timestamp.is_some()),
            ("lastTimestamp", event.last_timestamp.is_some()),
            ("count", event.count.is_some_and(|c| c != 0)),
            ("source", has_source),
        ] {
            if set {
                errors.push(Error::invalid(&Path::new(field), "", "needs to be unset"));
            }
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _: Option<&str>) -> ErrorList {
        let (Some(event), Some(before)) = (core_form(new), core_form(old)) else {
            return ErrorList::new();
        };
        let mut errors = validate_event(&event, "reportingController");
        if event.series != before.series {
            series(&mut errors, &event);
        }
        let (new, old) = (validate::shown(&event), validate::shown(&before));
        for (field, core) in UNCHANGING {
            validate::immutable(&mut errors, &Path::new(field), &new[*core], &old[*core]);
        }
        errors
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

/// Fields that an update may not change: their names in errors and in the core form.
const UNCHANGING: &[(&str, &str)] = &[
    ("involvedObject", "involvedObject"),
    ("reason", "reason"),
    ("message", "message"),
    ("source", "source"),
    ("firstTimestamp", "firstTimestamp"),
    ("lastTimestamp", "lastTimestamp"),
    ("count", "count"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingComponent"),
    ("reportingInstance", "reportingInstance"),
];

fn core_form(object: &Object) -> Option<core::Event> {
    let parsed: Value = serde_json::from_slice(&object.json()).ok()?;
    serde_json::from_value(to_stored(&parsed)).ok()
}

fn series(errors: &mut ErrorList, event: &core::Event) {
    let Some(series) = &event.series else { return };
    if series.count.unwrap_or(0) < 2 {
        errors.push(Error::invalid(&Path::new("series.count"), "", "should be at least 2"));
    }
    if series.last_observed_time.is_none() {
        errors.push(Error::required(&Path::new("series.lastObservedTime"), ""));
    }
}

/// Fields by their name in this form and in the core form.
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

/// Converts an `events.k8s.io/v1` Event to the core form.
pub fn to_stored(event: &Value) -> Value {
    let mut out = convert(event, "v1", |field| {
        RENAMED.iter().find(|(here, _)| *here == field).map_or(field, |(_, core)| core)
    });
    // The core form requires both.
    for field in ["involvedObject", "metadata"] {
        if out[field].is_null() {
            out[field] = json!({});
        }
    }
    out
}

/// Converts a core Event to the `events.k8s.io/v1` form.
pub fn from_stored(event: &Value) -> Value {
    convert(event, "events.k8s.io/v1", |field| {
        RENAMED.iter().find(|(_, core)| *core == field).map_or(field, |(here, _)| here)
    })
}

/// Returns the field path of the core form for a path of this form.
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
