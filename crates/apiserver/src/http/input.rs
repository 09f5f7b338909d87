//! Reads request bodies: which format they are in, and YAML into JSON.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::negotiate::Format;
use super::protobuf;

/// What bodies may be written in, in the order in which upstream lists it.
const READABLE: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// The largest request body, in bytes.
pub const MAX_BODY: usize = 3 * 1024 * 1024;

/// The bare media type of the body, or the empty string.
pub fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    value.split(';').next().unwrap_or("").trim()
}

/// The format of a body that holds an object.
pub fn format(headers: &HeaderMap) -> Result<Format, StatusError> {
    match content_type(headers) {
        "" | "application/json" => Ok(Format::Json),
        "application/yaml" => Ok(Format::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Format::Protobuf),
        _ => Err(StatusError::unsupported_media_type(&READABLE)),
    }
}

/// The body as JSON text; JSON is passed on unread.
pub fn to_json(headers: &HeaderMap, body: &Bytes) -> Result<Bytes, StatusError> {
    match format(headers)? {
        Format::Json => Ok(body.clone()),
        Format::Yaml => {
            let value = parse_yaml(body).map_err(StatusError::bad_request)?;
            Ok(super::output::to_json(&value))
        }
        Format::Protobuf => {
            let value = protobuf::decode(body).map_err(|e| StatusError::bad_request(e.to_string()))?;
            Ok(super::output::to_json(&value))
        }
    }
}

/// Reads YAML as kubectl does; the error is in upstream's words where those are not the parser's own.
pub fn parse_yaml(body: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(body).map_err(|e| format!("yaml: {e}"))?;
    serde_saphyr::from_str(text).map_err(|e| {
        let text = e.to_string();
        let first = text.lines().next().unwrap_or("").trim();
        format!("error converting YAML to JSON: yaml: {first}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_reads_as_kubectl_reads() {
        assert_eq!(
            parse_yaml(b"a: 1\nb: [x, true]\n").unwrap(),
            serde_json::json!({"a": 1, "b": ["x", true]})
        );
        assert!(parse_yaml(b"a: [").is_err());
    }

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
