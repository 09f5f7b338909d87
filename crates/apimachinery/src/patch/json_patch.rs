//! JSON patch (RFC 6902), with the extensions of the library that upstream uses.
//!
//! Negative list indices count from the end, `replace` of a missing object key adds it, `test` of a missing key
//! against null succeeds, and a path need not start with `/`. Errors are those of `gopkg.in/evanphx/json-patch.v4`;
//! the API server shows clients a fixed sentence instead.

use serde_json::Value;

use crate::status::StatusError;

/// The maximum number of operations in one patch.
pub const MAX_OPERATIONS: usize = 10_000;
/// The maximum number of bytes that all `copy` operations of one patch may add.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;
/// The maximum nesting of the patched document, so that a JSON parser can still read it.
const MAX_DEPTH: usize = 127;

/// Why a JSON patch is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonPatchError {
    /// The patch is not a list of operations.
    #[error("error decoding patch: json: cannot unmarshal {found} into Go value of type {wanted}")]
    Decode { found: &'static str, wanted: &'static str },
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooManyOperations(usize),
    /// An operation failed; the document is unchanged.
    #[error("{0}")]
    Apply(String),
}

impl From<JsonPatchError> for StatusError {
    fn from(error: JsonPatchError) -> Self {
        match error {
            JsonPatchError::Decode { .. } => StatusError::bad_request(error.to_string()),
            JsonPatchError::TooManyOperations(_) => {
                StatusError::new(413, "RequestEntityTooLarge", format!("Request entity too large: {error}"))
            }
            JsonPatchError::Apply(_) => super::rejected(),
        }
    }
}

/// Returns the patched document; the original is not changed.
pub fn apply(document: &Value, patch: &Value) -> Result<Value, JsonPatchError> {
    let operations = match patch {
        Value::Array(operations) => operations.as_slice(),
        Value::Null => &[],
        other => {
            let (found, wanted) = (json_kind(other), "[]handlers.jsonPatchOp");
            return Err(JsonPatchError::Decode { found, wanted });
        }
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(JsonPatchError::TooManyOperations(operations.len()));
    }
    if let Some(bad) = operations.iter().find(|o| !o.is_object() && !o.is_null()) {
        let (found, wanted) = (json_kind(bad), "handlers.jsonPatchOp");
        return Err(JsonPatchError::Decode { found, wanted });
    }
    let mut patched = document.clone();
    let mut copied = 0;
    for operation in operations {
        apply_one(&mut patched, operation, &mut copied).map_err(JsonPatchError::Apply)?;
    }
    Ok(patched)
}

/// Returns the kind of a JSON value as Go's decoder names it.
pub(super) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn apply_one(document: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), String> {
    let text = |member: &str| operation.get(member).and_then(Value::as_str);
    let path = text("path");
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    match text("op") {
        Some("add") => add(document, path, value()),
        Some("remove") => remove(document, path),
        Some("replace") => replace(document, path, value()),
        Some("move") => move_value(document, text("from"), path),
        Some("copy") => copy(document, text("from"), path, copied),
        Some("test") => test(document, path, operation.get("value").unwrap_or(&Value::Null)),
        other => Err(format!("Unexpected kind: {}", other.unwrap_or("unknown"))),
    }
}

/// Returns the container that a pointer leads to, and the last segment, unescaped; `None` if the container does not
/// exist.
fn locate<'a>(document: &'a mut Value, pointer: &str) -> Option<(&'a mut Value, String)> {
    let mut segments = pointer.split('/').skip(1).map(unescape);
    let mut key = segments.next()?;
    let mut container = document;
    for next in segments {
        container = match container {
            Value::Object(map) => map.get_mut(&key)?,
            Value::Array(list) => {
                let i = index(&key, list.len()).ok()?;
                list.get_mut(i)?
            }
            _ => return None,
        };
        key = next;
    }
    matches!(container, Value::Object(_) | Value::Array(_)).then_some((container, key))
}

fn unescape(segment: &str) -> String {
    // `~01` means `~1`, so that `~1` must be replaced first.
    segment.replace("~1", "/").replace("~0", "~")
}

fn segments(pointer: &str) -> usize {
    pointer.split('/').count()
}

/// Parses a list index below `length`; negative ones count from the end.
fn index(key: &str, length: usize) -> Result<usize, String> {
    let Ok(number) = key.parse::<i64>() else {
        return Err(format!("strconv.Atoi: parsing {}: invalid syntax", Value::from(key)));
    };
    let position = if number < 0 { number.checked_add(length as i64) } else { Some(number) };
    match position.and_then(|p| usize::try_from(p).ok()) {
        Some(i) if i < length => Ok(i),
        _ => Err(format!("Unable to access invalid index: {number}: invalid index referenced")),
    }
}

/// Returns the value at a key; `None` for a missing key of an object.
fn get<'a>(container: &'a Value, key: &str) -> Result<Option<&'a Value>, String> {
    match container {
        Value::Object(map) => Ok(map.get(key)),
        Value::Array(list) => index(key, list.len()).map(|i| list.get(i)),
        _ => Ok(None),
    }
}

