//! The `scale` subresource of a custom resource, at the paths that its definition specifies.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::{Map, Value, json};

use crate::apiextensions::definition::Scale;
use crate::prepare::{self, object};

fn steps(path: &str) -> Vec<&str> {
    path.strip_prefix('.').unwrap_or(path).split('.').collect()
}

fn wrong_type(path: &str, value: &Value, wanted: &str) -> String {
    let (shown, ty) = match value {
        Value::Null => ("<nil>".to_owned(), "<nil>"),
        Value::Bool(b) => (b.to_string(), "bool"),
        Value::Number(n) => (n.to_string(), if n.is_i64() { "int64" } else { "float64" }),
        Value::String(s) => (s.clone(), "string"),
        Value::Array(_) => (value.to_string(), "[]interface {}"),
        Value::Object(_) => (value.to_string(), "map[string]interface {}"),
    };
    format!(".{} accessor error: {shown} is of the type {ty}, expected {wanted}", steps(path).join("."))
}

/// Returns the value at the path; `None` if a part of the path is missing.
fn at<'v>(value: &'v Value, path: &str) -> Result<Option<&'v Value>, String> {
    let mut found = value;
    for step in steps(path) {
        let Some(map) = found.as_object() else {
            return Err(wrong_type(path, found, "map[string]interface{}"));
        };
        match map.get(step) {
            Some(next) => found = next,
            None => return Ok(None),
        }
    }
    Ok(Some(found))
}

fn integer(value: &Value, path: &str) -> Result<Option<i64>, String> {
    match at(value, path)? {
        None => Ok(None),
        Some(found) => found.as_i64().map(Some).ok_or_else(|| wrong_type(path, found, "int64")),
    }
}

fn text<'v>(value: &'v Value, path: &str) -> Result<Option<&'v str>, String> {
    match at(value, path)? {
        None => Ok(None),
        Some(found) => found.as_str().map(Some).ok_or_else(|| wrong_type(path, found, "string")),
    }
}

/// Returns the Scale (autoscaling/v1) of the object.
pub fn of(object: &Value, scale: &Scale) -> Result<Value, String> {
    let mut metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(v) = object.pointer("/metadata").and_then(|m| m.get(field)) {
            metadata.insert(field.to_owned(), v.clone());
        }
    }
    let path = &scale.spec_replicas_path;
    let wanted = integer(object, path)?
        .ok_or_else(|| format!("the spec replicas field {} does not exist", Value::from(path.as_str())))?;
    let mut value = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": {},
        "status": {"replicas": integer(object, &scale.status_replicas_path)?.unwrap_or(0)},
    });
    if wanted != 0 {
        value["spec"]["replicas"] = wanted.into();
    }
    if let Some(path) = &scale.label_selector_path
        && let Some(selector) = text(object, path)?.filter(|s| !s.is_empty())
    {
        value["status"]["selector"] = selector.into();
    }
    Ok(value)
}

/// Writes the replicas of the Scale into the object; a resourceVersion in the Scale becomes a precondition.
pub fn apply(target: &mut Value, wanted: &Value, scale: &Scale) {
    let replicas = wanted.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    let version = wanted.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or("");
    if !version.is_empty() {
        prepare::metadata(target).insert("resourceVersion".into(), version.into());
    }
    let steps = steps(&scale.spec_replicas_path);
    let Some((last, parents)) = steps.split_last() else { return };
    let mut at = target;
    for step in parents {
        at = object(at).entry(*step).or_insert(Value::Null);
    }
    object(at).insert((*last).to_owned(), replicas.into());
}

/// Validates the replicas of the spec.
pub fn validate_spec(object: &Value, scale: &Scale) -> ErrorList {
    let mut errors = ErrorList::new();
    replicas(object, &scale.spec_replicas_path, &mut errors);
    errors
}

/// Validates the replicas and the selector of the status.
pub fn validate_status(object: &Value, scale: &Scale) -> ErrorList {
    let mut errors = ErrorList::new();
    replicas(object, &scale.status_replicas_path, &mut errors);
    if let Some(path) = &scale.label_selector_path
        && let Err(why) = text(object, path)
    {
        errors.push(Error::invalid(&Path::new(path), "", why));
    }
    errors
}

fn replicas(object: &Value, path: &str, errors: &mut ErrorList) {
    let at = Path::new(path);
    match integer(object, path) {
        Err(why) => errors.push(Error::invalid(&at, 0, why)),
        Ok(Some(n)) if n < 0 => errors.push(Error::invalid(&at, n, "should be a non-negative integer")),
        Ok(Some(n)) if n > i64::from(i32::MAX) => {
            errors.push(Error::invalid(&at, n, format!("should be less than or equal to {}", i32::MAX)));
        }
        Ok(_) => {}
    }
}
