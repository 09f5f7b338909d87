//! Setting what was left out of a JSON object; null counts as left out, as it does upstream.

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

/// The string at this field, empty when there is none.
pub fn text<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.get(name).and_then(Value::as_str).unwrap_or("")
}

/// The object at this field, made when it is missing.
pub fn child<'a>(fields: &'a mut Fields, name: &str) -> &'a mut Fields {
    object(fields.entry(name).or_insert(Value::Null))
}

/// The object at this field, if it is there.
pub fn existing<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    fields.get_mut(name).and_then(Value::as_object_mut)
}

/// The objects in the list at this field.
pub fn items<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    let list = fields.get_mut(name).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter_map(Value::as_object_mut)
}
