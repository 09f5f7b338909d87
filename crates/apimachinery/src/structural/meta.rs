//! Validation of embedded resources (`x-kubernetes-embedded-resource`): their kind, version and metadata.

use serde_json::Value;

use super::Schema;
use crate::field::{Error, ErrorList, Path};
use crate::names;

/// Validates the resources that are embedded in a value.
pub fn validate_embedded(value: &Value, schema: &Schema, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    walk(value, schema, path, &mut errors);
    errors
}

fn walk(value: &Value, schema: &Schema, path: &Path, errors: &mut ErrorList) {
    match value {
        Value::Object(map) => {
            if schema.embedded_resource {
                resource(value, path, errors);
            }
            for (name, child) in map {
                if let Some(property) = schema.properties.get(name) {
                    walk(child, property, &path.child(name), errors);
                } else if let Some(additional) = schema.additional_schema() {
                    walk(child, additional, &path.key(name), errors);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.items.as_deref() else { return };
            for (i, item) in items.iter().enumerate() {
                walk(item, schema, &path.index(i), errors);
            }
        }
        _ => {}
    }
}

fn resource(value: &Value, path: &Path, errors: &mut ErrorList) {
    let (at_version, at_kind) = (path.child("apiVersion"), path.child("kind"));
    match value.get("apiVersion") {
        None => errors.push(Error::required(&at_version, "")),
        Some(Value::String(text)) if text.is_empty() => {
            errors.push(Error::invalid(&at_version, "", "must not be empty"));
        }
        Some(Value::String(text)) if text.matches('/').count() > 1 => {
            let why = format!("unexpected GroupVersion string: {text}");
            errors.push(Error::invalid(&at_version, text.as_str(), why));
        }
        Some(Value::String(_)) => {}
        Some(other) => errors.push(Error::invalid(&at_version, other.clone(), "must be a string")),
    }
    match value.get("kind") {
        None => errors.push(Error::required(&at_kind, "")),
        Some(Value::String(text)) if text.is_empty() => {
            errors.push(Error::invalid(&at_kind, "", "must not be empty"));
        }
        Some(Value::String(text)) => {
            let problems = names::dns1035_label(&text.to_lowercase());
            if !problems.is_empty() {
                let why = format!("may have mixed case, but should otherwise match: {}", problems.join(","));
                errors.push(Error::invalid(&at_kind, text.as_str(), why));
            }
        }
        Some(other) => errors.push(Error::invalid(&at_kind, other.clone(), "must be a string")),
    }
    if let Some(metadata) = value.get("metadata") {
        object_meta(metadata, &path.child("metadata"), errors);
    }
}

fn object_meta(metadata: &Value, path: &Path, errors: &mut ErrorList) {
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or("");
    let entries = |name: &str| metadata.get(name).and_then(Value::as_object).into_iter().flatten();
    if !text("generateName").is_empty() {
        for problem in names::path_segment_prefix(text("generateName")) {
            errors.push(Error::invalid(&path.child("generateName"), text("generateName"), problem));
        }
    }
    if !text("name").is_empty() {
        for problem in names::path_segment_name(text("name")) {
            errors.push(Error::invalid(&path.child("name"), text("name"), problem));
        }
    }
    if !text("namespace").is_empty() {
        for problem in names::dns1123_label(text("namespace")) {
            errors.push(Error::invalid(&path.child("namespace"), text("namespace"), problem));
        }
    }
    for (key, value) in entries("labels") {
        for problem in names::label_key(key) {
            errors.push(Error::invalid(&path.child("labels"), key.as_str(), problem));
        }
        for problem in names::label_value(value.as_str().unwrap_or("")) {
            errors.push(Error::invalid(&path.child("labels"), value.clone(), problem));
        }
    }
    for (key, _) in entries("annotations") {
        for problem in names::label_key(&key.to_ascii_lowercase()) {
            errors.push(Error::invalid(&path.child("annotations"), key.as_str(), problem));
        }
    }
}
