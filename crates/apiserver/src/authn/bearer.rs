//! Where a request carries its token: the Authorization header, or a WebSocket subprotocol.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL};

const PROTOCOL_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The token, taken out of the headers so that nothing behind passes it on.
///
/// Source: `k8s.io/apiserver/pkg/authentication/request/{bearertoken,websocket}`.
pub fn take(headers: &mut HeaderMap) -> Result<Option<String>, String> {
    let token = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(of_header);
    headers.remove(AUTHORIZATION);
    if token.is_some() {
        return Ok(token);
    }
    of_protocol(headers)
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
    let (mut token, mut others) = (None, Vec::new());
    for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok()) {
        for protocol in value.split(',').map(str::trim) {
            match protocol.strip_prefix(PROTOCOL_PREFIX) {
                None => others.push(protocol.to_owned()),
                Some(_) if token.is_some() => {
                    return Err("multiple base64.bearer.authorization tokens specified".into());
                }
                Some(encoded) => {
                    let bytes = BASE64
                        .decode(encoded)
                        .map_err(|_| "invalid base64.bearer.authorization token encoding")?;
                    token = Some(
                        String::from_utf8(bytes).map_err(|_| "invalid base64.bearer.authorization token")?,
                    );
                }
            }
        }
    }
    if token.is_none() {
        return Ok(None);
    }
    if others.is_empty() {
        return Err("missing additional subprotocol".into());
    }
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if let Ok(value) = HeaderValue::from_str(&others.join(",")) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
    Ok(token)
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
    }
}
