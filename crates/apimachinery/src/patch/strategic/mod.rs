//! Strategic merge patch: a merge patch that merges lists by the keys that the schema table specifies.
//!
//! Source: `k8s.io/apimachinery/pkg/util/strategicpatch`. Directives are `$patch: delete|replace`, `$retainKeys`,
//! `$deleteFromPrimitiveList/FIELD` and `$setElementOrder/FIELD`.

mod list;

use serde_json::{Map, Value};

use crate::schema::{Struct, Type};
use crate::status::StatusError;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList";
const SET_ORDER: &str = "$setElementOrder";

/// Why a strategic merge patch is refused, with upstream's error text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StrategicError {
    #[error("json: cannot unmarshal {0} into Go value of type map[string]interface {{}}")]
    NotAnObject(&'static str),
    #[error("invalid patch format of primitive list")]
    PrimitiveList,
    #[error("invalid patch format of retainKeys")]
    RetainKeys,
    #[error("invalid patch format of setElementOrder list")]
    SetElementOrder,
    #[error("lists of lists are not supported")]
    ListOfLists,
    /// The patch does not fit the object; upstream answers with an internal error.
    #[error("{0}")]
    Mismatch(String),
}

impl From<StrategicError> for StatusError {
    fn from(error: StrategicError) -> Self {
        match error {
            StrategicError::ListOfLists => super::rejected(),
            StrategicError::Mismatch(message) => StatusError::new(500, "", message),
            other => StatusError::bad_request(other.to_string()),
        }
    }
}

type Result<T, E = StrategicError> = std::result::Result<T, E>;
type Object = Map<String, Value>;

/// Merges the patch into the document. On an error, the document may be partly merged: pass a copy.
pub fn apply(document: &mut Value, patch: Value, schema: &'static Struct) -> Result<()> {
    let found = super::json_patch::json_kind(&patch);
    let Value::Object(patch) = patch else { return Err(StrategicError::NotAnObject(found)) };
    if !document.is_object() {
        *document = Value::Object(Object::new());
    }
    match document {
        Value::Object(original) => merge_object(original, patch, Some(Type::Struct(schema))),
        _ => Ok(()),
    }
}

/// How the schema says that a field is patched.
#[derive(Clone, Copy)]
struct FieldRule {
    ty: Option<Type>,
    /// `merge`, `replace` or empty.
    strategy: &'static str,
    merge_key: &'static str,
}

/// Returns the rule for member `key` of a value of type `ty`; types that are not in the table are merged as plain
/// JSON.
fn rule(ty: Option<Type>, key: &str) -> FieldRule {
    let plain = |ty| FieldRule { ty, strategy: "", merge_key: "" };
    match ty {
        Some(Type::Struct(s)) => match s.field(key) {
            Some(field) => {
                let mut strategies = field.patch_strategy.split(',').filter(|s| *s != "retainKeys");
                let strategy = strategies.next().unwrap_or("");
                FieldRule { ty: Some(field.ty), strategy, merge_key: field.patch_merge_key }
            }
            None => plain(None),
        },
        Some(Type::Map(map)) => plain(Some(map.value)),
        _ => plain(None),
    }
}

fn merge_object(original: &mut Object, mut patch: Object, ty: Option<Type>) -> Result<()> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                *original = patch;
                clean_members(original);
            }
            Some("delete") => original.clear(),
            _ => return Err(unknown_directive(directive, &patch)),
        }
        return Ok(());
    }
    retain_keys(original, &mut patch)?;
    let ordered: Vec<String> = patch.keys().filter(|k| k.starts_with(SET_ORDER)).cloned().collect();
    for key in ordered {
        let order = patch.remove(&key).unwrap_or(Value::Null);
        let field = field_of(&key, SET_ORDER).ok_or(StrategicError::SetElementOrder)?;
        let changes = patch.remove(field);
        list::merge_ordered(original, field, changes, order, rule(ty, field))?;
    }
    for (key, value) in patch {
        if key.starts_with(DELETE_FROM) {
            let field = field_of(&key, DELETE_FROM).ok_or(StrategicError::PrimitiveList)?;
            if let (Some(Value::Array(current)), Value::Array(gone)) = (original.get_mut(field), &value) {
                list::delete(current, gone)?;
            }
        } else {
            merge_member(original, key, value, ty)?;
        }
    }
    Ok(())
}

fn merge_member(original: &mut Object, key: String, value: Value, ty: Option<Type>) -> Result<()> {
    let rule = rule(ty, &key);
    match (original.get_mut(&key), value) {
        (_, Value::Null) => {
            original.remove(&key);
        }
        (Some(Value::Object(current)), Value::Object(patch)) if rule.strategy != "replace" => {
            merge_object(current, patch, rule.ty)?;
        }
        (Some(Value::Array(current)), Value::Array(patch)) if rule.strategy == "merge" => {
            list::merge(current, patch, rule)?;
        }
        (_, mut value) => {
            if clean(&mut value) {
                original.insert(key, value);
            } else {
                original.remove(&key);
            }
        }
    }
    Ok(())
}

/// Returns `FIELD` of `$directive/FIELD`.
fn field_of<'a>(key: &'a str, directive: &str) -> Option<&'a str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

/// Applies `$retainKeys`: removes all other members; the patch may not set others.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<()> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(kept) = directive else { return Err(StrategicError::RetainKeys) };
    let kept: std::collections::BTreeSet<&str> = kept.iter().filter_map(Value::as_str).collect();
    let directive = |key: &str| key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER);
    if patch.iter().any(|(k, v)| !v.is_null() && !directive(k) && !kept.contains(k.as_str())) {
        return Err(StrategicError::RetainKeys);
    }
    original.retain(|key, _| kept.contains(key.as_str()));
    Ok(())
}

/// Converts a patch value to the stored value if there is no old one: removes nulls and directives. Returns whether
/// the value is kept at all.
fn clean(value: &mut Value) -> bool {
    match value {
        Value::Object(map) => {
            if map.contains_key(DIRECTIVE) {
                return false;
            }
            clean_members(map);
        }
        Value::Array(list) => list.retain_mut(clean),
        _ => {}
    }
    true
}

fn clean_members(map: &mut Object) {
    map.retain(|key, value| !value.is_null() && !is_directive(key) && clean(value));
}

/// Converts an added list element to the stored value: removes nulls; directives in it have no effect.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => strip_members(map),
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

fn strip_members(map: &mut Object) {
    map.retain(|key, value| !value.is_null() && key != DIRECTIVE && !is_directive(key));
    map.values_mut().for_each(strip);
}

/// Returns whether the key is a directive about other members of the same object.
fn is_directive(key: &str) -> bool {
    key == RETAIN_KEYS || key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER)
}

fn unknown_directive(directive: &Value, patch: &Object) -> StrategicError {
    let (directive, patch) = (go_text(directive), go_map(patch));
    StrategicError::Mismatch(format!("unknown patch type: {directive} in map: {patch}"))
}

/// Formats a value as Go's `%v` prints it.
pub(super) fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => go_list(list),
        Value::Object(map) => go_map(map),
        other => other.to_string(),
    }
}

fn go_list(list: &[Value]) -> String {
    format!("[{}]", list.iter().map(go_text).collect::<Vec<_>>().join(" "))
}

fn go_map(map: &Object) -> String {
    let members: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go_text(v))).collect();
    format!("map[{}]", members.join(" "))
}

#[cfg(test)]
mod tests;
