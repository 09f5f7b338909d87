//! Requests with an invalid path, which are answered before authentication.
//!
//! Source: Go's `net/http`, which itself answers a path with an invalid escape, and `WithRequestInfo` of
//! `k8s.io/apiserver/pkg/endpoints/filters`, which runs before authentication.

use http::Response;
use http::request::Parts;

use super::body::Body;
use super::output;
use super::query::has_whole_escapes;
use super::request_info::RequestInfo;

/// Returns the response to an invalid request; `None` if the path is valid.
pub fn answer(parts: &Parts, info: &RequestInfo) -> Option<Response<Body>> {
    if !has_whole_escapes(parts.uri.path()) {
        return Some(output::plain(400, "400 Bad Request"));
    }
    if !info.undetermined {
        return None;
    }
    let uri = parts.uri.path_and_query().map_or("", |p| p.as_str());
    let text = format!(
        "Internal Server Error: {uri:?}: failed to create RequestInfo: unable to determine kind and namespace from \
         url, {uri}\n"
    );
    Some(output::plain(500, text))
}
