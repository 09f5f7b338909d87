//! Event: a report of something that happened to an object.

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::resource::{CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table;
use crate::validate;

pub const RESOURCE: Resource = Resource {
    short_names: &["ev"],
    selectable: &[
        "involvedObject.apiVersion",
        "involvedObject.fieldPath",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.resourceVersion",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "source.component",
        "type",
    ],
    columns: COLUMNS,
    cells,
    ..Resource::stored(api::Event::RESOURCE, "EventList", "event", &Rules)
};

pub const COLUMNS: &[Column] = &[
    Column::new("Last Seen", "string", "The time since the last occurrence."),
    Column::new("Type", "string", "The type of the event: Normal or Warning."),
    Column::new("Reason", "string", "The reason for the event."),
    Column::new("Object", "string", "The object that the event is about."),
    Column::wide("Subobject", "string", "The field of the object that the event is about."),
    Column::wide("Source", "string", "The component that reported the event."),
    Column::new("Message", "string", "The description of the event."),
    Column::wide("First Seen", "string", "The time since the first occurrence."),
    Column::wide("Count", "string", "The number of occurrences."),
    Column { format: "name", ..Column::wide("Name", "string", "The name of the event.") },
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    event_cells(&object.typed::<api::Event>().unwrap_or_default(), cx)
}

/// Returns the cells of an Event in its core form.
pub fn event_cells(event: &api::Event, cx: &CellContext) -> Vec<Value> {
    let since = |then: Option<Timestamp>| table::since(then, cx.now);
    let first_at = event.first_timestamp.as_ref().map(|t| t.0).or(event.event_time.as_ref().map(|t| t.0));
    let first = since(first_at);
    let mut last = event.last_timestamp.as_ref().map_or(first.clone(), |t| since(Some(t.0)));
    // Events of `events.k8s.io` have no count unless they are a series.
    let mut count = event.count.filter(|c| *c != 0).unwrap_or(1);
    if let Some(series) = &event.series {
        last = since(series.last_observed_time.as_ref().map(|t| t.0));
        count = series.count.unwrap_or(0);
    }
    let about = &event.involved_object;
    let kind = about.kind.as_deref().unwrap_or("").to_lowercase();
    let target = match about.name.as_deref().unwrap_or("") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    vec![
        Value::from(last),
        Value::from(event.type_.as_deref().unwrap_or("")),
        Value::from(event.reason.as_deref().unwrap_or("")),
        Value::from(target),
        Value::from(about.field_path.as_deref().unwrap_or("")),
        Value::from(source(event)),
        Value::from(event.message.as_deref().unwrap_or("").trim()),
        Value::from(first),
        Value::from(count),
        Value::from(event.metadata.name.as_deref().unwrap_or("")),
    ]
}

/// Returns `component, host`, from the fields of either form.
fn source(event: &api::Event) -> String {
    let old = event.source.clone().unwrap_or_default();
    let filled =
        |a: Option<String>, b: &Option<String>| a.filter(|s| !s.is_empty()).or(b.clone()).unwrap_or_default();
    let component = filled(old.component, &event.reporting_component);
    let instance = filled(old.host, &event.reporting_instance);
    if instance.is_empty() { component } else { format!("{component}, {instance}") }
}

struct Rules;

impl Strategy for Rules {
    fn allow_create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object) -> ErrorList {
        object.typed::<api::Event>().map(|o| validate_event(&o, "reportingComponent")).unwrap_or_default()
    }

    fn validate_update(&self, new: &Object, _: &Object, _: Option<&str>) -> ErrorList {
        self.validate(new)
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::path_segment(name, prefix)
    }
}

/// The longest reporting instance, action and reason.
const WORD_MAX: usize = 128;
/// The longest message.
const NOTE_MAX: usize = 1024;
/// The same limits for events of the older form. Upstream has none there, and recorders write longer texts than the
/// limits above allow; but every node and controller may write any number of them.
const OLD_WORD_MAX: usize = 1024;
const OLD_MESSAGE_MAX: usize = 16 * 1024;

