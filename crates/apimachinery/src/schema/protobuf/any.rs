//! Messages of values without a fixed shape: raw JSON in one field, and the alternatives in JSON schemas.

use serde_json::{Map, Value};

use super::decode::{struct_into, wrong_wire};
use super::encode::message;
use super::wire::{self, BYTES, Reader, VARINT};
use super::{DecodeError, EncodeError};
use crate::field::go_json;
use crate::schema::validate::decode_untyped;
use crate::schema::{Struct, for_definition, plan};

const JSON_SCHEMA_PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

fn schema_props() -> Option<&'static Struct> {
    for_definition(JSON_SCHEMA_PROPS)
}

/// Decodes a message of the Go type `go`; `depth` is the remaining nesting limit.
pub fn decode(go: &str, data: &[u8], depth: usize) -> Result<Value, DecodeError> {
    match go {
        "v1.JSONSchemaPropsOrBool" => decode_or_bool(data, depth),
        "v1.JSONSchemaPropsOrArray" => decode_or_list(data, depth, false),
        "v1.JSONSchemaPropsOrStringArray" => decode_or_list(data, depth, true),
        _ => decode_raw(data, depth),
    }
}

fn decode_raw(data: &[u8], depth: usize) -> Result<Value, DecodeError> {
    let mut raw: &[u8] = &[];
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag("RawExtension")? {
        match (tag.number, tag.wire) {
            (1, BYTES) => raw = reader.bytes()?,
            (1, wire) => return Err(wrong_wire(wire, "raw")),
            (_, wire) => reader.skip(wire)?,
        }
    }
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    let value = decode_untyped(raw).map_err(|e| DecodeError::Value(e.to_string()))?.value;
    if fits(&value, depth) { Ok(value) } else { Err(DecodeError::TooDeep) }
}

/// Returns whether a value has at most this nesting depth.
fn fits(value: &Value, depth: usize) -> bool {
    let inner = |v: &Value| depth.checked_sub(1).is_some_and(|depth| fits(v, depth));
    match value {
        Value::Array(items) => depth > 0 && items.iter().all(inner),
        Value::Object(map) => depth > 0 && map.values().all(inner),
        _ => true,
    }
}

fn decode_schema(data: &[u8], slot: &mut Value, depth: usize) -> Result<(), DecodeError> {
    let Some(schema) = schema_props() else { return Ok(()) };
    struct_into(data, schema, slot, depth)
}

fn decode_or_bool(data: &[u8], depth: usize) -> Result<Value, DecodeError> {
    let (mut allows, mut schema) = (false, Value::Null);
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag("JSONSchemaPropsOrBool")? {
        match (tag.number, tag.wire) {
            (1, VARINT) => allows = reader.varint()? != 0,
            (2, BYTES) => decode_schema(reader.bytes()?, &mut schema, depth)?,
            (1, wire) => return Err(wrong_wire(wire, "allows")),
            (2, wire) => return Err(wrong_wire(wire, "schema")),
            (_, wire) => reader.skip(wire)?,
        }
    }
    Ok(if schema.is_null() { Value::Bool(allows) } else { schema })
}

/// Decodes a schema (field 1) or a list of schemas or strings (field 2), which takes precedence.
fn decode_or_list(data: &[u8], depth: usize, strings: bool) -> Result<Value, DecodeError> {
    let (mut schema, mut items) = (Value::Null, Vec::new());
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag("JSONSchemaPropsOrArray")? {
        match (tag.number, tag.wire) {
            (1, BYTES) => decode_schema(reader.bytes()?, &mut schema, depth)?,
            (2, BYTES) if strings => {
                items.push(Value::String(String::from_utf8_lossy(reader.bytes()?).into_owned()));
            }
            (2, BYTES) => {
                let mut item = Value::Null;
                let depth = depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
                decode_schema(reader.bytes()?, &mut item, depth)?;
                items.push(item);
            }
            (1, wire) => return Err(wrong_wire(wire, "schema")),
            (2, wire) => return Err(wrong_wire(wire, "jSONSchemas")),
            (_, wire) => reader.skip(wire)?,
        }
    }
    Ok(if items.is_empty() { schema } else { Value::Array(items) })
}

/// Writes the message's fields, without tag and length.
pub fn encode(go: &str, value: &Value, field: &'static str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match go {
        "v1.JSONSchemaPropsOrBool" => match value {
            Value::Object(map) => {
                wire::put_int(out, 1, 1);
                encode_schema(out, 2, map)
            }
            _ => {
                wire::put_int(out, 1, i64::from(value.as_bool().unwrap_or(false)));
                Ok(())
            }
        },
        "v1.JSONSchemaPropsOrArray" | "v1.JSONSchemaPropsOrStringArray" => match value {
            Value::Object(map) => encode_schema(out, 1, map),
            Value::Array(items) => items.iter().try_for_each(|item| match item {
                Value::Object(map) => encode_schema(out, 2, map),
                Value::String(text) => {
                    wire::put_bytes(out, 2, text.as_bytes());
                    Ok(())
                }
                _ => Err(EncodeError::Type(field)),
            }),
            _ => Ok(()),
        },
        _ if value.is_null() => Ok(()),
        _ => {
            // Written as Go does: some clients compare these bytes with their own encoding.
            let raw = serde_json::to_string(value).map_err(|_| EncodeError::Type(field))?;
            wire::put_bytes(out, 1, go_json(&raw).as_bytes());
            Ok(())
        }
    }
}

fn encode_schema(out: &mut Vec<u8>, number: u32, map: &Map<String, Value>) -> Result<(), EncodeError> {
    let Some(schema) = schema_props() else { return Ok(()) };
    wire::put_message(out, number, |out| message(map, plan::steps(schema), out))
}
