//! Decodes the object of a request body: reads its kind, and returns the API server's errors for invalid bodies.

use super::cursor::{Cursor, Kind};
use super::quote::quote;
use super::{DecodeError, Decoded, decode_checked, syntax};
use crate::gvk::{GroupVersionKind, api_version};
use crate::schema::{Struct, for_kind};
use crate::status::StatusError;

/// The kind and version of a body; empty if it has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TypeMeta {
    pub api_version: String,
    pub kind: String,
}

/// The number of bytes of a body that an error message shows.
const SUMMARY_BYTES: usize = 30;

/// The anonymous struct into which upstream decodes kind and version.
const META_TYPE: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// Reads `apiVersion` and `kind` from JSON bytes.
pub fn interpret(bytes: &[u8]) -> Result<TypeMeta, DecodeError> {
    let meta = read_type_meta(bytes);
    meta.map_err(|e| DecodeError::Value(format!("couldn't get version/kind; json parse error: {e}")))
}

fn read_type_meta(bytes: &[u8]) -> Result<TypeMeta, DecodeError> {
    syntax::check(bytes)?;
    let mut cursor = Cursor::new(bytes);
    let mut meta = TypeMeta::default();
    match cursor.kind() {
        Kind::Object => cursor.begin(),
        Kind::Null => return Ok(meta),
        other => {
            let word = other.word();
            let message = format!("json: cannot unmarshal {word} into Go value of type {META_TYPE}");
            return Err(DecodeError::Value(message));
        }
    }
    let mut wrong = None;
    while cursor.more() {
        let key = cursor.key();
        // Upstream's decoder ignores case here, unlike the one for the whole object.
        let (name, slot) = if key.eq_ignore_ascii_case("apiVersion") {
            ("apiVersion", &mut meta.api_version)
        } else if key.eq_ignore_ascii_case("kind") {
            ("kind", &mut meta.kind)
        } else {
            cursor.raw();
            continue;
        };
        match cursor.kind() {
            Kind::String => *slot = cursor.string().into_owned(),
            other => {
                cursor.raw();
                if other != Kind::Null {
                    let word = other.word();
                    wrong.get_or_insert(format!(
                        "json: cannot unmarshal {word} into Go struct field .{name} of type string"
                    ));
                }
            }
        }
    }
    wrong.map_or(Ok(meta), |message| Err(DecodeError::Value(message)))
}

/// Returns `strict decoding error: unknown field "spec.foo", duplicate field "spec.x"`.
pub fn strict_message(errors: &[String]) -> String {
    format!("strict decoding error: {}", errors.join(", "))
}

/// Decodes a JSON body that must contain an object of the kind `expected`; a body without a kind or version is
/// assumed to be one. Errors are those of the API server: 400 with its message.
///
/// Sets `apiVersion` and `kind` in the value. With `strict`, unknown and duplicate fields are an error, too;
/// otherwise they are in [`Decoded::strict_errors`], each usable as a warning.
pub fn decode_request(
    body: &[u8],
    expected: &GroupVersionKind,
    strict: bool,
) -> Result<Decoded, StatusError> {
    let meta = interpret(body).map_err(|e| unrecognized(&expected.kind, &e.to_string(), body))?;
    let actual = actual_kind(&meta, expected).map_err(|e| unrecognized(&expected.kind, &e, body))?;
    if actual.version.is_empty() {
        let text = String::from_utf8_lossy(body);
        return Err(cannot_be_handled(
            &actual,
            expected,
            &format!("Object 'apiVersion' is missing in '{text}'"),
        ));
    }
    finish_request(&actual, expected, |schema| {
        let decoded = decode_checked(body, schema).map_err(|e| e.to_string())?;
        if strict && !decoded.strict_errors.is_empty() {
            return Err(strict_message(&decoded.strict_errors));
        }
        Ok(decoded)
    })
}

/// Decodes a body of the kind `actual`, and checks that this is the expected kind.
pub fn finish_request(
    actual: &GroupVersionKind,
    expected: &GroupVersionKind,
    decode: impl FnOnce(&'static Struct) -> Result<Decoded, String>,
) -> Result<Decoded, StatusError> {
    let Some(schema) = for_kind(actual) else {
        let why = format!(
            "no kind {} is registered for version {} in scheme \"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30\"",
            quote(&actual.kind),
            quote(&actual.api_version()),
        );
        return Err(cannot_be_handled(actual, expected, &why));
    };
    let mut decoded = decode(schema).map_err(|e| cannot_be_handled(actual, expected, &e))?;
    if actual.kind != expected.kind || actual.group != expected.group {
        let why = format!(
            "converting ({}.{}) to ({}.{}): unknown conversion",
            actual.version,
            actual.kind,
            internal_package(&expected.group),
            expected.kind,
        );
        return Err(cannot_be_handled(actual, expected, &why));
    }
    if actual.version != expected.version {
        return Err(StatusError::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            actual.api_version(),
            expected.api_version(),
        )));
    }
    if decoded.value.is_null() {
        decoded.value = serde_json::Value::Object(serde_json::Map::new());
    }
    if let serde_json::Value::Object(map) = &mut decoded.value {
        map.insert("apiVersion".to_owned(), api_version(&actual.group, &actual.version).into());
        map.insert("kind".to_owned(), actual.kind.clone().into());
    }
    Ok(decoded)
}

