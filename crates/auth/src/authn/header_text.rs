//! The text of headers that name a user: UTF-8, without loss.

use http::HeaderMap;

use knarr_wire::query::decode_bytes;

/// Returns all values of a header, in their order. A value that is not UTF-8 is an error, because a user with a part
/// left out would be another user.
///
/// Source: Go's `net/http` passes the bytes of a value on as they are.
pub fn all(headers: &HeaderMap, name: &str) -> Result<Vec<String>, String> {
    let text = |value: &http::HeaderValue| std::str::from_utf8(value.as_bytes()).map(str::to_owned);
    let values: Result<Vec<String>, _> = headers.get_all(name).iter().map(text).collect();
    values.map_err(|_| unreadable(name))
}

/// Decodes the key of an extra header, which is percent-encoded in its name after the prefix.
pub fn extra_key(name: &str, encoded: &str) -> Result<String, String> {
    String::from_utf8(decode_bytes(encoded, false)).map_err(|_| unreadable(name))
}

fn unreadable(name: &str) -> String {
    format!("header {name} is not valid UTF-8")
}
