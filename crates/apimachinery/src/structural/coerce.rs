//! Coercion of custom resources, which upstream does on every read: metadata in canonical form, unknown fields
//! pruned.

use serde_json::Value;

use super::{Schema, prune, prune_nulls};
use crate::field::{Error, Path};
use crate::schema::{self, validate::decode};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// How an object is coerced.
#[derive(Debug, Clone, Copy, Default)]
pub struct Coerced {
    /// Drops metadata of a wrong type instead of refusing it: for stored objects.
    pub drop_invalid_metadata: bool,
    /// The value of `spec.preserveUnknownFields` in old definitions.
    pub preserve_unknown_fields: bool,
}

/// Coerces an object to its schema; returns the paths of the unknown fields, which are removed.
pub fn coerce(object: &mut Value, schema: &Schema, how: Coerced) -> Result<Vec<String>, String> {
    let own = meta_fields(object)?;
    let mut unknown = Vec::new();
    let metadata = match object.get("metadata") {
        Some(metadata) => Some(object_meta(metadata, "metadata", how, &mut unknown)?),
        None => None,
    };
    if !how.preserve_unknown_fields {
        unknown.extend(prune(object, schema));
        prune_nulls(object, Some(schema));
    }
    let mut embedded = Vec::new();
    walk(object, schema, &Path::default(), how, &mut embedded).map_err(|e| e.to_string())?;
    embedded.sort();
    unknown.extend(embedded);
    if let Value::Object(map) = object {
        for (name, value) in own {
            map.insert(name.to_owned(), value);
        }
        if let Some(metadata) = metadata {
            map.insert("metadata".to_owned(), metadata);
        }
    }
    Ok(unknown)
}

/// Returns `kind` and `apiVersion`, which must be strings.
fn meta_fields(object: &Value) -> Result<Vec<(&'static str, Value)>, String> {
    let mut found = Vec::new();
    for name in ["kind", "apiVersion"] {
        match object.get(name) {
            None => {}
            Some(text @ Value::String(_)) => found.push((name, text.clone())),
            Some(other) => {
                let ty = go_type(other);
                return Err(format!(".{name} accessor error: {other} is of the type {ty}, expected string"));
            }
        }
    }
    Ok(found)
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Coerces metadata to its type, and records unknown fields.
fn object_meta(
    metadata: &Value,
    path: &str,
    how: Coerced,
    unknown: &mut Vec<String>,
) -> Result<Value, String> {
    let Some(schema) = schema::for_definition(OBJECT_META) else { return Ok(metadata.clone()) };
    let text = metadata.to_string();
    match decode(text.as_bytes(), schema) {
        Ok(decoded) => {
            unknown.extend(decoded.strict_errors.iter().filter_map(|e| {
                let field = e.split_once('"')?.1.trim_end_matches('"');
                Some(format!("{path}.{field}"))
            }));
            Ok(if decoded.value.is_null() { Value::Object(serde_json::Map::new()) } else { decoded.value })
        }
        Err(error) if !how.drop_invalid_metadata => Err(error.to_string()),
        Err(_) => {
            let Value::Object(map) = metadata else {
                return Err(format!("invalid metadata: expected object, got {}", go_type(metadata)));
            };
            let mut kept = serde_json::Map::new();
            for (name, value) in map {
                let alone = serde_json::json!({ name: value }).to_string();
                if let Ok(decoded) = decode(alone.as_bytes(), schema)
                    && let Value::Object(fields) = decoded.value
                {
                    kept.extend(fields);
                }
            }
            Ok(Value::Object(kept))
        }
    }
}

/// Coerces the metadata of embedded resources.
fn walk(
    value: &mut Value,
    schema: &Schema,
    path: &Path,
    how: Coerced,
    unknown: &mut Vec<String>,
) -> Result<(), Error> {
    match value {
        Value::Object(map) => {
            if schema.embedded_resource {
                for name in ["apiVersion", "kind"] {
                    match map.get(name) {
                        None | Some(Value::String(_)) => {}
                        Some(_) if how.drop_invalid_metadata => {
                            map.remove(name);
                        }
                        Some(other) => {
                            return Err(Error::invalid(&path.child(name), other.clone(), "must be a string"));
                        }
                    }
                }
                if let Some(metadata) = map.get("metadata") {
                    let at = path.child("metadata");
                    let meta = object_meta(metadata, &at.to_string(), how, unknown)
                        .map_err(|why| Error::invalid(&at, metadata.clone(), why))?;
                    map.insert("metadata".to_owned(), meta);
                }
            }
            for (name, child) in map.iter_mut() {
                if let Some(property) = schema.properties.get(name) {
                    walk(child, property, &path.child(name), how, unknown)?;
                } else if let Some(additional) = schema.additional_schema() {
                    walk(child, additional, &path.key(name), how, unknown)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.items.as_deref() else { return Ok(()) };
            for (i, item) in items.iter_mut().enumerate() {
                walk(item, schema, &path.index(i), how, unknown)?;
            }
        }
        _ => {}
    }
    Ok(())
}
