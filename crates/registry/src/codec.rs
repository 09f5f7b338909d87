//! Reads objects of a served resource: built-in ones by their table, custom ones by their schema.

use bytes::Bytes;
use http::HeaderMap;
use knarr_api::custom::CustomResource;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::schema::validate::{self, Decoded};
use knarr_apimachinery::status::StatusError;
use knarr_apimachinery::structural::{self, Coerced};
use serde_json::Value;

use super::served::Served;
use knarr_wire::input::{self, cannot_be_handled};
use knarr_wire::negotiate::Format;
use knarr_wire::output::to_json;
use knarr_wire::yaml::Yaml;

/// Decodes a body of any format into an object. With `strict`, unknown and duplicate fields are an error.
pub fn decode(
    served: &Served,
    headers: &HeaderMap,
    body: &Bytes,
    strict: bool,
) -> Result<Decoded, StatusError> {
    let expected = served.resource.types.gvk();
    if served.resource.custom().is_none() {
        return input::decode(headers, body, &expected, strict);
    }
    match input::format(headers)? {
        Format::Json => decode_json(served, body, strict),
        Format::Yaml => {
            let yaml = Yaml::read(body).map_err(|e| validate::unrecognized(&expected.kind, &e, body))?;
            let decoded = decode_json(served, &to_json(&yaml.value), false)?;
            input::strictly(decoded, &yaml, &expected, strict)
        }
        Format::Protobuf => {
            let why = "object *unstructured.Unstructured does not implement the protobuf marshalling interface and \
                       cannot be encoded to a protobuf message";
            Err(cannot_be_handled(&expected, why))
        }
    }
}

/// Decodes an object from JSON text.
pub fn decode_json(served: &Served, text: &[u8], strict: bool) -> Result<Decoded, StatusError> {
    let expected = served.resource.types.gvk();
    match served.resource.custom() {
        None => validate::decode_request(text, &expected, strict),
        Some(custom) => decode_custom(custom, &expected, text, strict),
    }
}

fn decode_custom(
    custom: &CustomResource,
    expected: &GroupVersionKind,
    text: &[u8],
    strict: bool,
) -> Result<Decoded, StatusError> {
    let unrecognized = |why: &str| {
        let shown = String::from_utf8_lossy(&text[..text.len().min(30)]).into_owned();
        let more = if text.len() > 30 { " ..." } else { "" };
        let kind = &expected.kind;
        StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why} ({shown}{more})"
        ))
    };
    let meta = validate::interpret(text).map_err(|e| unrecognized(&e.to_string()))?;
    if meta.kind.is_empty() {
        let why = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(text));
        return Err(unrecognized(&why));
    }
    let mut decoded =
        validate::decode_untyped(text).map_err(|e| cannot_be_handled(expected, &e.to_string()))?;
    if !decoded.value.is_object() {
        return Err(unrecognized("couldn't get version/kind; json parse error: not an object"));
    }
    let api_version = expected.api_version();
    let (kind, version) = (given_or(&meta.kind, &expected.kind), given_or(&meta.api_version, &api_version));
    if kind != expected.kind {
        let actual = GroupVersionKind::from_api_version(version, kind);
        return Err(StatusError::bad_request(format!(
            "{kind} in version {} cannot be handled as a {}: no kind {} is registered for version {} in scheme \
             \"pkg/api/legacyscheme/scheme.go:30\"",
            validate::quote(&actual.version),
            expected.kind,
            validate::quote(kind),
            validate::quote(version),
        )));
    }
    if version != api_version {
        return Err(StatusError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({api_version})"
        )));
    }
    if let Value::Object(map) = &mut decoded.value {
        map.insert("apiVersion".to_owned(), api_version.into());
        map.insert("kind".to_owned(), expected.kind.clone().into());
    }
    let how = Coerced { preserve_unknown_fields: custom.preserve_unknown_fields, ..Coerced::default() };
    let unknown = structural::coerce(&mut decoded.value, &custom.schema, how)
        .map_err(|why| cannot_be_handled(expected, &why))?;
    decoded.strict_errors.extend(unknown.iter().map(|path| format!("unknown field \"{path}\"")));
    if strict && !decoded.strict_errors.is_empty() {
        return Err(cannot_be_handled(expected, &validate::strict_message(&decoded.strict_errors)));
    }
    Ok(decoded)
}

fn given_or<'a>(given: &'a str, expected: &'a str) -> &'a str {
    if given.is_empty() { expected } else { given }
}
