//! Lists that are sets or maps (`x-kubernetes-list-type`): elements, or their keys, must be unique.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Schema;
use crate::field::{Error, ErrorList, Path};

/// Returns errors for duplicate elements in the members of the root.
pub fn validate(object: &Value, schema: &Schema, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    members(object, schema, path, &mut errors);
    errors
}

fn members(object: &Value, schema: &Schema, path: &Path, errors: &mut ErrorList) {
    for (name, value) in object.as_object().into_iter().flatten() {
        if let Some(additional) = schema.additional_schema() {
            check(value, additional, &path.key(name), errors);
        }
        if let Some(property) = schema.properties.get(name) {
            check(value, property, &path.child(name), errors);
        }
    }
}

fn check(value: &Value, schema: &Schema, path: &Path, errors: &mut ErrorList) {
    let Value::Array(items) = value else { return members(value, schema, path, errors) };
    match schema.list_type.as_deref() {
        Some("set") => {
            for i in repeated(items) {
                errors.push(Error::duplicate(&path.index(i), items[i].clone()));
            }
        }
        Some("map") => check_keys(items, schema, path, errors),
        _ => {}
    }
    if let Some(schema) = schema.items.as_deref() {
        for (i, item) in items.iter().enumerate() {
            check(item, schema, &path.index(i), errors);
        }
    }
}

fn check_keys(items: &[Value], schema: &Schema, path: &Path, errors: &mut ErrorList) {
    if let Some(i) = items.iter().position(|item| !item.is_object() && !item.is_null()) {
        let why = "must be an object for an array of list-type map";
        return errors.push(Error::invalid(&path.index(i), items[i].clone(), why));
    }
    let key = |item: &Value| {
        let present = schema.list_map_keys.iter().filter_map(|k| Some((k.clone(), item.get(k)?.clone())));
        Value::Object(present.collect::<Map<_, _>>())
    };
    let keys: Vec<Value> = items.iter().map(key).collect();
    for i in repeated(&keys) {
        errors.push(Error::duplicate(&path.index(i), keys[i].clone()));
    }
}

/// Returns the index of the second occurrence of each repeated value.
fn repeated(items: &[Value]) -> Vec<usize> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut again = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let times = seen.entry(item.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            again.push(i);
        }
    }
    again
}
