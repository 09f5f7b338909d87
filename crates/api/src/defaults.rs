//! Helpers that set missing fields of a JSON object; null counts as missing, as it does upstream.

use serde_json::{Map, Value};

use crate::prepare::object;

pub type Fields = Map<String, Value>;

/// Sets the field unless it has a value.
pub fn unset(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    if fields.get(name).is_none_or(Value::is_null) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Sets the field unless it has a value other than the empty string and zero.
pub fn blank(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    let is_blank = match fields.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Number(n)) => n.as_i64() == Some(0),
        Some(_) => false,
    };
    if is_blank {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Returns the string in this field, or an empty one.
pub fn text<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or("")
}

/// Returns the object in this field; creates it if it is missing.
pub fn child<'a>(fields: &'a mut Fields, name: &str) -> &'a mut Fields {
    object(fields.entry(name).or_insert(Value::Null))
}

/// Returns the object in this field, if it exists.
pub fn existing<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_object_mut)
}

/// Returns the objects of the list in this field.
pub fn items<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    let list = fields.get_mut(name).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}
