//! Merge patch (RFC 7386): objects are merged, null removes, everything else replaces.

use serde_json::{Map, Value};

use crate::status::StatusError;

/// The merge patch is not an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error decoding patch: json: cannot unmarshal {0} into Go value of type map[string]interface {{}}")]
pub struct MergePatchError(&'static str);

impl From<MergePatchError> for StatusError {
    fn from(error: MergePatchError) -> Self {
        StatusError::bad_request(error.to_string())
    }
}

/// Merges the patch into the document.
pub fn apply(document: &mut Value, patch: Value) -> Result<(), MergePatchError> {
    let found = super::json_patch::json_kind(&patch);
    let Value::Object(patch) = patch else { return Err(MergePatchError(found)) };
    merge_value(document, Value::Object(patch));
    Ok(())
}

fn merge_value(current: &mut Value, patch: Value) {
    match (current, patch) {
        (Value::Object(current), Value::Object(patch)) => merge_object(current, patch),
        (current @ Value::Object(_), patch) => *current = patch,
        (current, mut patch) => {
            prune_nulls(&mut patch);
            *current = patch;
        }
    }
}

/// Merges one object into another.
pub fn merge_object(current: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        if value.is_null() {
            current.remove(&key);
        } else {
            merge_value(current.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Removes null members at every depth: in a patch of a missing object they have no effect.
pub(super) fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(prune_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rfc_7386_examples() {
        for (document, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            let mut got = document.clone();
            apply(&mut got, patch.clone()).unwrap();
            assert_eq!(got, expected, "{document} with {patch}");
        }
    }

    #[test]
    fn only_objects_patch() {
        let error = StatusError::from(apply(&mut json!({}), json!([])).unwrap_err());
        assert_eq!(error.code(), 400);
        assert_eq!(
            error.message(),
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
        assert!(apply(&mut json!({}), json!(null)).is_err());
    }
}
