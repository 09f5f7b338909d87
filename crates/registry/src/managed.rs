//! Field ownership: managedFields, updated on every write, and server-side apply.

use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::patch::apply::{self as ssa, FieldSet, Manager};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::options::{FieldValidation, WriteParams};
use super::served::Served;
use super::target::Target;
use super::{Request, metadata};
use knarr_wire::yaml::Yaml;

/// The kind of update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Update,
    /// The apply has already updated managedFields.
    Apply,
}

/// Calls `run` with the field manager of a write. Fields that the endpoint resets are not recorded as owned.
fn with_manager<T>(
    served: &Served,
    name: &str,
    subresource: &str,
    now: jiff::Timestamp,
    run: impl FnOnce(&Manager<'_>) -> T,
) -> T {
    let kind: GroupVersionKind = served.resource.types.gvk();
    let reset = match subresource {
        "status" if served.resource.custom().is_some() => FieldSet::of_names(&[&["metadata"], &["spec"]]),
        "status" => FieldSet::of_names(&[&["spec"]]),
        "" if served.resource.types.plural == "certificatesigningrequests" => {
            FieldSet::of_names(&[&["spec"], &["status"]])
        }
        "" if served.resource.subresource("status").is_some() => FieldSet::of_names(&[&["status"]]),
        _ => FieldSet::new(),
    };
    let custom = served.resource.custom();
    let manager = Manager {
        name,
        subresource,
        kind: &kind,
        schema: served.schema,
        custom: custom.map(|c| &c.schema),
        reset: Some(&reset),
        now,
    };
    run(&manager)
}

/// Returns whether managedFields are kept. They are not where two resources share storage in different forms, because
/// field paths then differ.
fn is_tracked(served: &Served) -> bool {
    served.resource.stored_as.is_none()
}

/// Records the field manager that created the object.
pub fn created(served: &Served, params: &WriteParams, object: &mut Value, now: jiff::Timestamp) {
    if metadata::has_managed_fields(object) && params.applied {
        return;
    }
    if is_tracked(served) {
        with_manager(served, &params.field_manager, "", now, |by| ssa::update(None, object, by));
    }
}

/// Records the field manager of an update for the fields that it changed.
pub fn updated(
    served: &Served,
    params: &WriteParams,
    subresource: Option<&str>,
    how: Change,
    new: &mut Value,
    old: &Value,
    now: jiff::Timestamp,
) {
    if !is_tracked(served) {
        return;
    }
    if how == Change::Update {
        let subresource = subresource.unwrap_or("");
        with_manager(served, &params.field_manager, subresource, now, |by| ssa::update(Some(old), new, by));
    }
    ssa::keep_times(old, new);
}

/// Reads the body of an apply patch, YAML or JSON. The apply itself checks whether it fits the schema.
pub fn decode_applied(request: &Request) -> Result<Yaml, StatusError> {
    let mut yaml = Yaml::read(&request.body)
        .map_err(|e| StatusError::bad_request(format!("error decoding patch: {e}")))?;
    if let Some(what) = not_an_object(&yaml.value) {
        return Err(StatusError::bad_request(format!(
            "error decoding patch: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
        )));
    }
    if yaml.value.is_null() {
        yaml.value = Value::Object(serde_json::Map::new());
    }
    Ok(yaml)
}

/// Refuses an applied configuration with duplicate keys if field validation is strict.
pub fn check_repeated(applied: &Yaml, params: &WriteParams) -> Result<(), StatusError> {
    match applied.strict_error() {
        Some(error) if params.field_validation == FieldValidation::Strict => {
            let why = format!("error strict decoding patch: error converting YAML to JSON: {error}");
            Err(StatusError::bad_request(why))
        }
        _ => Ok(()),
    }
}

fn not_an_object(value: &Value) -> Option<&'static str> {
    match value {
        Value::Array(_) => Some("array"),
        Value::String(_) => Some("string"),
        Value::Number(_) => Some("number"),
        Value::Bool(_) => Some("bool"),
        Value::Null | Value::Object(_) => None,
    }
}

/// Returns the object after an apply.
pub fn apply(
    served: &Served,
    live: Option<&Value>,
    applied: &Value,
    target: Target<'_>,
    params: &WriteParams,
    now: jiff::Timestamp,
) -> Result<Value, StatusError> {
    let force = params.force.unwrap_or(false);
    let subresource = target.subresource.unwrap_or("");
    let new = with_manager(served, &params.field_manager, subresource, now, |by| {
        ssa::apply(live, applied, by, force)
    })?;
    // The merged object is decoded like a body: that normalizes it, and refuses what does not fit the schema.
    let managed = new.pointer("/metadata/managedFields").cloned();
    let text = knarr_wire::output::to_json(&new);
    let mut new = super::codec::decode_json(served, &text, false)?.value;
    if let Some(managed) = managed {
        knarr_api::prepare::metadata(&mut new).insert("managedFields".into(), managed);
    }
    Ok(new)
}
