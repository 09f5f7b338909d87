//! Encodes a JSON value as a protobuf message, as Go's generated code encodes the typed object.

use serde_json::{Map, Value};

use super::wire::{self, FIXED64, put_message};
use super::{EncodeError, any, special};
use crate::schema::plan::{self, Step};
use crate::schema::validate::base64;
use crate::schema::{Field, Struct, Type, go_element};

/// Encodes an object in its canonical form; omits unknown fields.
pub fn encode(value: &Value, schema: &'static Struct) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::with_capacity(1024);
    encode_into(value, schema, &mut out)?;
    Ok(out)
}

/// Does the same as [`encode`], and appends the message to `out`.
pub fn encode_into(value: &Value, schema: &'static Struct, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match value {
        Value::Object(map) => message(map, plan::steps(schema), out),
        Value::Null => message(&Map::new(), plan::steps(schema), out),
        _ => Err(EncodeError::Type(schema.short_name())),
    }
}

/// Writes the fields of a message in the order of their numbers.
pub fn message(
    map: &Map<String, Value>,
    steps: &'static [Step],
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    for step in steps {
        match step {
            Step::Inlined(number, inner) => put_message(out, *number, |out| message(map, inner, out))?,
            Step::Field(field) => put_field(field, map.get(field.name).unwrap_or(&Value::Null), out)?,
        }
    }
    Ok(())
}

/// Returns whether a list is a message of its own, with the elements in its field 1.
pub fn is_wrapped(go: &str) -> bool {
    go == "v1.Verbs"
}

fn put_field(field: &'static Field, value: &Value, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let set = !value.is_null();
    let name = field.name;
    match field.ty {
        Type::List(list) if is_wrapped(field.go_name) => {
            let Value::Array(items) = value else { return unset(value, name) };
            put_message(out, field.number, |out| put_items(1, list.element, "", name, items, out))
        }
        Type::List(list) => {
            let Value::Array(items) = value else { return unset(value, name) };
            put_items(field.number, list.element, go_element(field.go_name), name, items, out)
        }
        Type::Map(map) => {
            let Value::Object(entries) = value else { return unset(value, name) };
            let go = go_element(field.go_name);
            entries.iter().try_for_each(|(key, value)| {
                put_message(out, field.number, |out| {
                    wire::put_bytes(out, 1, key.as_bytes());
                    put_map_value(map.value, go, name, value, out)
                })
            })
        }
        // Unset fields that are nil in Go are omitted; all others are written even if they are zero.
        Type::Bytes if !set => Ok(()),
        _ if field.pointer && !set => Ok(()),
        _ => put_value(Slot::of(field), value, out),
    }
}

/// The target of a value: field number, type, the Go name of the type, and the field's name for errors.
#[derive(Clone, Copy)]
struct Slot {
    number: u32,
    ty: Type,
    go: &'static str,
    name: &'static str,
}

impl Slot {
    fn of(field: &'static Field) -> Self {
        Self { number: field.number, ty: field.ty, go: field.go_name, name: field.name }
    }
}

fn unset(value: &Value, name: &'static str) -> Result<(), EncodeError> {
    if value.is_null() { Ok(()) } else { Err(EncodeError::Type(name)) }
}

fn put_items(
    number: u32,
    ty: Type,
    go: &'static str,
    name: &'static str,
    items: &[Value],
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    items.iter().try_for_each(|item| put_value(Slot { number, ty, go, name }, item, out))
}

/// Writes the value of a map entry. Lists are in a message of their own.
fn put_map_value(
    ty: Type,
    go: &'static str,
    name: &'static str,
    value: &Value,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    match (ty, value) {
        (Type::List(list), Value::Array(items)) => {
            put_message(out, 2, |out| put_items(1, list.element, "", name, items, out))
        }
        (Type::List(_), Value::Null) => put_message(out, 2, |_| Ok(())),
        (Type::Bytes, Value::Null) => Ok(()),
        _ => put_value(Slot { number: 2, ty, go, name }, value, out),
    }
}

/// Writes one value with its tag; `Null` means the type's zero value.
fn put_value(slot: Slot, value: &Value, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let Slot { number, ty, go, name } = slot;
    let wrong = || EncodeError::Type(name);
    match ty {
        Type::Bool => {
            let value = if value.is_null() { false } else { value.as_bool().ok_or_else(wrong)? };
            wire::put_int(out, number, i64::from(value));
        }
        Type::Int32 | Type::Int64 => {
            let value = if value.is_null() { 0 } else { value.as_i64().ok_or_else(wrong)? };
            wire::put_int(out, number, value);
        }
        Type::Float64 => {
            let value = if value.is_null() { 0.0 } else { value.as_f64().ok_or_else(wrong)? };
            wire::put_tag(out, number, FIXED64);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Type::String => {
            let text = if value.is_null() { "" } else { value.as_str().ok_or_else(wrong)? };
            wire::put_bytes(out, number, text.as_bytes());
        }
        Type::Bytes => {
            let text = if value.is_null() { "" } else { value.as_str().ok_or_else(wrong)? };
            let bytes = base64::decode(text.as_bytes()).map_err(|_| wrong())?;
            wire::put_bytes(out, number, &bytes);
        }
        Type::Quantity | Type::IntOrString | Type::Time | Type::MicroTime | Type::Duration => {
            put_message(out, number, |out| special::encode(ty, value, out).map_err(|_| wrong()))?;
        }
        Type::Any => put_message(out, number, |out| any::encode(go, value, name, out))?,
        Type::Struct(schema) => put_message(out, number, |out| match value {
            Value::Object(map) => message(map, plan::steps(schema), out),
            Value::Null => message(&Map::new(), plan::steps(schema), out),
            _ => Err(wrong()),
        })?,
        // The table has no lists of lists, and no maps of lists or maps in them.
        Type::List(_) | Type::Map(_) => return Err(wrong()),
    }
    Ok(())
}