/// Returns the body's kind and version; the expected ones replace missing parts.
fn actual_kind(meta: &TypeMeta, expected: &GroupVersionKind) -> Result<GroupVersionKind, String> {
    let version = meta.api_version.as_str();
    if version.matches('/').count() > 1 {
        return Err(format!("unexpected GroupVersion string: {version}"));
    }
    // A lone slash counts as missing.
    let version = if version == "/" { "" } else { version };
    let mut actual = GroupVersionKind::from_api_version(version, &meta.kind);
    if actual.kind.is_empty() {
        actual.kind.clone_from(&expected.kind);
    }
    if actual.version.is_empty() && (actual.group.is_empty() || actual.group == expected.group) {
        actual.group.clone_from(&expected.group);
        actual.version.clone_from(&expected.version);
    }
    Ok(actual)
}

/// Returns the name of the Go package of a group's internal types.
fn internal_package(group: &str) -> &str {
    match group.split('.').next().unwrap_or_default() {
        "" => "core",
        first => first,
    }
}

fn cannot_be_handled(actual: &GroupVersionKind, expected: &GroupVersionKind, why: &str) -> StatusError {
    let (kind, version, wanted) = (&actual.kind, quote(&actual.version), &expected.kind);
    StatusError::bad_request(format!("{kind} in version {version} cannot be handled as a {wanted}: {why}"))
}

/// Returns the error for a body whose kind cannot be read.
pub fn unrecognized(expected_kind: &str, why: &str, body: &[u8]) -> StatusError {
    let summary = summarize(body);
    StatusError::bad_request(format!(
        "the object provided is unrecognized (must be of type {expected_kind}): {why} ({summary})"
    ))
}

/// Returns the beginning of a body: as text if it looks like a JSON object, otherwise in hexadecimal.
fn summarize(body: &[u8]) -> String {
    let shown = &body[..body.len().min(SUMMARY_BYTES)];
    let mut text = match body.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(shown).into_owned(),
        Some(_) => shown.iter().map(|b| format!("{b:02x}")).collect(),
    };
    if shown.len() < body.len() {
        text.push_str(" ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> GroupVersionKind {
        GroupVersionKind::new("apps", "v1", "Deployment")
    }

    #[track_caller]
    fn check(body: &str, want: &str) {
        let got = match decode_request(body.as_bytes(), &deployment(), true) {
            Ok(decoded) => format!("ok {}", decoded.value),
            Err(e) => format!("{} {} {}", e.code(), e.reason(), e.message()),
        };
        assert_eq!(got, want, "for {body}");
    }

    #[test]
    fn wrong_bodies_have_upstreams_words() {
        check(
            r#"{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":"3"}}"#,
            r#"400 BadRequest Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"#,
        );
        check(
            r#"{"spec":{"foo":1}}"#,
            r#"400 BadRequest Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.foo""#,
        );
        check(
            "{x",
            r#"400 BadRequest the object provided is unrecognized (must be of type Deployment): couldn't get version/kind; json parse error: invalid character 'x' looking for beginning of object key string ({x)"#,
        );
        check(
            "apiVersion: apps/v1\nkind: Deployment\n",
            r#"400 BadRequest the object provided is unrecognized (must be of type Deployment): couldn't get version/kind; json parse error: invalid character 'a' looking for beginning of value (61706956657273696f6e3a20617070732f76310a6b696e643a204465706c ...)"#,
        );
        check(
            "",
            "400 BadRequest the object provided is unrecognized (must be of type Deployment): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)",
        );
        check(
            r#"{"apiVersion":"apps/v1","kind":"Foo"}"#,
            r#"400 BadRequest Foo in version "v1" cannot be handled as a Deployment: no kind "Foo" is registered for version "apps/v1" in scheme "k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30""#,
        );
        check(
            r#"{"apiVersion":"v1","kind":"Pod"}"#,
            r#"400 BadRequest Pod in version "v1" cannot be handled as a Deployment: converting (v1.Pod) to (apps.Deployment): unknown conversion"#,
        );
        check(
            r#"{"kind":5}"#,
            r#"400 BadRequest the object provided is unrecognized (must be of type Deployment): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string ({"kind":5})"#,
        );
        check(
            r#"{"apiVersion":"a/b/c"}"#,
            r#"400 BadRequest the object provided is unrecognized (must be of type Deployment): unexpected GroupVersion string: a/b/c ({"apiVersion":"a/b/c"})"#,
        );
    }

    #[test]
    fn kind_and_version_are_completed() {
        check("{}", r#"ok {"apiVersion":"apps/v1","kind":"Deployment"}"#);
        check("null", r#"ok {"apiVersion":"apps/v1","kind":"Deployment"}"#);
        check(
            r#"{"kind":"Deployment","spec":{"replicas":null,"paused":false}}"#,
            r#"ok {"apiVersion":"apps/v1","kind":"Deployment","spec":{}}"#,
        );
    }
}
