//! Users authenticated by a proxy: the proxy has a client certificate and names the user in headers.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};

use super::options::RequestHeader;
use super::{UserInfo, header_text};

/// Why the proxy's headers are not accepted.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The proxy is not allowed; the sender may still authenticate by other credentials.
    #[error("x509: subject with cn={0} is not in the allowed list")]
    Name(String),
    /// The headers name a user but cannot be decoded; no other credentials may replace them.
    #[error("{0}")]
    Unreadable(String),
}

/// Returns the user that the proxy names, if any. The headers are removed, so that no later handler trusts them.
pub fn user(
    options: &RequestHeader,
    proxy: &str,
    headers: &mut HeaderMap,
) -> Result<Option<UserInfo>, Refused> {
    if !options.allowed_names.is_empty() && !options.allowed_names.iter().any(|n| n == proxy) {
        return Err(Refused::Name(proxy.to_owned()));
    }
    let user = named(options, headers).map_err(Refused::Unreadable)?;
    if user.is_some() {
        strip(options, headers);
    }
    Ok(user)
}

fn named(options: &RequestHeader, headers: &HeaderMap) -> Result<Option<UserInfo>, String> {
    let Some(name) = values(headers, &options.username_headers)?.into_iter().next() else { return Ok(None) };
    let uid = values(headers, &options.uid_headers)?.into_iter().next().unwrap_or_default();
    let groups = values(headers, &options.group_headers)?;
    let extra = extra(headers, &options.extra_header_prefixes)?;
    Ok(Some(UserInfo { name, uid, groups, extra }.authenticated()))
}

/// Returns the values of these headers, without empty ones.
fn values(headers: &HeaderMap, names: &[String]) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for name in names {
        found.extend(header_text::all(headers, name)?.into_iter().filter(|value| !value.is_empty()));
    }
    Ok(found)
}

fn extra(headers: &HeaderMap, prefixes: &[String]) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for prefix in prefixes.iter().map(|p| p.to_ascii_lowercase()) {
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(&prefix) {
                let key = header_text::extra_key(name.as_str(), key)?;
                extra.entry(key).or_default().extend(header_text::all(headers, name.as_str())?);
            }
        }
    }
    Ok(extra)
}

fn strip(options: &RequestHeader, headers: &mut HeaderMap) {
    let named = [&options.username_headers, &options.uid_headers, &options.group_headers];
    for name in named.into_iter().flatten() {
        headers.remove(name);
    }
    let prefixed = |name: &HeaderName| {
        options.extra_header_prefixes.iter().any(|p| name.as_str().starts_with(&p.to_ascii_lowercase()))
    };
    let gone: Vec<HeaderName> = headers.keys().filter(|n| prefixed(n)).cloned().collect();
    for name in gone {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_names_its_user_and_its_headers_go() {
        let options = RequestHeader::usual(String::new(), vec!["front-proxy".into()]);
        let mut headers = HeaderMap::new();
        assert_eq!(user(&options, "front-proxy", &mut headers).unwrap(), None);
        for (name, value) in [
            ("x-remote-user", "ann"),
            ("x-remote-uid", "7"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-acme.com%2fteam", "x"),
            ("accept", "y"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        assert_eq!(
            user(&options, "other", &mut headers).unwrap_err().to_string(),
            "x509: subject with cn=other is not in the allowed list"
        );
        let found = user(&options, "front-proxy", &mut headers).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.uid.as_str()), ("ann", "7"));
        assert_eq!(found.groups, ["a", "b", "system:authenticated"]);
        assert_eq!(found.extra["acme.com/team"], ["x"]);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
    #[test]
    fn what_cannot_be_read_is_refused_and_never_left_out() {
        let options = RequestHeader::usual(String::new(), vec![]);
        let bytes = |bytes: &[u8]| http::HeaderValue::from_bytes(bytes).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", bytes("jürgen".as_bytes()));
        headers.insert("x-remote-group", bytes("größe".as_bytes()));
        let found = user(&options, "proxy", &mut headers).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.groups[0].as_str()), ("jürgen", "größe"));
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-a"] {
            let mut headers = HeaderMap::new();
            headers.insert("x-remote-user", bytes(b"ann"));
            headers.insert(HeaderName::from_static(name), bytes(b"j\xff"));
            let Refused::Unreadable(why) = user(&options, "proxy", &mut headers).unwrap_err() else {
                panic!("{name}")
            };
            assert_eq!(why.to_lowercase(), format!("header {name} is not valid utf-8"));
        }
    }
}
