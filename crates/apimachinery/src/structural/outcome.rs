//! The results of a validation against a schema, with the texts of the OpenAPI validation that upstream uses.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};

/// One violation; `path` is dotted and relative to the root of the validation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Failure {
    path: String,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Required,
    /// The value, and the permitted values as messages show them.
    Enum(Value, Vec<String>),
    TooLong(i64),
    TooMany(usize, i64),
    Type(Value, String),
    Invalid(Value, String),
    /// A violation of a combination of schemas; its message shows no path.
    Combination(String),
}

impl Failure {
    pub fn required(path: String) -> Self {
        Self { path, kind: Kind::Required }
    }

    pub fn enumeration(path: &str, value: &Value, permitted: &[Value]) -> Self {
        let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        let kind = Kind::Enum(value.clone(), permitted.iter().map(text).collect());
        Self { path: path.to_owned(), kind }
    }

    pub fn too_long(path: &str, max: i64) -> Self {
        Self { path: path.to_owned(), kind: Kind::TooLong(max) }
    }

    pub fn too_many(path: &str, actual: usize, max: i64) -> Self {
        Self { path: path.to_owned(), kind: Kind::TooMany(actual, max) }
    }

    /// `found` is the name of the value's type, or the value if it does not match a format.
    pub fn wrong_type(path: &str, wanted: &str, found: &str) -> Self {
        let message = format!("{path} in body must be of type {wanted}: {}", quoted(found));
        Self { path: path.to_owned(), kind: Kind::Type(found.into(), message) }
    }

    /// `rest` follows `PATH in body ` in the message.
    pub fn invalid(path: &str, value: Value, rest: &str) -> Self {
        let message = format!("{path} in body {rest}");
        Self { path: path.to_owned(), kind: Kind::Invalid(value, message) }
    }

    pub fn forbidden_property(path: &str, key: &str) -> Self {
        let message = format!("{path}.{key} in body is a forbidden property");
        Self { path: path.to_owned(), kind: Kind::Invalid(key.into(), message) }
    }

    pub fn combination(message: String) -> Self {
        Self { path: String::new(), kind: Kind::Combination(message) }
    }

    fn into_error(self, base: &Path) -> Error {
        let name = self.path.strip_prefix('.').unwrap_or(&self.path);
        let path = if name.is_empty() { base.clone() } else { base.child(name) };
        match self.kind {
            Kind::Required => Error::required(&path, ""),
            Kind::Enum(value, permitted) => {
                let permitted: Vec<&str> = permitted.iter().map(String::as_str).collect();
                Error::not_supported(&path, value, &permitted)
            }
            Kind::TooLong(max) => Error::too_long(&path, usize::try_from(max).unwrap_or(0)),
            Kind::TooMany(actual, max) => Error::too_many(&path, actual, usize::try_from(max).unwrap_or(0)),
            Kind::Type(value, message) => Error::type_invalid(&path, value, message),
            Kind::Invalid(value, message) => Error::invalid(&path, value, message),
            Kind::Combination(message) => Error::invalid(base, "", message),
        }
    }
}

fn quoted(text: &str) -> String {
    crate::schema::validate::quote(text)
}

/// All violations of a value, and the number of checks, by which the best match among alternatives is chosen.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub failures: Vec<Failure>,
    pub checks: u32,
}

impl Outcome {
    pub fn fail(&mut self, failure: Failure) {
        if !self.failures.contains(&failure) {
            self.failures.push(failure);
        }
    }

    pub fn merge(&mut self, other: Outcome) {
        self.checks += other.checks;
        other.failures.into_iter().for_each(|f| self.fail(f));
    }

    pub fn is_valid(&self) -> bool {
        self.failures.is_empty()
    }

    pub fn into_errors(self, base: &Path) -> ErrorList {
        ErrorList(self.failures.into_iter().map(|f| f.into_error(base)).collect())
    }
}
