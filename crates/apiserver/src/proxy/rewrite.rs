//! Proxied answers speak of paths of their own: redirects are led back through the proxy.

use std::net::IpAddr;

use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};

/// How many segments come before what is proxied: `/api/v1/nodes/n/proxy`, `/api/v1/namespaces/ns/pods/p/proxy`.
fn segments(resource: &str) -> usize {
    if resource == "nodes" { 5 } else { 7 }
}

/// The path up to `proxy`, and what follows it as it came: empty, or with a leading slash.
pub fn split<'a>(path: &'a str, resource: &str) -> (&'a str, &'a str) {
    let mut slashes = path.match_indices('/').map(|(i, _)| i);
    match slashes.nth(segments(resource)) {
        Some(at) => path.split_at(at),
        None => (path, ""),
    }
}

/// Where a redirect of the backend leads, seen from outside: `prefix` is the path up to `proxy`, `hosts` are the names
/// under which the backend was called.
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

/// Tells the backend the path as it was asked for.
pub fn forwarded(headers: &mut HeaderMap, path: &str) {
    if let Ok(value) = HeaderValue::from_str(path) {
        headers.insert(FORWARDED_URI, value);
    }
}

/// Tells the backend who asked, behind the proxies that said so already.
pub fn forwarded_for(headers: &mut HeaderMap, peer: Option<IpAddr>) {
    let Some(peer) = peer else { return };
    let said = headers.get_all(FORWARDED_FOR).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned);
    let all: Vec<String> = said.chain([peer.to_canonical().to_string()]).collect();
    if let Ok(value) = HeaderValue::from_str(&all.join(", ")) {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// Changes the backend's headers to what the client has to see.
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
        for (path, resource, rest) in [
            ("/api/v1/namespaces/a/pods/p/proxy", "pods", ""),
            ("/api/v1/namespaces/a/pods/p/proxy/", "pods", "/"),
            ("/api/v1/namespaces/a/services/https:s:1/proxy/x//y/", "services", "/x//y/"),
            ("/api/v1/nodes/n/proxy/logs/", "nodes", "/logs/"),
        ] {
            let (before, after) = split(path, resource);
            assert_eq!(after, rest, "{path}");
            assert!(before.ends_with("/proxy"), "{path}");
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
