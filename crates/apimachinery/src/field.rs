//! Field paths and the errors that validation reports about them, with upstream's texts.
//!
//! Source: `k8s.io/apimachinery/pkg/util/validation/field`.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use serde_json::Value;

use crate::schema::validate::quote;

/// A path to a field: `spec.containers[0].image`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Path(String);

impl Path {
    /// Creates a path that starts at this field.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Returns the path of the field `name` below this one.
    pub fn child(&self, name: &str) -> Self {
        // Called for every field that is validated, valid or not: concatenates with a single allocation.
        if self.0.is_empty() { Self::new(name) } else { Self([&self.0, ".", name].concat()) }
    }

    /// Returns the path of the list element at `index`.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// Returns the path of the map entry with this key.
    pub fn key(&self, key: &str) -> Self {
        Self([&self.0, "[", key, "]"].concat())
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// The kind of a field error. The reason strings are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorType {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl ErrorType {
    fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
            Self::TypeInvalid => "Invalid value",
        }
    }
}

/// One error about one field.
#[derive(Debug, Clone, PartialEq)]
pub struct Error {
    pub kind: ErrorType,
    pub path: Path,
    /// The invalid value; `None` if the message does not show one.
    pub value: Option<Value>,
    pub detail: String,
}

impl Error {
    fn new(kind: ErrorType, path: &Path, value: Option<Value>, detail: impl Into<String>) -> Self {
        Self { kind, path: path.clone(), value, detail: detail.into() }
    }

    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Required, path, None, detail)
    }

    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Invalid, path, Some(value.into()), detail)
    }

    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::TypeInvalid, path, Some(value.into()), detail)
    }

    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::Duplicate, path, Some(value.into()), "")
    }

    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::NotFound, path, Some(value.into()), "")
    }

    /// Returns `Unsupported value: "x": supported values: "A", "B"`, in the given order.
    pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let names: Vec<String> = supported.iter().map(|s| format!("\"{s}\"")).collect();
        let detail =
            if names.is_empty() { String::new() } else { format!("supported values: {}", names.join(", ")) };
        Self::new(ErrorType::NotSupported, path, Some(value.into()), detail)
    }

    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Forbidden, path, None, detail)
    }

    /// Returns `Too long: may not be more than N bytes`.
    pub fn too_long(path: &Path, max_bytes: usize) -> Self {
        Self::new(ErrorType::TooLong, path, None, format!("may not be more than {max_bytes} bytes"))
    }

    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        let noun = if max == 1 { "item" } else { "items" };
        Self::new(
            ErrorType::TooMany,
            path,
            Some(Value::from(actual)),
            format!("must have at most {max} {noun}"),
        )
    }

    pub fn internal(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Internal, path, None, detail)
    }

    /// Returns the message without the path.
    pub fn body(&self) -> String {
        let mut s = self.kind.label().to_owned();
        if let Some(value) = &self.value {
            s.push_str(": ");
            s.push_str(&render(value));
        }
        if !self.detail.is_empty() {
            s.push_str(": ");
            s.push_str(&self.detail);
        }
        s
    }
}

/// Formats a value for error messages: strings as Go quotes them, others as the JSON that Go writes.
fn render(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        other => go_json(&other.to_string()),
    }
}

/// Escapes JSON text as Go does: HTML's special characters are written as `\u` escapes.
pub fn go_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            c => out.push(c),
        }
    }
    out
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

/// All errors about one object.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ErrorList(pub Vec<Error>);

impl ErrorList {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, error: Error) {
        self.0.push(error);
    }

    pub fn extend(&mut self, other: ErrorList) {
        self.0.extend(other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the `causes` of an Invalid status, without duplicates.
    pub fn causes(&self) -> Vec<StatusCause> {
        let mut causes: Vec<StatusCause> = Vec::with_capacity(self.0.len());
        for e in &self.0 {
            let cause = StatusCause {
                field: Some(e.path.to_string()),
                message: Some(e.body()),
                reason: Some(e.kind.reason().to_owned()),
            };
            if !causes.contains(&cause) {
                causes.push(cause);
            }
        }
        causes
    }
}

impl fmt::Display for ErrorList {
    /// Writes one error as it is and several as `[a, b]` without duplicates, as upstream aggregates them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen: Vec<String> = Vec::new();
        for e in &self.0 {
            let text = e.to_string();
            if !seen.contains(&text) {
                seen.push(text);
            }
        }
        match seen.as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_shown_as_go_shows_them() {
        let path = Path::new("a");
        for (value, want) in [
            (json!("x\u{1}<"), "a: Invalid value: \"x\\x01<\": no"),
            (json!({"b": "<&>"}), "a: Invalid value: {\"b\":\"\\u003c\\u0026\\u003e\"}: no"),
            (json!(1), "a: Invalid value: 1: no"),
            (Value::Null, "a: Invalid value: null: no"),
        ] {
            assert_eq!(Error::invalid(&path, value, "no").to_string(), want);
        }
    }

    #[test]
    fn what_is_said_twice_is_one_cause() {
        let mut errors = ErrorList::new();
        for _ in 0..2 {
            errors.push(Error::required(&Path::new("a"), ""));
        }
        errors.push(Error::required(&Path::new("b"), ""));
        assert_eq!(errors.causes().len(), 2);
        assert_eq!(errors.to_string(), "[a: Required value, b: Required value]");
    }
}
