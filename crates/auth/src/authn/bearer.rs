//! Reads the token of a request: from the Authorization header, or from a WebSocket subprotocol.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};

const PROTOCOL_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Removes the token from the headers, so that no later handler forwards it.
///
/// Source: `k8s.io/apiserver/pkg/authentication/request/{bearertoken,websocket}`.
pub fn take(headers: &mut HeaderMap) -> Result<Option<String>, String> {
    let token = headers.remove(AUTHORIZATION).and_then(|v| of_header(&String::from_utf8_lossy(v.as_bytes())));
    // Both are removed; the header takes precedence.
    let of_protocol = of_protocol(headers);
    if token.is_some() { Ok(token) } else { of_protocol }
}

fn of_header(value: &str) -> Option<String> {
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

fn of_protocol(headers: &mut HeaderMap) -> Result<Option<String>, String> {
    let upgrade = headers.get("upgrade").and_then(|v| v.to_str().ok()).unwrap_or("");
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return Ok(None);
    }
    let (mut encoded, mut others) = (Vec::new(), Vec::new());
    for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok()) {
        for protocol in value.split(',').map(str::trim) {
            match protocol.strip_prefix(PROTOCOL_PREFIX) {
                Some(token) => encoded.push(token.to_owned()),
                None => others.push(protocol.to_owned()),
            }
        }
    }
    let Some((first, more)) = encoded.split_first() else { return Ok(None) };
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if others.is_empty() {
        return Err("missing additional subprotocol".into());
    }
    if let Ok(value) = HeaderValue::from_str(&others.join(",")) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
    if !more.is_empty() {
        return Err("multiple base64.bearer.authorization tokens specified".into());
    }
    let bytes = BASE64.decode(first).map_err(|_| "invalid base64.bearer.authorization token encoding")?;
    let token = String::from_utf8(bytes).map_err(|_| "invalid base64.bearer.authorization token")?;
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_and_taken_out() {
        let mut headers = HeaderMap::new();
        assert_eq!(take(&mut headers), Ok(None));
        headers.insert(AUTHORIZATION, "bearer  abc ".parse().unwrap());
        assert_eq!(take(&mut headers), Ok(Some("abc".into())));
        assert!(headers.is_empty());
        headers.insert(AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(take(&mut headers), Ok(None));
        assert!(headers.is_empty());
        // An undecodable token is an unknown token, which is not the same as an anonymous request.
        headers.insert(AUTHORIZATION, HeaderValue::from_bytes(b"Bearer a\xff").unwrap());
        assert_eq!(take(&mut headers), Ok(Some("a\u{fffd}".into())));
    }

    #[test]
    fn websockets_carry_them_as_a_protocol() {
        let mut headers = HeaderMap::new();
        headers.insert("upgrade", "websocket".parse().unwrap());
        let protocol = format!("{PROTOCOL_PREFIX}{}", BASE64.encode("abc"));
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        assert!(take(&mut headers).is_err(), "another protocol is needed");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, format!("v4.channel.k8s.io, {protocol}").parse().unwrap());
        assert_eq!(take(&mut headers), Ok(Some("abc".into())));
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "v4.channel.k8s.io");
        // Whatever the result, the subprotocols are removed.
        for (protocols, token) in
            [(format!("v4, {protocol}, {protocol}"), None), (format!("v4, {protocol}"), Some("x"))]
        {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols.parse().unwrap());
            if let Some(token) = token {
                headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
            }
            assert_eq!(take(&mut headers).ok().flatten().as_deref(), token);
            assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "v4");
        }
    }
}
