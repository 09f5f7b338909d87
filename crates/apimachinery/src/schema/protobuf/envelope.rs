//! The envelope that names a message's kind, lists, and frames of a watch.

use serde_json::Value;

use super::decode::wrong_wire;
use super::encode::encode_into;
use super::wire::{self, BYTES, Reader, put_message};
use super::{DecodeError, EncodeError, is_message};
use crate::gvk::GroupVersionKind;
use crate::schema::{Struct, Type, for_kind};

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The first bytes of every message with an envelope.
pub const MAGIC: [u8; 4] = *b"k8s\0";

/// A parsed envelope (`runtime.Unknown`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unknown<'a> {
    pub api_version: String,
    pub kind: String,
    /// The message in the envelope.
    pub raw: &'a [u8],
}

/// Parses an envelope.
pub fn open(body: &[u8]) -> Result<Unknown<'_>, DecodeError> {
    let refuse = |text: &str| Err(DecodeError::Value(text.to_owned()));
    if body.is_empty() {
        return refuse("empty data");
    }
    let Some(data) = body.strip_prefix(&MAGIC) else {
        return refuse(
            "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
        );
    };
    if data.is_empty() {
        return refuse("empty body");
    }
    let mut unknown = Unknown::default();
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag("Unknown")? {
        match (tag.number, tag.wire) {
            (1, BYTES) => type_meta(reader.bytes()?, &mut unknown)?,
            (2, BYTES) => unknown.raw = reader.bytes()?,
            (3 | 4, BYTES) => drop(reader.bytes()?),
            (number @ 1..=4, wire) => {
                let field = ["TypeMeta", "Raw", "ContentEncoding", "ContentType"][number as usize - 1];
                return Err(wrong_wire(wire, field));
            }
            (_, wire) => reader.skip(wire)?,
        }
    }
    Ok(unknown)
}

fn type_meta(data: &[u8], unknown: &mut Unknown<'_>) -> Result<(), DecodeError> {
    let mut reader = Reader::new(data);
    while let Some(tag) = reader.tag("TypeMeta")? {
        let slot = match tag.number {
            1 => &mut unknown.api_version,
            2 => &mut unknown.kind,
            _ => {
                reader.skip(tag.wire)?;
                continue;
            }
        };
        if tag.wire != BYTES {
            return Err(wrong_wire(tag.wire, if tag.number == 1 { "APIVersion" } else { "Kind" }));
        }
        *slot = String::from_utf8_lossy(reader.bytes()?).into_owned();
    }
    Ok(())
}

/// Returns an envelope around the message that `write` writes.
pub fn wrap(
    api_version: &str,
    kind: &str,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::with_capacity(2048);
    out.extend_from_slice(&MAGIC);
    put_message(&mut out, 1, |out| {
        wire::put_bytes(out, 1, api_version.as_bytes());
        wire::put_bytes(out, 2, kind.as_bytes());
        Ok(())
    })?;
    put_message(&mut out, 2, write)?;
    wire::put_bytes(&mut out, 3, b"");
    wire::put_bytes(&mut out, 4, b"");
    Ok(out)
}

/// Returns the schema of a kind that has a protobuf message.
fn message_of(api_version: &str, kind: &str) -> Result<&'static Struct, EncodeError> {
    for_kind(&GroupVersionKind::from_api_version(api_version, kind))
        .filter(|schema| is_message(schema))
        .ok_or_else(|| EncodeError::NotMarshalable(format!("{api_version}.{kind}")))
}

/// Encodes an object with `apiVersion` and `kind` in an envelope.
pub fn encode_object(value: &Value) -> Result<Vec<u8>, EncodeError> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or("");
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let schema = message_of(api_version, kind)?;
    wrap(api_version, kind, |out| encode_into(value, schema, out))
}

/// Encodes a list item by item.
pub struct ListEncoder {
    api_version: String,
    kind: String,
    element: &'static Struct,
    number: u32,
    /// The message without its envelope.
    message: Vec<u8>,
}

impl ListEncoder {
    /// Starts a list of this kind, such as `v1` and `PodList`, with its list metadata.
    pub fn new(api_version: &str, kind: &str, meta: &Value) -> Result<Self, EncodeError> {
        let schema = message_of(api_version, kind)?;
        let not_a_list = || EncodeError::NotMarshalable(format!("{api_version}.{kind}"));
        let items = schema.field("items").ok_or_else(not_a_list)?;
        let Type::List(list) = items.ty else { return Err(not_a_list()) };
        let Type::Struct(element) = list.element else { return Err(not_a_list()) };
        let head = serde_json::json!({ "metadata": meta });
        let mut message = Vec::with_capacity(64 * 1024);
        // Items are the last field of every list.
        encode_into(&head, schema, &mut message)?;
        let (api_version, kind) = (api_version.to_owned(), kind.to_owned());
        Ok(Self { api_version, kind, element, number: items.number, message })
    }

    pub fn push(&mut self, item: &Value) -> Result<(), EncodeError> {
        put_message(&mut self.message, self.number, |out| encode_into(item, self.element, out))
    }

    /// Returns the list in its envelope.
    pub fn finish(self) -> Result<Vec<u8>, EncodeError> {
        let message = self.message;
        wrap(&self.api_version, &self.kind, |out| {
            out.extend_from_slice(&message);
            Ok(())
        })
    }
}

/// Appends one watch event: the length, and a `WatchEvent` without envelope that contains `object` with its envelope.
pub fn watch_frame(event_type: &str, object: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    wire::put_bytes(out, 1, event_type.as_bytes());
    put_message(out, 2, |out| {
        wire::put_bytes(out, 1, object);
        Ok(())
    })?;
    let length = u32::try_from(out.len() - start - 4).map_err(|_| EncodeError::TooLarge)?;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}
