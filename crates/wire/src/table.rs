//! Tables and metadata only: the forms that `kubectl get` and metadata clients request.

use std::sync::Arc;

use bytes::Bytes;
use knarr_api::object::Object;
use knarr_api::resource::CellContext;
use knarr_api::resource_ref::ResourceRef;
use serde_json::{Map, Value, json};

/// What a table row contains of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    /// Parses the `includeObject` parameter; `None` if it is none of the three values.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text.unwrap_or("") {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// Returns the group version of tables and metadata.
pub fn meta_version(beta: bool) -> &'static str {
    if beta { "meta.k8s.io/v1beta1" } else { "meta.k8s.io/v1" }
}

/// What a table row contains of its object, and the version of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rows {
    pub include: IncludeObject,
    pub beta: bool,
}

fn row(resource: &ResourceRef, object: &Object, rows: Rows, now: jiff::Timestamp) -> Value {
    let cells = resource.row(object, &CellContext { now });
    let shown: Value = match rows.include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => serde_json::from_slice(&partial(object, rows.beta)).unwrap_or_default(),
        IncludeObject::Object => serde_json::from_slice(&object.json()).unwrap_or_default(),
    };
    json!({"cells": cells, "object": shown})
}

/// Returns a table of these objects.
#[allow(clippy::too_many_arguments, reason = "called only once for lists and once for single objects")]
pub fn table(
    resource: &ResourceRef,
    objects: &[Arc<Object>],
    version: u64,
    continue_token: Option<String>,
    remaining: Option<u64>,
    rows: Rows,
    now: jiff::Timestamp,
) -> Value {
    let mut meta = Map::new();
    if version > 0 {
        meta.insert("resourceVersion".into(), version.to_string().into());
    }
    if let Some(token) = continue_token {
        meta.insert("continue".into(), token.into());
    }
    if let Some(remaining) = remaining {
        meta.insert("remainingItemCount".into(), remaining.into());
    }
    let shown: Vec<Value> = objects.iter().map(|o| row(resource, o, rows, now)).collect();
    json!({
        "kind": "Table", "apiVersion": meta_version(rows.beta), "metadata": meta,
        "columnDefinitions": resource.column_definitions(), "rows": shown,
    })
}

/// Returns the table of one watch event; only the first event of a watch has the column definitions.
pub fn event_table(
    resource: &ResourceRef,
    object: &Object,
    with_columns: bool,
    rows: Rows,
    now: jiff::Timestamp,
) -> Value {
    let columns = if with_columns { resource.column_definitions() } else { Value::Null };
    json!({
        "kind": "Table", "apiVersion": meta_version(rows.beta),
        "metadata": {"resourceVersion": object.resource_version().to_string()},
        "columnDefinitions": columns, "rows": [row(resource, object, rows, now)],
    })
}

/// Returns the `PartialObjectMetadata` of an object.
pub fn partial(object: &Object, beta: bool) -> Bytes {
    let json = object.json();
    let metadata = metadata_of(&json).unwrap_or(b"{}");
    let mut out = Vec::with_capacity(metadata.len() + 80);
    out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"");
    out.extend_from_slice(meta_version(beta).as_bytes());
    out.extend_from_slice(b"\",\"metadata\":");
    out.extend_from_slice(metadata);
    out.push(b'}');
    out.into()
}

/// Returns the text of the top-level `metadata` object in compact JSON.
fn metadata_of(json: &[u8]) -> Option<&[u8]> {
    const KEY: &[u8] = b"\"metadata\":";
    let (mut depth, mut i, mut start) = (0usize, 0usize, None);
    while i < json.len() {
        match json[i] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 1
                    && let Some(start) = start
                {
                    return json.get(start..=i);
                }
            }
            b'"' => {
                if depth == 1 && start.is_none() && json[i..].starts_with(KEY) {
                    start = Some(i + KEY.len());
                    i += KEY.len();
                    continue;
                }
                i += 1;
                while i < json.len() && json[i] != b'"' {
                    i += if json[i] == b'\\' { 2 } else { 1 };
                }
            }
            _ => {}
        }
        i += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_cut_out() {
        for (json, expected) in [
            (
                r#"{"a":{"metadata":{"x":1}},"metadata":{"name":"b}","l":{"a":"c"}},"z":1}"#,
                r#"{"name":"b}","l":{"a":"c"}}"#,
            ),
            (r#"{"metadata":{}}"#, "{}"),
            (r#"{"kind":"metadata","data":[{"x":1}],"metadata":{"name":"q"}}"#, r#"{"name":"q"}"#),
        ] {
            assert_eq!(metadata_of(json.as_bytes()).unwrap(), expected.as_bytes(), "{json}");
        }
        assert_eq!(metadata_of(b"{}"), None);
    }
}
