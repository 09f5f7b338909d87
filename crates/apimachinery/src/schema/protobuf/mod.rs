//! The Kubernetes protobuf format (`application/vnd.kubernetes.protobuf`): conversion between bytes and JSON values.
//!
//! Field numbers and types come from the schema table, so that no message code is generated. Values are as
//! [`super::validate::decode`] returns them: known fields in canonical form. The encoder writes what Go's generated
//! code always writes (scalars and structs that are not pointers), in its order and with its zero values.

mod any;
mod decode;
mod encode;
mod envelope;
mod request;
mod special;
mod wire;

pub use decode::decode;
pub use encode::encode;
pub use envelope::{ListEncoder, MAGIC, MEDIA_TYPE, Unknown, encode_object, open, watch_frame, wrap};
pub use request::{decode_as, decode_request};

use super::Struct;

/// Why bytes cannot be decoded, with the error text of Go's generated code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("unexpected EOF")]
    UnexpectedEof,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: negative length found during unmarshaling")]
    NegativeLength,
    #[error("proto: unexpected end of group")]
    EndOfGroup,
    #[error("proto: illegal wireType {0}")]
    IllegalWireType(u8),
    #[error("proto: {message}: illegal tag {number} (wire type {wire})")]
    IllegalTag { message: &'static str, number: i32, wire: u64 },
    #[error("proto: {0}: wiretype end group for non-group")]
    StrayEndGroup(&'static str),
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WrongWireType { wire: u8, field: String },
    #[error("exceeded max depth")]
    TooDeep,
    #[error("{0}")]
    Value(String),
}

/// Why a value cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The kind is unknown, or has no protobuf message.
    #[error(
        "object {0} does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message"
    )]
    NotMarshalable(String),
    #[error("a value in {0} is not of its field's type")]
    Type(&'static str),
    #[error("a message is larger than the format allows")]
    TooLarge,
}

/// Returns whether values of this shape can be encoded at all: tables, for example, cannot.
pub fn is_message(schema: &'static Struct) -> bool {
    schema.fields.iter().any(|f| f.number != 0)
}

#[cfg(test)]
mod tests;
