//! Changes to a value by its schema alone: pruning, published defaults, the empty values that Go writes.

use serde_json::{Map, Value};

use super::decoder::dropped;
use super::syntax::MAX_DEPTH;
use crate::schema::{Field, Struct, Type};

/// Removes unknown fields, nulls, and zero values that count as unset. Does not change values of a wrong type.
pub fn prune(value: &mut Value, schema: &'static Struct) {
    prune_struct(value, schema, MAX_DEPTH);
}

fn prune_struct(value: &mut Value, schema: &'static Struct, depth: usize) {
    let Value::Object(map) = value else { return };
    map.retain(|name, value| {
        let Some(field) = schema.field(name) else { return false };
        prune_value(value, field.ty, depth);
        !value.is_null() && !dropped(field, value)
    });
}

fn prune_value(value: &mut Value, ty: Type, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match (ty, value) {
        (Type::Struct(schema), value) => prune_struct(value, schema, depth),
        (Type::List(list), Value::Array(items)) => {
            for item in items {
                prune_value(item, list.element, depth);
            }
        }
        (Type::Map(map), Value::Object(entries)) => {
            for entry in entries.values_mut() {
                prune_value(entry, map.value, depth);
            }
        }
        _ => {}
    }
}

/// Sets unset fields to the defaults that OpenAPI publishes, such as `protocol: TCP`, in every existing struct. Skips
/// the empty defaults of required fields (`""`, `0`, `{}`).
pub fn apply_defaults(value: &mut Value, schema: &'static Struct) {
    default_struct(value, schema, MAX_DEPTH);
}

fn default_struct(value: &mut Value, schema: &'static Struct, depth: usize) {
    let Value::Object(map) = value else { return };
    for field in schema.fields {
        match map.get_mut(field.name) {
            Some(present) if !present.is_null() => default_value(present, field.ty, depth),
            _ => {
                if let Some(default) = published_default(field) {
                    map.insert(field.name.to_owned(), default);
                }
            }
        }
    }
}

fn published_default(field: &Field) -> Option<Value> {
    match field.default? {
        "" | "{}" | "\"\"" | "0" | "false" | "[]" => None,
        text => serde_json::from_str(text).ok(),
    }
}

fn default_value(value: &mut Value, ty: Type, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match (ty, value) {
        (Type::Struct(schema), value) => default_struct(value, schema, depth),
        (Type::List(list), Value::Array(items)) => {
            for item in items {
                default_value(item, list.element, depth);
            }
        }
        (Type::Map(map), Value::Object(entries)) => {
            for entry in entries.values_mut() {
                default_value(entry, map.value, depth);
            }
        }
        _ => {}
    }
}

/// Adds the empty values that Go writes: `status: {}`, `resources: {}`, `selector: null`, `name: ""`.
pub fn fill(value: &mut Value, schema: &'static Struct) {
    fill_struct(value, schema, MAX_DEPTH);
}

fn fill_struct(value: &mut Value, schema: &'static Struct, depth: usize) {
    let Value::Object(map) = value else { return };
    for field in schema.fields {
        if field.always && !map.contains_key(field.name) {
            map.insert(field.name.to_owned(), empty(field));
        }
        if let Some(present) = map.get_mut(field.name) {
            fill_value(present, field.ty, depth);
        }
    }
}

fn empty(field: &Field) -> Value {
    match field.ty {
        _ if field.pointer => Value::Null,
        Type::Bool => Value::Bool(false),
        Type::Int32 | Type::Int64 | Type::Float64 | Type::IntOrString => Value::from(0),
        Type::String => Value::String(String::new()),
        Type::Quantity => Value::String("0".to_owned()),
        Type::Duration => Value::String("0s".to_owned()),
        Type::Struct(_) => Value::Object(Map::new()),
        Type::Bytes | Type::Time | Type::MicroTime | Type::Any | Type::List(_) | Type::Map(_) => Value::Null,
    }
}

fn fill_value(value: &mut Value, ty: Type, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match (ty, value) {
        (Type::Struct(schema), value) => fill_struct(value, schema, depth),
        (Type::List(list), Value::Array(items)) => {
            for item in items {
                fill_value(item, list.element, depth);
            }
        }
        (Type::Map(map), Value::Object(entries)) => {
            for entry in entries.values_mut() {
                fill_value(entry, map.value, depth);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gvk::GroupVersionKind;
    use crate::schema::for_kind;

    fn pod() -> &'static Struct {
        for_kind(&GroupVersionKind::new("", "v1", "Pod")).unwrap()
    }

    #[test]
    fn prune_drops_what_is_unknown_or_unset() {
        let mut value = json!({"kind": "Pod", "x": 1, "spec": {"hostPID": false, "nodeName": null, "containers":
            [{"name": "a", "y": 2, "securityContext": {"privileged": false}, "ports": []}]}});
        prune(&mut value, pod());
        let want = json!({"kind": "Pod", "spec": {"containers":
            [{"name": "a", "securityContext": {"privileged": false}}]}});
        assert_eq!(value, want);
    }

    #[test]
    fn defaults_reach_into_lists() {
        let mut value = json!({"spec": {"containers": [{"ports": [{"containerPort": 80},
            {"containerPort": 53, "protocol": "UDP"}]}]}});
        apply_defaults(&mut value, pod());
        let want = json!({"spec": {"containers": [{"ports": [{"containerPort": 80, "protocol": "TCP"},
            {"containerPort": 53, "protocol": "UDP"}]}]}});
        assert_eq!(value, want);
    }

    #[test]
    fn fill_adds_what_go_writes() {
        let mut value = json!({"spec": {"containers": [{"name": "a"}]}});
        fill(&mut value, pod());
        let want =
            json!({"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {}}]}, "status": {}});
        assert_eq!(value, want);
    }
}
