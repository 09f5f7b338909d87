//! Rewrites the paths in proxied responses: redirects lead through the proxy.

use std::fmt::Write;
use std::net::IpAddr;

use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};

use knarr_wire::query::decode_bytes;

/// Returns how many path segments precede the proxied path: `/api/v1/nodes/n/proxy`,
/// `/api/v1/namespaces/ns/pods/p/proxy`.
fn segments(resource: &str) -> usize {
    if resource == "nodes" { 5 } else { 7 }
}

/// A proxied path in two parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Proxied {
    /// The path up to `proxy`, decoded.
    pub prefix: String,
    /// The path after it, escaped for the backend: empty, or with a leading slash.
    pub rest: String,
}

/// Splits a path at `proxy`. The rest is decoded, cleaned and escaped again, as upstream does.
pub fn split(raw: &str, resource: &str) -> Proxied {
    let decoded = decode_bytes(raw, false);
    let parts: Vec<&[u8]> = trimmed(&decoded).split(|b| *b == b'/').collect();
    let (prefix, rest) = parts.split_at(segments(resource).min(parts.len()));
    let prefix = format!("/{}", String::from_utf8_lossy(&prefix.join(&b'/')));
    let ends_with_slash = decoded.ends_with(b"/");
    let mut clean: Vec<u8> = Vec::new();
    for part in cleaned(rest) {
        clean.push(b'/');
        clean.extend_from_slice(part);
    }
    if ends_with_slash || !rest.is_empty() && clean.is_empty() {
        clean.push(b'/');
    }
    Proxied { prefix, rest: escape(&clean) }
}

/// Returns the path without slashes at its ends.
fn trimmed(path: &[u8]) -> &[u8] {
    let begin = path.iter().position(|b| *b != b'/').unwrap_or(path.len());
    let end = path.iter().rposition(|b| *b != b'/').map_or(begin, |last| last + 1);
    &path[begin..end]
}

/// Removes empty segments and `.`, and resolves `..`.
fn cleaned<'a>(parts: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut clean = Vec::new();
    for part in parts {
        match *part {
            b"" | b"." => {}
            b".." => drop(clean.pop()),
            part => clean.push(part),
        }
    }
    clean
}

/// Escapes a path as Go does. Source: `net/url`'s `URL.EscapedPath`.
pub fn escape(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(*byte)),
            _ if b"-_.~$&+,/:;=@".contains(byte) => out.push(char::from(*byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

/// Returns the target of the backend's redirect as the client must see it: `prefix` is the path up to `proxy`,
/// `hosts` are the names under which the backend was called.
pub fn location(redirect: &str, prefix: &str, hosts: &[&str]) -> String {
    let rest = ["http://", "https://"].iter().find_map(|scheme| redirect.strip_prefix(scheme));
    let path = match rest {
        None => redirect,
        Some(rest) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            if !hosts.contains(&&rest[..end]) {
                return redirect.to_owned();
            }
            &rest[end..]
        }
    };
    if !path.starts_with('/') || path.starts_with("//") || path.starts_with(prefix) {
        return path.to_owned();
    }
    format!("{prefix}{path}")
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// Adds the header with the original path for the backend.
pub fn forwarded(headers: &mut HeaderMap, path: &str) {
    if let Ok(value) = HeaderValue::from_str(path) {
        headers.insert(FORWARDED_URI, value);
    }
}

/// Adds the client's address to the header, after those of earlier proxies.
pub fn forwarded_for(headers: &mut HeaderMap, peer: Option<IpAddr>) {
    let Some(peer) = peer else { return };
    let earlier = headers.get_all(FORWARDED_FOR).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned);
    let all: Vec<String> = earlier.chain([peer.to_canonical().to_string()]).collect();
    if let Ok(value) = HeaderValue::from_str(&all.join(", ")) {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// Rewrites the backend's headers for the client.
pub fn answer(headers: &mut HeaderMap, prefix: &str, hosts: &[&str]) {
    let cors: Vec<HeaderName> =
        headers.keys().filter(|n| n.as_str().starts_with("access-control-allow-")).cloned().collect();
    cors.iter().for_each(|name| drop(headers.remove(name)));
    let redirect = headers.get(LOCATION).and_then(|v| v.to_str().ok()).map(str::to_owned);
    if let Some(redirect) = redirect
        && let Ok(value) = HeaderValue::from_str(&location(&redirect, prefix, hosts))
    {
        headers.insert(LOCATION, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_behind_proxy() {
        let pod = "/api/v1/namespaces/a/pods/p/proxy";
        for (path, resource, rest) in [
            ("/api/v1/namespaces/a/pods/p/proxy", "pods", ""),
            ("/api/v1/namespaces/a/pods/p/proxy/", "pods", "/"),
            ("/api/v1/namespaces/a/pods/p/proxy//", "pods", "/"),
            ("//api/v1/namespaces/a/pods/p/proxy/x", "pods", "/x"),
            ("/api/v1/namespaces/a/pods%2Fp%2Fproxy%2Fx%2F", "pods", "/x/"),
            ("/api/v1/namespaces/a/pods/p/proxy/x//y/", "pods", "/x/y/"),
            ("/api/v1/namespaces/a/pods/p/proxy/x/../../../y/./z", "pods", "/y/z"),
            ("/api/v1/namespaces/a/pods/p/proxy/x%2F..%2f%2e%2e", "pods", "/"),
            ("/api/v1/namespaces/a/pods/p/proxy/a%20b%3Fc%25d;e=@!*'", "pods", "/a%20b%3Fc%25d;e=@%21%2A%27"),
            ("/api/v1/namespaces/a/pods/p/proxy/%FF%C3%A9", "pods", "/%FF%C3%A9"),
            ("/api/v1/nodes/n/proxy/stats%2Fsummary", "nodes", "/stats/summary"),
            ("/api/v1/nodes/n/proxy/logs/", "nodes", "/logs/"),
        ] {
            let found = split(path, resource);
            assert_eq!(found.rest, rest, "{path}");
            assert_eq!(
                found.prefix,
                if resource == "nodes" { "/api/v1/nodes/n/proxy" } else { pod },
                "{path}"
            );
        }
    }

    #[test]
    fn the_backend_hears_who_asked() {
        let mut headers = HeaderMap::new();
        forwarded_for(&mut headers, None);
        assert!(headers.is_empty());
        forwarded_for(&mut headers, "::ffff:10.0.0.9".parse().ok());
        assert_eq!(headers[FORWARDED_FOR], "10.0.0.9");
        headers.append(FORWARDED_FOR, HeaderValue::from_static("10.0.0.8"));
        forwarded_for(&mut headers, "10.0.0.7".parse().ok());
        assert_eq!(
            headers.get_all(FORWARDED_FOR).iter().collect::<Vec<_>>(),
            ["10.0.0.9, 10.0.0.8, 10.0.0.7"]
        );
    }

    #[test]
    fn redirects_stay_within_the_proxy() {
        let prefix = "/api/v1/namespaces/a/pods/p/proxy";
        let hosts = ["10.0.0.1:80", "api:6443"];
        for (redirect, seen) in [
            ("/x", "/api/v1/namespaces/a/pods/p/proxy/x"),
            ("http://10.0.0.1:80/x/", "/api/v1/namespaces/a/pods/p/proxy/x/"),
            ("https://elsewhere/x", "https://elsewhere/x"),
            ("x/y", "x/y"),
            ("/api/v1/namespaces/a/pods/p/proxy/z", "/api/v1/namespaces/a/pods/p/proxy/z"),
        ] {
            assert_eq!(location(redirect, prefix, &hosts), seen, "{redirect}");
        }
    }
}
