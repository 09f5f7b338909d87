//! Decodes the objects in request bodies, in any format.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::schema::protobuf;
use knarr_apimachinery::schema::validate::{self, Decoded};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::negotiate::{Format, MEDIA_TYPES};
use super::yaml::Yaml;

/// Returns the media type of the body without parameters, or the empty string.
pub fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim()
}

/// Returns the format of a body that contains an object.
pub fn format(headers: &HeaderMap) -> Result<Format, StatusError> {
    match content_type(headers) {
        "" | "application/json" => Ok(Format::Json),
        "application/yaml" => Ok(Format::Yaml),
        protobuf::MEDIA_TYPE => Ok(Format::Protobuf),
        _ => Err(StatusError::unsupported_media_type(&MEDIA_TYPES)),
    }
}

/// Decodes an object of the kind `expected`. With `strict`, unknown and duplicate fields are an error.
pub fn decode(
    headers: &HeaderMap,
    body: &Bytes,
    expected: &GroupVersionKind,
    strict: bool,
) -> Result<Decoded, StatusError> {
    match format(headers)? {
        Format::Json => validate::decode_request(body, expected, strict),
        Format::Yaml => {
            let yaml = Yaml::read(body).map_err(|e| validate::unrecognized(&expected.kind, &e, body))?;
            let decoded = validate::decode_request(&super::output::to_json(&yaml.value), expected, false)?;
            strictly(decoded, &yaml, expected, strict)
        }
        Format::Protobuf => protobuf::decode_request(body, expected),
    }
}

/// Decodes the options in a body, whatever the group version of their kind. `definition` names their schema.
pub fn decode_options(headers: &HeaderMap, body: &Bytes, definition: &str) -> Result<Value, StatusError> {
    let bad = |e: &dyn std::fmt::Display| StatusError::bad_request(e.to_string());
    match format(headers)? {
        Format::Json => serde_json::from_slice(body).map_err(|e| bad(&e)),
        Format::Yaml => Yaml::read(body).map(|y| y.value).map_err(StatusError::bad_request),
        Format::Protobuf => {
            let schema = knarr_apimachinery::schema::for_definition(definition)
                .ok_or_else(|| StatusError::internal(format!("no schema {definition}")))?;
            protobuf::decode_as(body, schema).map_err(|e| bad(&e))
        }
    }
}

/// Adds a YAML text's duplicate keys to the decoder's strict errors; with `strict`, any strict error fails.
pub fn strictly(
    mut decoded: Decoded,
    yaml: &Yaml,
    expected: &GroupVersionKind,
    strict: bool,
) -> Result<Decoded, StatusError> {
    let repeated = if strict { yaml.strict_error().into_iter().collect() } else { yaml.repeated.clone() };
    decoded.strict_errors.splice(0..0, repeated);
    if strict && !decoded.strict_errors.is_empty() {
        return Err(cannot_be_handled(expected, &validate::strict_message(&decoded.strict_errors)));
    }
    Ok(decoded)
}

/// Returns the error for a body of the right kind that does not decode.
pub fn cannot_be_handled(expected: &GroupVersionKind, why: &str) -> StatusError {
    let (kind, version) = (&expected.kind, validate::quote(&expected.version));
    StatusError::bad_request(format!("{kind} in version {version} cannot be handled as a {kind}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_formats_are_read() {
        let mut headers = HeaderMap::new();
        assert_eq!(format(&headers).unwrap(), Format::Json);
        headers.insert(CONTENT_TYPE, "application/yaml; charset=utf-8".parse().unwrap());
        assert_eq!(format(&headers).unwrap(), Format::Yaml);
        headers.insert(CONTENT_TYPE, "text/html".parse().unwrap());
        let error = format(&headers).unwrap_err();
        assert_eq!(error.code(), 415);
        assert_eq!(
            error.message(),
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"
        );
    }
}
