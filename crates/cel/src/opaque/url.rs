//! URLs, parsed as Go parses a request URI.

use std::collections::BTreeMap;

/// A URL, or the path of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    pub text: String,
    pub scheme: String,
    /// The host with its port.
    pub host: String,
    /// Percent-encoded.
    pub path: String,
    query: String,
}

impl Url {
    /// Parses as Go's `url.ParseRequestURI` followed by `url.Parse`: drops the fragment.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_request(text)?;
        let (text_before, fragment) = text.split_once('#').unwrap_or((text, ""));
        unescape(fragment, false)?;
        Ok(Self { text: text.to_owned(), ..Self::parse_request(text_before)? })
    }

    /// Parses as Go's `url.ParseRequestURI`: an absolute URL, or at least an absolute path.
    pub fn parse_request(text: &str) -> Result<Self, String> {
        if text.chars().any(|c| c < ' ' || c == '\u{7f}') {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        if text.is_empty() {
            return Err("empty url".to_owned());
        }
        let mut url = Self {
            text: text.to_owned(),
            scheme: String::new(),
            host: String::new(),
            path: String::new(),
            query: String::new(),
        };
        if text == "*" {
            url.path = text.to_owned();
            return Ok(url);
        }
        let (scheme, rest) = scheme(text)?;
        url.scheme = scheme.to_lowercase();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        url.query = query.to_owned();
        if !rest.starts_with('/') {
            return if url.scheme.is_empty() { Err("invalid URI for request".to_owned()) } else { Ok(url) };
        }
        let mut path = rest;
        if !url.scheme.is_empty()
            && let Some(after) = rest.strip_prefix("//")
        {
            let end = after.find('/').unwrap_or(after.len());
            url.host = authority(&after[..end])?;
            path = &after[end..];
        }
        let decoded = unescape(path, false)?;
        url.path = if is_encoded(path) { path.to_owned() } else { escape(&decoded) };
        Ok(url)
    }

    pub fn host_and_port(&self) -> (&str, &str) {
        let host = &self.host;
        let (name, port) = match host.rfind(':') {
            Some(at) if host[at + 1..].bytes().all(|b| b.is_ascii_digit()) && !host[at..].contains(']') => {
                (&host[..at], &host[at + 1..])
            }
            _ => (host.as_str(), ""),
        };
        let inner = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
        (inner.unwrap_or(name), port)
    }

    /// Returns the values of each key of the query.
    pub fn query(&self) -> BTreeMap<String, Vec<String>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for part in self.query.split('&').filter(|p| !p.is_empty() && !p.contains(';')) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            if let (Ok(key), Ok(value)) = (unescape(key, true), unescape(value, true)) {
                found.entry(lossy(key)).or_default().push(lossy(value));
            }
        }
        found
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((&text[..at], &text[at + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

/// Returns the host of `user:password@host:port`, with its port.
fn authority(text: &str) -> Result<String, String> {
    let host = match text.rsplit_once('@') {
        None => text,
        Some((user, host)) => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c);
            if !user.chars().all(allowed) {
                return Err("net/url: invalid userinfo".to_owned());
            }
            unescape(user, false)?;
            host
        }
    };
    let after_name = if host.starts_with('[') {
        let Some(end) = host.rfind(']') else { return Err("missing ']' in host".to_owned()) };
        &host[end + 1..]
    } else {
        host.find(':').map_or("", |at| &host[at..])
    };
    let port = after_name.strip_prefix(':');
    if !after_name.is_empty() && !port.is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit())) {
        return Err(format!("invalid port {after_name:?} after host"));
    }
    for c in host.chars() {
        let allowed = c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:[]<>\"%".contains(c) || !c.is_ascii();
        if !allowed {
            return Err(format!("invalid character {:?} in host name", c.to_string()));
        }
    }
    unescape(host, false).map(lossy)
}

/// Decodes percent-encoding; in a query, a plus means a space.
fn unescape(text: &str, query: bool) -> Result<Vec<u8>, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                let hex = bytes.get(at + 1..at + 3).and_then(|h| std::str::from_utf8(h).ok());
                let Some(byte) = hex.filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit())) else {
                    let shown = String::from_utf8_lossy(&bytes[at..(at + 3).min(bytes.len())]).into_owned();
                    return Err(format!("invalid URL escape {shown:?}"));
                };
                out.push(u8::from_str_radix(byte, 16).unwrap_or(0));
                at += 3;
            }
            b'+' if query => {
                out.push(b' ');
                at += 1;
            }
            other => {
                out.push(other);
                at += 1;
            }
        }
    }
    Ok(out)
}

fn plain_in_path(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&b)
}

fn is_encoded(path: &str) -> bool {
    path.bytes().all(|b| plain_in_path(b) || b"!'()*[]%".contains(&b))
}

fn escape(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for b in path {
        if plain_in_path(*b) { out.push(char::from(*b)) } else { out.push_str(&format!("%{b:02X}")) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_parts() {
        let url = Url::parse("https://user:pw@[::1]:8080/a%20b/c?k1=a+b&k1=c&k2=#frag").unwrap();
        assert_eq!((url.scheme.as_str(), url.host.as_str()), ("https", "[::1]:8080"));
        assert_eq!(url.host_and_port(), ("::1", "8080"));
        assert_eq!(url.path, "/a%20b/c");
        assert_eq!(Url::parse("/path").unwrap().path, "/path");
        for bad in ["", "relative", "http://a b/", "../x", ":x", "http://h:p/", "/%zz", "http://[::1"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }
}