fn insert(container: &mut Value, key: String, value: Value) -> Result<(), String> {
    match container {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => {
            let i = index(&key, list.len() + 1).map_err(|e| match e.strip_prefix("strconv") {
                Some(_) => format!("value was not a proper array index: '{key}': {e}"),
                None => e,
            })?;
            list.insert(i, value);
        }
        _ => {}
    }
    Ok(())
}

fn take(container: &mut Value, key: &str) -> Result<Value, String> {
    match container {
        Value::Object(map) => {
            map.remove(key).ok_or_else(|| format!("Unable to remove nonexistent key: {key}: missing value"))
        }
        Value::Array(list) => Ok(list.remove(index(key, list.len())?)),
        _ => Ok(Value::Null),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn check_depth(path: &str, value: &Value) -> Result<(), String> {
    if segments(path) + depth(value) > MAX_DEPTH {
        return Err(format!("value at path: '{path}' would be nested deeper than {MAX_DEPTH}"));
    }
    Ok(())
}

fn add(document: &mut Value, path: Option<&str>, value: Value) -> Result<(), String> {
    let path = path.ok_or("add operation failed to decode path: missing value")?;
    check_depth(path, &value)?;
    let Some((container, key)) = locate(document, path) else {
        return Err(format!("add operation does not apply: doc is missing path: \"{path}\": missing value"));
    };
    insert(container, key, value).map_err(|e| format!("error in add for path: '{path}': {e}"))
}

fn remove(document: &mut Value, path: Option<&str>) -> Result<(), String> {
    let path = path.ok_or("remove operation failed to decode path: missing value")?;
    let Some((container, key)) = locate(document, path) else {
        return Err(format!(
            "remove operation does not apply: doc is missing path: \"{path}\": missing value"
        ));
    };
    take(container, &key).map(drop).map_err(|e| format!("error in remove for path: '{path}': {e}"))
}

fn replace(document: &mut Value, path: Option<&str>, value: Value) -> Result<(), String> {
    let path =
        path.ok_or("replace operation failed to decode path: operation missing path field: missing value")?;
    check_depth(path, &value)?;
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err("replace operation value must be object or array".to_owned());
        }
        *document = value;
        return Ok(());
    }
    let Some((container, key)) = locate(document, path) else {
        return Err(format!("replace operation does not apply: doc is missing path: {path}: missing value"));
    };
    match container {
        Value::Array(list) => {
            let Ok(i) = index(&key, list.len()) else {
                return Err(format!(
                    "replace operation does not apply: doc is missing key: {path}: missing value"
                ));
            };
            list[i] = value;
            Ok(())
        }
        other => insert(other, key, value),
    }
}

fn move_value(document: &mut Value, from: Option<&str>, path: Option<&str>) -> Result<(), String> {
    let from =
        from.ok_or("move operation failed to decode from: operation, missing from field: missing value")?;
    let Some((container, key)) = locate(document, from) else {
        return Err(format!(
            "move operation does not apply: doc is missing from path: {from}: missing value"
        ));
    };
    let value = take(container, &key).map_err(|e| format!("error in move for path: '{key}': {e}"))?;
    let path =
        path.ok_or("move operation failed to decode path: operation missing path field: missing value")?;
    check_depth(path, &value)?;
    let Some((container, key)) = locate(document, path) else {
        return Err(format!(
            "move operation does not apply: doc is missing destination path: {path}: missing value"
        ));
    };
    insert(container, key, value).map_err(|e| format!("error in move for path: '{path}': {e}"))
}

fn copy(
    document: &mut Value,
    from: Option<&str>,
    path: Option<&str>,
    copied: &mut usize,
) -> Result<(), String> {
    let from =
        from.ok_or("copy operation failed to decode from: operation, missing from field: missing value")?;
    let Some((container, key)) = locate(document, from) else {
        return Err(format!(
            "copy operation does not apply: doc is missing from path: {from}: missing value"
        ));
    };
    let value = get(container, &key).map_err(|e| format!("error in copy for from: '{from}': {e}"))?;
    let value = value.cloned().unwrap_or(Value::Null);
    let path = path.ok_or("copy operation failed to decode path: missing value")?;
    check_depth(path, &value)?;
    let Some((container, key)) = locate(document, path) else {
        return Err(format!(
            "copy operation does not apply: doc is missing destination path: {path}: missing value"
        ));
    };
    *copied += value.to_string().len();
    if *copied > MAX_COPIED_BYTES {
        return Err(format!(
            "Unable to complete the copy, the accumulated size increase of copy is {copied}, \
             exceeding the limit {MAX_COPIED_BYTES}"
        ));
    }
    insert(container, key, value).map_err(|e| format!("error while adding value during copy: {e}"))
}

fn test(document: &mut Value, path: Option<&str>, value: &Value) -> Result<(), String> {
    let path =
        path.ok_or("test operation failed to decode path: operation missing path field: missing value")?;
    let failed = || Err(format!("testing value {path} failed: test failed"));
    if path.is_empty() {
        return if document == value { Ok(()) } else { failed() };
    }
    let Some((container, key)) = locate(document, path) else {
        return Err(format!("test operation does not apply: is missing path: {path}: missing value"));
    };
    let found = get(container, &key).map_err(|e| format!("error in test for path: '{path}': {e}"))?;
    if found.unwrap_or(&Value::Null) == value { Ok(()) } else { failed() }
}

#[cfg(test)]
#[path = "json_patch_tests.rs"]
mod tests;
