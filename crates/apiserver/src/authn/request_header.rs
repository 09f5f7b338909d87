//! Users whom a proxy in front has authenticated: it shows its client certificate and names them in headers.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName};

use super::UserInfo;
use super::options::RequestHeader;
use crate::http::query::decode;

/// The user that the proxy speaks for, if it names one. The headers are taken out: nobody behind may read them as
/// the proxy's word.
///
/// `Err` when the proxy's certificate has a name that may not do this.
pub fn user(
    options: &RequestHeader,
    proxy: &str,
    headers: &mut HeaderMap,
) -> Result<Option<UserInfo>, String> {
    if !options.allowed_names.is_empty() && !options.allowed_names.iter().any(|n| n == proxy) {
        return Err(format!("x509: subject with cn={proxy} is not in the allowed list"));
    }
    let Some(name) = first(headers, &options.username_headers) else { return Ok(None) };
    let uid = first(headers, &options.uid_headers).unwrap_or_default();
    let groups = options.group_headers.iter().flat_map(|h| values(headers, h)).collect();
    let extra = extra(headers, &options.extra_header_prefixes);
    strip(options, headers);
    Ok(Some(UserInfo { name, uid, groups, extra }.authenticated()))
}

fn values<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = String> + 'a {
    headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).filter(|v| !v.is_empty()).map(str::to_owned)
}

fn first(headers: &HeaderMap, names: &[String]) -> Option<String> {
    names.iter().find_map(|name| values(headers, name).next())
}

fn extra(headers: &HeaderMap, prefixes: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for prefix in prefixes.iter().map(|p| p.to_ascii_lowercase()) {
        for name in headers.keys() {
            if let Some(key) = name.as_str().strip_prefix(&prefix) {
                let all = headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).map(str::to_owned);
                extra.entry(decode(key, false)).or_default().extend(all);
            }
        }
    }
    extra
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
            user(&options, "other", &mut headers).unwrap_err(),
            "x509: subject with cn=other is not in the allowed list"
        );
        let found = user(&options, "front-proxy", &mut headers).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.uid.as_str()), ("ann", "7"));
        assert_eq!(found.groups, ["a", "b", "system:authenticated"]);
        assert_eq!(found.extra["acme.com/team"], ["x"]);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
    }
}
