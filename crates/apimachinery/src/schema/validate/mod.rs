//! Decoding and field validation of request bodies, with the messages of the API server.
//!
//! [`decode`] converts bytes to a pruned, normalised value of a known type, or returns the error of Go's typed
//! decoder. Unknown and duplicate fields are returned beside the value; the caller refuses them
//! (`fieldValidation=Strict`), warns about them (`Warn`) or ignores them (`Ignore`).

pub(super) mod base64;
mod cursor;
mod decoder;
mod normalize;
mod quote;
mod request;
mod syntax;
pub(super) mod time;

pub(super) use decoder::dropped;
pub use normalize::{apply_defaults, fill, prune};
pub use quote::quote;
pub(super) use request::finish_request;
pub use request::{TypeMeta, decode_request, interpret, strict_message, unrecognized};
pub use syntax::{MAX_DEPTH, SyntaxError, check as check_syntax};

use serde_json::Value;

use super::{Struct, Type};
use decoder::Decoder;

/// A decoded body.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// Only known fields, without nulls, in canonical form: quantities, times and base64 are rewritten as Go writes
    /// them, zero values are dropped where Go does not distinguish them from unset ones.
    pub value: Value,
    /// `unknown field "spec.foo"`, `duplicate field "spec.x"`: in order of appearance, without repetition, at most
    /// 100.
    pub strict_errors: Vec<String>,
}

/// Why bytes cannot be decoded, with Go's error text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    #[error("{0}")]
    Value(String),
}

/// An error that ends the decoding.
#[derive(Debug)]
enum Abort {
    Type { value: String, owner: String, field: String, go_type: String },
    Text(String),
}

impl From<Abort> for DecodeError {
    fn from(abort: Abort) -> Self {
        Self::Value(match abort {
            Abort::Text(text) => text,
            Abort::Type { value, owner, field, go_type } if owner.is_empty() && field.is_empty() => {
                format!("json: cannot unmarshal {value} into Go value of type {go_type}")
            }
            Abort::Type { value, owner, field, go_type } => {
                format!(
                    "json: cannot unmarshal {value} into Go struct field {owner}.{field} of type {go_type}"
                )
            }
        })
    }
}

/// Decodes JSON bytes into the shape of `schema`.
pub fn decode(bytes: &[u8], schema: &'static Struct) -> Result<Decoded, DecodeError> {
    syntax::check(bytes)?;
    decode_checked(bytes, schema)
}

/// Does the same as [`decode`], for bytes that have passed [`check_syntax`].
fn decode_checked(bytes: &[u8], schema: &'static Struct) -> Result<Decoded, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let mut value = Value::Null;
    decoder.run(Type::Struct(schema), &mut value)?;
    Ok(Decoded { value, strict_errors: decoder.strict })
}

/// Decodes JSON bytes without a schema, as the first step for custom resources: records only duplicate keys.
pub fn decode_untyped(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    syntax::check(bytes)?;
    let mut decoder = Decoder::new(bytes);
    let value = decoder.run_untyped()?;
    Ok(Decoded { value, strict_errors: decoder.strict })
}

#[cfg(test)]
mod tests;
