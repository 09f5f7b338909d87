//! Steps of preparation that many resources share: which parts an update may touch, and generations.

use serde_json::{Map, Value};

/// Removes a top-level field, such as `status` on create.
pub fn clear(object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(field);
    }
}

/// Removes the field at this path, such as one whose feature is off.
pub fn drop_in(object: &mut Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else { return };
    let parent = parents.iter().try_fold(object, |v, field| v.get_mut(field));
    if let Some(map) = parent.and_then(Value::as_object_mut) {
        map.remove(*last);
    }
}

/// Restores the old value of a top-level field.
pub fn keep(new: &mut Value, old: &Value, field: &str) {
    keep_in(new, old, &[field]);
}

/// Restores the old value of a field of `metadata`.
pub fn keep_metadata(new: &mut Value, old: &Value, field: &str) {
    keep_in(new, old, &["metadata", field]);
}

/// Restores the metadata that a status update may not change.
pub fn keep_metadata_for_status(new: &mut Value, old: &Value) {
    const KEPT: [&str; 5] = ["generation", "labels", "annotations", "finalizers", "ownerReferences"];
    KEPT.iter().for_each(|field| keep_metadata(new, old, field));
}

/// Restores the old value of the field at this path; creates missing parents.
pub fn keep_in(new: &mut Value, old: &Value, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else { return };
    let before = path.iter().try_fold(old, |v, field| v.get(field)).filter(|v| !v.is_null());
    match before {
        Some(before) => {
            let mut at = new;
            for field in parents {
                at = object(at).entry(*field).or_insert(Value::Null);
            }
            object(at).insert((*last).to_owned(), before.clone());
        }
        None => {
            let parent = parents.iter().try_fold(new, |v, field| v.get_mut(field));
            if let Some(map) = parent.and_then(Value::as_object_mut) {
                map.remove(*last);
            }
        }
    }
}

/// Returns the value as an object; replaces any other value by an empty object.
pub fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object just above"),
    }
}

/// Returns the object's `metadata`; creates it if it is missing.
pub fn metadata(value: &mut Value) -> &mut Map<String, Value> {
    let map = object(value);
    object(map.entry("metadata").or_insert(Value::Null))
}

pub fn set_generation(value: &mut Value, generation: i64) {
    metadata(value).insert("generation".to_owned(), Value::from(generation));
}

pub fn generation(value: &Value) -> i64 {
    value.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0)
}

/// Increments the generation if one of these fields (JSON pointers) changed.
pub fn bump_generation(new: &mut Value, old: &Value, pointers: &[&str]) {
    let changed = pointers.iter().any(|p| !same(new.pointer(p), old.pointer(p)));
    let before = generation(old);
    set_generation(new, if changed { before + 1 } else { before });
}

/// Prepares a workload for creation: removes the status and sets generation 1.
pub fn create_with_status(value: &mut Value) {
    clear(value, "status");
    set_generation(value, 1);
}

/// Prepares an update of a resource with a status subresource: restores the part that this request may not
/// change.
pub fn update_with_status(new: &mut Value, old: &Value, subresource: Option<&str>) {
    match subresource {
        Some("status") => keep(new, old, "spec"),
        _ => keep(new, old, "status"),
    }
}

/// Does the same as [`update_with_status`], and increments the generation if the spec changed.
pub fn update_with_generation(new: &mut Value, old: &Value, subresource: Option<&str>) {
    update_with_status(new, old, subresource);
    if subresource == Some("status") {
        set_generation(new, generation(old));
    } else {
        bump_generation(new, old, &["/spec"]);
    }
}

/// Compares two values as upstream does: null, empty lists and missing fields are equal.
pub fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a.filter(|v| !is_nothing(v)), b.filter(|v| !is_nothing(v))) {
        (None, None) => true,
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            a.iter().all(|(k, v)| same(Some(v), b.get(k)))
                && b.iter().all(|(k, v)| a.contains_key(k) || is_nothing(v))
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(Some(a), Some(b)))
        }
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_its_own_part_changes() {
        let old = json!({"metadata":{"generation":4},"spec":{"a":1},"status":{"x":1}});
        let new = json!({"metadata":{"generation":9},"spec":{"a":2},"status":{"x":2}});
        let mut main = new.clone();
        update_with_generation(&mut main, &old, None);
        assert_eq!(main, json!({"metadata":{"generation":5},"spec":{"a":2},"status":{"x":1}}));
        let mut status = new;
        update_with_generation(&mut status, &old, Some("status"));
        assert_eq!(status, json!({"metadata":{"generation":4},"spec":{"a":1},"status":{"x":2}}));
    }

    #[test]
    fn keep_in_makes_and_removes() {
        let mut new = json!({"metadata":{"labels":{"a":"b"}}});
        keep_in(&mut new, &json!({"spec":{"finalizers":["k"]}}), &["spec", "finalizers"]);
        keep_metadata(&mut new, &json!({"metadata":{}}), "labels");
        assert_eq!(new, json!({"metadata":{},"spec":{"finalizers":["k"]}}));
    }

    #[test]
    fn same_ignores_nothing() {
        for (a, b, equal) in [
            (json!({"a":[]}), json!({}), true),
            (json!({"a":null,"b":1}), json!({"b":1}), true),
            (json!({"a":{}}), json!({}), false),
            (json!([{"a":null}]), json!([{}]), true),
            (json!([1]), json!([1, 2]), false),
        ] {
            assert_eq!(same(Some(&a), Some(&b)), equal, "{a} {b}");
            assert_eq!(same(Some(&b), Some(&a)), equal, "{b} {a}");
        }
    }
}