/// Validates an event of either form; `reporter` is the name of the reporting controller's field.
pub fn validate_event(event: &api::Event, reporter: &str) -> ErrorList {
    let mut errors = ErrorList::new();
    let namespace = event.metadata.namespace.as_deref().unwrap_or("");
    let about = event.involved_object.namespace.as_deref().unwrap_or("");
    let fits = match (event.event_time.is_some(), about) {
        (false, "") => matches!(namespace, "" | "default"),
        (false, about) => about == namespace,
        (true, "") => matches!(namespace, "default" | "kube-system"),
        (true, _) => true,
    };
    if !fits {
        let path = Path::new("involvedObject").child("namespace");
        errors.push(Error::invalid(&path, about, "does not match event.namespace"));
    }
    if event.event_time.is_none() {
        limit_old(&mut errors, event);
        return errors;
    }
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let controller = text(&event.reporting_component);
    validate::required(&mut errors, &Path::new(reporter), &controller);
    validate::label_key(&mut errors, &Path::new(reporter), &controller);
    for (field, value) in [
        ("reportingInstance", text(&event.reporting_instance)),
        ("action", text(&event.action)),
        ("reason", text(&event.reason)),
    ] {
        validate::required(&mut errors, &Path::new(field), &value);
        if value.len() > WORD_MAX {
            let problem = format!("can have at most {WORD_MAX} characters");
            errors.push(Error::invalid(&Path::new(field), "", problem));
        }
    }
    if text(&event.message).len() > NOTE_MAX {
        let problem = format!("can have at most {NOTE_MAX} characters");
        errors.push(Error::invalid(&Path::new("message"), "", problem));
    }
    errors
}

/// Limits the lengths of the texts of an event of the older form.
fn limit_old(errors: &mut ErrorList, event: &api::Event) {
    let source = event.source.clone().unwrap_or_default();
    for (path, value, most) in [
        (Path::new("message"), &event.message, OLD_MESSAGE_MAX),
        (Path::new("reason"), &event.reason, OLD_WORD_MAX),
        (Path::new("type"), &event.type_, OLD_WORD_MAX),
        (Path::new("action"), &event.action, OLD_WORD_MAX),
        (Path::new("reportingComponent"), &event.reporting_component, OLD_WORD_MAX),
        (Path::new("reportingInstance"), &event.reporting_instance, OLD_WORD_MAX),
        (Path::new("source").child("component"), &source.component, OLD_WORD_MAX),
        (Path::new("source").child("host"), &source.host, OLD_WORD_MAX),
    ] {
        if value.as_ref().is_some_and(|value| value.len() > most) {
            errors.push(Error::invalid(&path, "", format!("can have at most {most} characters")));
        }
    }
    let mut objects = vec![("involvedObject", &event.involved_object)];
    objects.extend(event.related.iter().map(|related| ("related", related)));
    for (name, object) in objects {
        for (field, value) in [
            ("kind", &object.kind),
            ("name", &object.name),
            ("namespace", &object.namespace),
            ("uid", &object.uid),
            ("apiVersion", &object.api_version),
            ("resourceVersion", &object.resource_version),
            ("fieldPath", &object.field_path),
        ] {
            if value.as_ref().is_some_and(|value| value.len() > OLD_WORD_MAX) {
                let problem = format!("can have at most {OLD_WORD_MAX} characters");
                errors.push(Error::invalid(&Path::new(name).child(field), "", problem));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_of_the_older_form_have_a_limit() {
        let problems = |change: Value| -> Vec<String> {
            let mut event = json!({
                "metadata": {"name": "e", "namespace": "a"},
                "involvedObject": {"kind": "Pod", "name": "p", "namespace": "a"},
                "message": "m".repeat(OLD_MESSAGE_MAX), "reason": "r".repeat(OLD_WORD_MAX),
            });
            if let (Some(event), Value::Object(change)) = (event.as_object_mut(), change) {
                event.extend(change);
            }
            let event: api::Event = serde_json::from_value(event).unwrap();
            validate_event(&event, "reportingComponent").0.iter().map(ToString::to_string).collect()
        };
        assert!(problems(json!({})).is_empty());
        let long = "x".repeat(OLD_WORD_MAX + 1);
        for (change, field) in [
            (json!({"message": "m".repeat(OLD_MESSAGE_MAX + 1)}), "message"),
            (json!({"reason": long}), "reason"),
            (json!({"source": {"host": long}}), "source.host"),
            (json!({"related": {"fieldPath": long}}), "related.fieldPath"),
            (json!({"involvedObject": {"namespace": "a", "uid": long}}), "involvedObject.uid"),
        ] {
            let found = problems(change);
            assert!(
                found.len() == 1 && found[0].starts_with(&format!("{field}: Invalid value")),
                "{found:?}"
            );
        }
    }
}
