//! Strict decoding of versioned configuration: unknown kinds, versions and fields are errors, with upstream's
//! messages.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The fields that a value may have.
pub enum Shape {
    /// Any value; its fields are not checked.
    Any,
    Object(&'static [(&'static str, Shape)]),
    List(&'static Shape),
}

/// Parses YAML or JSON.
pub fn parse(bytes: &[u8]) -> Result<Value, String> {
    serde_saphyr::from_str(knarr_reload::text(bytes)?)
        .map_err(|e| format!("error converting YAML to JSON: {e}"))
}

/// Decodes the typed configuration, which must have one of these versions and kinds.
pub fn decode<T: DeserializeOwned>(
    value: &Value,
    kinds: &[(&str, &str)],
    shape: &Shape,
) -> Result<T, String> {
    check_kind(value, kinds)?;
    let mut unknown = Vec::new();
    unknown_fields(value, shape, "", &mut unknown);
    unknown.retain(|field| field != "apiVersion" && field != "kind");
    if !unknown.is_empty() {
        let fields: Vec<String> = unknown.iter().map(|field| format!("unknown field {field:?}")).collect();
        return Err(format!("strict decoding error: {}", fields.join(", ")));
    }
    T::deserialize(value).map_err(|e| e.to_string())
}

/// Checks that the value has a kind, and that the kind is one of the known ones.
fn check_kind(value: &Value, kinds: &[(&str, &str)]) -> Result<(), String> {
    let text = |field: &str| value[field].as_str().unwrap_or("");
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind.is_empty() {
        return Err(format!("Object 'Kind' is missing in '{value}'"));
    }
    if version.is_empty() {
        return Err(format!("Object 'apiVersion' is missing in '{value}'"));
    }
    if kinds.contains(&(version, kind)) {
        return Ok(());
    }
    Err(format!("no kind {kind:?} is registered for version {version:?}"))
}

/// Collects the unknown fields. The recursion is bounded because the parser has limited the depth and number of
/// fields.
fn unknown_fields(value: &Value, shape: &Shape, path: &str, found: &mut Vec<String>) {
    match (shape, value) {
        (Shape::Object(fields), Value::Object(map)) => {
            for (name, value) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match fields.iter().find(|(field, _)| field == name) {
                    Some((_, shape)) => unknown_fields(value, shape, &path, found),
                    None => found.push(path),
                }
            }
        }
        (Shape::List(shape), Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                unknown_fields(item, shape, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_known_is_refused() {
        const SHAPE: Shape =
            Shape::Object(&[("a", Shape::List(&Shape::Object(&[("b", Shape::Any)]))), ("c", Shape::Any)]);
        let read = |value: Value| decode::<Value>(&value, &[("g/v1", "K")], &SHAPE).map(|_| ());
        for (value, expected) in [
            (json!({"apiVersion": "g/v1", "kind": "K", "a": [{"b": {"x": 1}}], "c": 1}), Ok(())),
            (json!({"apiVersion": "g/v1"}), Err(r#"Object 'Kind' is missing in '{"apiVersion":"g/v1"}'"#)),
            (json!({"kind": "K"}), Err(r#"Object 'apiVersion' is missing in '{"kind":"K"}'"#)),
            (json!("x"), Err("Object 'Kind' is missing in '\"x\"'")),
            (
                json!({"apiVersion": "g/v2", "kind": "K"}),
                Err("no kind \"K\" is registered for version \"g/v2\""),
            ),
            (
                json!({"apiVersion": "g/v1", "kind": "K", "a": [{}, {"x": 1}], "d": 1}),
                Err("strict decoding error: unknown field \"a[1].x\", unknown field \"d\""),
            ),
        ] {
            assert_eq!(read(value.clone()), expected.map_err(str::to_owned), "{value}");
        }
    }
}
