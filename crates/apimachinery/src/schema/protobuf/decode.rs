//! Decodes a protobuf message into a JSON value of the shape that a [`Struct`] describes.
//!
//! Does as Go's generated code does: it skips unknown fields, uses the last of several scalars, merges repeated
//! messages, and appends to lists. It omits zero values that JSON omits.

use serde_json::{Map, Value};

use super::encode::is_wrapped;
use super::wire::{BYTES, FIXED64, Reader, VARINT};
use super::{DecodeError, any, special};
use crate::schema::plan::{self, Step};
use crate::schema::validate::{MAX_DEPTH, base64, dropped};
use crate::schema::{self, Field, Struct, Type, go_element};

type Result<T = ()> = std::result::Result<T, DecodeError>;

/// Decodes a message. The nesting limit is that of JSON bodies.
pub fn decode(data: &[u8], schema: &'static Struct) -> Result<Value> {
    let mut value = Value::Null;
    struct_into(data, schema, &mut value, MAX_DEPTH)?;
    Ok(value)
}

/// Decodes a message into the existing value of the slot.
pub fn struct_into(data: &[u8], schema: &'static Struct, slot: &mut Value, depth: usize) -> Result {
    let depth = depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
    let mut map = match slot.take() {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    fields(data, schema.short_name(), plan::steps(schema), &mut map, depth)?;
    *slot = Value::Object(map);
    Ok(())
}

fn fields(
    data: &[u8],
    message: &'static str,
    steps: &'static [Step],
    map: &mut Map<String, Value>,
    depth: usize,
) -> Result {
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag(message)? {
        match plan::find(steps, tag.number) {
            None => reader.skip(tag.wire)?,
            Some(Step::Inlined(_, inner)) => {
                expect(tag.wire, BYTES, message)?;
                fields(reader.bytes()?, message, inner, map, depth)?;
            }
            Some(Step::Field(field)) => {
                let mut value = map.remove(field.name).unwrap_or(Value::Null);
                self::field(&mut reader, tag.wire, field, &mut value, depth)?;
                if !value.is_null() && !dropped(field, &value) {
                    map.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Ok(())
}

pub fn wrong_wire(wire: u8, field: &str) -> DecodeError {
    let mut chars = field.chars();
    let field = chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect();
    DecodeError::WrongWireType { wire, field }
}

fn expect(wire: u8, wanted: u8, field: &str) -> Result {
    if wire == wanted { Ok(()) } else { Err(wrong_wire(wire, field)) }
}

fn field(reader: &mut Reader<'_>, wire: u8, field: &'static Field, slot: &mut Value, depth: usize) -> Result {
    let go = go_element(field.go_name);
    match field.ty {
        Type::List(list) if is_wrapped(field.go_name) => {
            expect(wire, BYTES, field.name)?;
            wrapped_list(reader.bytes()?, list, field.name, slot, depth)
        }
        Type::List(list) => {
            let mut items = match slot.take() {
                Value::Array(items) => items,
                _ => Vec::new(),
            };
            let depth = depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
            element(reader, wire, list.element, Names { go, field: field.name }, &mut items, depth)?;
            *slot = Value::Array(items);
            Ok(())
        }
        Type::Map(map) => {
            expect(wire, BYTES, field.name)?;
            let mut entries = match slot.take() {
                Value::Object(entries) => entries,
                _ => Map::new(),
            };
            let depth = depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
            let names = Names { go, field: field.name };
            let (key, value) = entry(reader.bytes()?, map, names, depth)?;
            entries.insert(key, value);
            *slot = Value::Object(entries);
            Ok(())
        }
        ty => value(reader, wire, ty, Names { go: field.go_name, field: field.name }, slot, depth),
    }
}

/// The Go name of a value's type, where it matters, and the name of its field.
#[derive(Clone, Copy)]
struct Names {
    go: &'static str,
    field: &'static str,
}

/// Decodes one list element, or several packed numbers.
fn element(
    reader: &mut Reader<'_>,
    wire: u8,
    ty: Type,
    names: Names,
    items: &mut Vec<Value>,
    depth: usize,
) -> Result {
    let packs = match ty {
        Type::Bool | Type::Int32 | Type::Int64 => Some(VARINT),
        Type::Float64 => Some(FIXED64),
        _ => None,
    };
    if let (Some(inner), BYTES) = (packs, wire) {
        let mut packed = Reader::new(reader.bytes()?);
        while !packed.is_empty() {
            let mut item = Value::Null;
            value(&mut packed, inner, ty, names, &mut item, depth)?;
            items.push(item);
        }
        return Ok(());
    }
    let mut item = Value::Null;
    value(reader, wire, ty, names, &mut item, depth)?;
    items.push(item);
    Ok(())
}

/// Decodes a message whose field 1 has the elements.
fn wrapped_list(
    data: &[u8],
    list: &'static schema::List,
    name: &'static str,
    slot: &mut Value,
    depth: usize,
) -> Result {
    let mut items = match slot.take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    let depth = depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag("Items")? {
        match tag.number {
            1 => element(
                &mut reader,
                tag.wire,
                list.element,
                Names { go: "", field: name },
                &mut items,
                depth,
            )?,
            _ => reader.skip(tag.wire)?,
        }
    }
    *slot = Value::Array(items);
    Ok(())
}

/// Decodes the key and the value of a map entry, either of which may be missing.
fn entry(data: &[u8], map: &'static schema::Map, names: Names, depth: usize) -> Result<(String, Value)> {
    let (mut key, mut slot, mut found) = (String::new(), Value::Null, false);
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag("Entry")? {
        match (tag.number, map.value) {
            (1, _) => {
                expect(tag.wire, BYTES, names.field)?;
                key = String::from_utf8_lossy(reader.bytes()?).into_owned();
            }
            (2, Type::List(list)) => {
                expect(tag.wire, BYTES, names.field)?;
                found = true;
                slot = Value::Null;
                wrapped_list(reader.bytes()?, list, names.field, &mut slot, depth)?;
            }
            (2, ty) => {
                found = true;
                slot = Value::Null;
                value(&mut reader, tag.wire, ty, names, &mut slot, depth)?;
            }
            _ => reader.skip(tag.wire)?,
        }
    }
    if !found {
        slot = missing(map.value);
    }
    Ok((key, slot))
}

/// Returns Go's zero value for a map entry without a value.
fn missing(ty: Type) -> Value {
    match ty {
        Type::Bool => Value::Bool(false),
        Type::Int32 | Type::Int64 | Type::Float64 | Type::IntOrString => Value::from(0),
        Type::String | Type::Bytes => Value::String(String::new()),
        Type::Quantity => Value::from("0"),
        Type::Duration => Value::from("0s"),
        Type::Struct(_) => Value::Object(Map::new()),
        Type::List(_) | Type::Map(_) | Type::Time | Type::MicroTime | Type::Any => Value::Null,
    }
}

fn value(
    reader: &mut Reader<'_>,
    wire: u8,
    ty: Type,
    names: Names,
    slot: &mut Value,
    depth: usize,
) -> Result {
    let wanted = match ty {
        Type::Bool | Type::Int32 | Type::Int64 => VARINT,
        Type::Float64 => FIXED64,
        _ => BYTES,
    };
    expect(wire, wanted, names.field)?;
    match ty {
        Type::Bool => *slot = Value::Bool(reader.varint()? != 0),
        Type::Int32 => *slot = Value::from(reader.varint()? as i32),
        Type::Int64 => *slot = Value::from(reader.varint()? as i64),
        Type::Float64 => *slot = float(f64::from_bits(reader.fixed64()?))?,
        Type::String => *slot = Value::String(String::from_utf8_lossy(reader.bytes()?).into_owned()),
        Type::Bytes => *slot = Value::String(base64::encode(reader.bytes()?)),
        Type::Quantity | Type::IntOrString | Type::Time | Type::MicroTime | Type::Duration => {
            *slot = special::decode(ty, reader.bytes()?)?;
        }
        Type::Any => *slot = any::decode(names.go, reader.bytes()?, depth)?,
        Type::Struct(schema) => struct_into(reader.bytes()?, schema, slot, depth)?,
        Type::List(_) | Type::Map(_) => return Err(wrong_wire(wire, names.field)),
    }
    Ok(())
}

/// Converts a float as JSON has it: whole numbers without a fraction; refuses NaN and infinities.
fn float(number: f64) -> Result<Value> {
    if !number.is_finite() {
        return Err(DecodeError::Value("json: unsupported value".to_owned()));
    }
    let whole = number.fract() == 0.0 && number.abs() < 1e15;
    Ok(if whole { Value::from(number as i64) } else { Value::from(number) })
}
