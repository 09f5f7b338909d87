//! Refuses what upstream's router refuses before a handler runs: methods that a path does not have, and clients that
//! accept none of its media types.
//!
//! The router compares media types literally, without their parameters, and knows no wildcard but `*/*`. Handlers
//! negotiate a second time, with other messages ([`super::negotiate`]).

use http::header::ACCEPT;
use http::{HeaderMap, Method};
use knarr_apimachinery::status::StatusError;

use super::negotiate::{MEDIA_TYPES, STREAM_TYPES};

/// What a path produces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// Objects.
    Objects,
    /// Objects, at once or as a stream.
    Streams,
    /// Text, or a Status object for an error.
    Log,
    /// One media type only.
    Only(&'static str),
}

impl Writes {
    fn types(self) -> Vec<&'static str> {
        match self {
            Self::Objects => MEDIA_TYPES.to_vec(),
            Self::Streams => [&MEDIA_TYPES[..], &STREAM_TYPES[..]].concat(),
            Self::Log => [&["text/plain"], &MEDIA_TYPES[..]].concat(),
            Self::Only(media) => vec![media],
        }
    }
}

/// Checks that the client accepts one of the media types of the path.
pub fn acceptable(headers: &HeaderMap, writes: Writes) -> Result<(), StatusError> {
    let accept = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    let mut wanted = accept.split(',').map(|clause| clause.split(';').next().unwrap_or("").trim_matches(' '));
    let types = writes.types();
    if accept.is_empty() || wanted.any(|media| media == "*/*" || types.contains(&media)) {
        return Ok(());
    }
    let why = format!("406: Not Acceptable\n\nAvailable representations: {}", types.join(", "));
    let mut error = StatusError::new(406, "NotAcceptable", why);
    error.0.details = Some(Default::default());
    Err(error)
}

/// Checks a request to a path that only allows reads.
pub fn read_only(method: &Method, headers: &HeaderMap, writes: Writes) -> Result<(), StatusError> {
    if *method != Method::GET {
        return Err(StatusError::no_such_method());
    }
    acceptable(headers, writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_the_router_refuses() {
        let objects = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
        let streams = format!(
            "{objects}, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
        );
        for (accept, writes, available) in [
            ("", Writes::Objects, None),
            ("*/*", Writes::Objects, None),
            ("text/html, */*;q=0.1", Writes::Objects, None),
            ("application/json;as=Table;v=v1;g=meta.k8s.io", Writes::Objects, None),
            ("application/json;q=0", Writes::Objects, None),
            ("text/html", Writes::Objects, Some(objects)),
            ("application/*", Writes::Objects, Some(objects)),
            ("Application/JSON", Writes::Objects, Some(objects)),
            ("text/html", Writes::Streams, Some(streams.as_str())),
            ("text/plain", Writes::Log, None),
            ("application/json", Writes::Log, None),
            ("application/yaml", Writes::Only("application/json"), Some("application/json")),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, accept.parse().unwrap());
            let error = acceptable(&headers, writes).err();
            let want = available.map(|a| format!("406: Not Acceptable\n\nAvailable representations: {a}"));
            assert_eq!(error.map(|e| e.message().to_owned()), want, "{accept}");
        }
        let error = read_only(&Method::HEAD, &HeaderMap::new(), Writes::Objects).unwrap_err();
        assert_eq!(error.code(), 405);
    }
}
