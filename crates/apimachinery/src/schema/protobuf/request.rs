//! Decodes the object of a protobuf request body, with the API server's errors.

use serde_json::Value;

use super::{DecodeError, decode, is_message, open};
use crate::gvk::GroupVersionKind;
use crate::schema::Struct;
use crate::schema::validate::{Decoded, finish_request, unrecognized};
use crate::status::StatusError;

/// Decodes a body that must contain an object of the kind `expected`, as
/// [`decode_request`](crate::schema::validate::decode_request) does for JSON.
pub fn decode_request(body: &[u8], expected: &GroupVersionKind) -> Result<Decoded, StatusError> {
    let unknown = open(body).map_err(|e| unrecognized(&expected.kind, &e.to_string(), body))?;
    let mut actual = GroupVersionKind::from_api_version(&unknown.api_version, &unknown.kind);
    if unknown.api_version.matches('/').count() > 1 {
        (actual.group, actual.version) = (String::new(), String::new());
    }
    if actual.kind.is_empty() {
        actual.kind.clone_from(&expected.kind);
    }
    if actual.version.is_empty() {
        actual.group.clone_from(&expected.group);
        actual.version.clone_from(&expected.version);
    }
    finish_request(&actual, expected, |schema| {
        let value = decode_message(unknown.raw, schema).map_err(|e| e.to_string())?;
        Ok(Decoded { value, strict_errors: Vec::new() })
    })
}

/// Decodes a body as this type, whatever kind its envelope names.
pub fn decode_as(body: &[u8], schema: &'static Struct) -> Result<Value, DecodeError> {
    decode_message(open(body)?.raw, schema)
}

fn decode_message(raw: &[u8], schema: &'static Struct) -> Result<Value, DecodeError> {
    if !is_message(schema) {
        let name = schema.short_name();
        return Err(DecodeError::Value(format!(
            "object {name} does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message"
        )));
    }
    decode(raw, schema)
}
