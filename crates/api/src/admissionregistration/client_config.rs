//! The client configuration of a webhook: a URL or a Service.

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::validate;

pub fn validate(errors: &mut ErrorList, path: &Path, config: &api::WebhookClientConfig) {
    match (&config.url, &config.service) {
        (Some(url), None) => webhook_url(errors, &path.child("url"), url),
        (None, Some(service)) => webhook_service(
            errors,
            &path.child("service"),
            Service {
                namespace: &service.namespace,
                name: &service.name,
                path: service.path.as_deref(),
                port: service.port.unwrap_or(0),
            },
        ),
        _ => errors.push(Error::required(path, "exactly one of url or service is required")),
    }
}

const FORM: &str = "; desired format: https://host[/path]";

/// The parts of a URL that are validated.
#[derive(Debug, Default, PartialEq)]
struct Url<'a> {
    scheme: String,
    user: Option<&'a str>,
    host: &'a str,
    query: &'a str,
    fragment: &'a str,
}

pub fn webhook_url(errors: &mut ErrorList, path: &Path, text: &str) {
    let url = match parse(text) {
        Ok(url) => url,
        Err(problem) => {
            let shown = serde_json::Value::from(text);
            let problem = format!("url must be a valid URL: parse {shown}: {problem}{FORM}");
            errors.push(Error::required(path, problem));
            return;
        }
    };
    if url.scheme != "https" {
        let problem = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(Error::invalid(path, url.scheme, problem));
    }
    if url.host.is_empty() {
        errors.push(Error::invalid(path, url.host, format!("host must be specified{FORM}")));
    }
    if let Some(user) = url.user {
        errors.push(Error::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !url.fragment.is_empty() {
        errors.push(Error::invalid(path, url.fragment, "fragments are not permitted in the URL"));
    }
    if !url.query.is_empty() {
        errors.push(Error::invalid(path, url.query, "query parameters are not permitted in the URL"));
    }
}

/// Splits a URL as far as the checks need; errors are those of upstream's parser.
fn parse(text: &str) -> Result<Url<'_>, String> {
    if text.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (scheme, rest) = split_scheme(rest)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut url = Url { scheme: scheme.to_lowercase(), query, fragment, ..Url::default() };
    let Some(rest) = rest.strip_prefix("//") else {
        let first = rest.split('/').next().unwrap_or("");
        if scheme.is_empty() && first.contains(':') {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
        return Ok(url);
    };
    let authority = rest.split('/').next().unwrap_or("");
    let host = match authority.rsplit_once('@') {
        Some((user, host)) => {
            url.user = Some(user);
            host
        }
        None => authority,
    };
    let after_brackets = host.rsplit_once(']').map_or(host, |(_, after)| after);
    if let Some(at) = after_brackets.rfind(':') {
        let port = &after_brackets[at..];
        if !port[1..].bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("invalid port {} after host", serde_json::Value::from(port)));
        }
    }
    if let Some(bad) = host.chars().find(|c| " \"<>\\^`{|}".contains(*c)) {
        return Err(format!("invalid character {} in host name", serde_json::Value::from(bad.to_string())));
    }
    url.host = host;
    Ok(url)
}

fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (i, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if i > 0 => {}
            ':' if i == 0 => return Err("missing protocol scheme".to_owned()),
            ':' => return Ok((&text[..i], &text[i + 1..])),
            _ => return Ok(("", text)),
        }
    }
    Ok(("", text))
}

/// A reference to a Service, by the fields that the types of webhooks and of conversion have in common.
pub struct Service<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: Option<&'a str>,
    pub port: i32,
}

pub fn webhook_service(errors: &mut ErrorList, path: &Path, service: Service<'_>) {
    // Upstream swaps name and namespace here: an empty name is reported as a missing namespace.
    if service.namespace.is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    if service.name.is_empty() {
        errors.push(Error::required(&path.child("namespace"), ""));
    }
    let problems = names::port_number(i64::from(service.port));
    if !problems.is_empty() {
        let problem = format!("port is not valid: {}", problems.join(", "));
        errors.push(Error::invalid(&path.child("port"), service.port, problem));
    }
    if let Some(text) = service.path {
        url_path(errors, &path.child("path"), text);
    }
}

/// Requires that each segment of the path is a subdomain name.
fn url_path(errors: &mut ErrorList, path: &Path, text: &str) {
    match text {
        "" | "/" => return,
        "//" => {
            errors.push(Error::invalid(path, text, "segment[0] may not be empty"));
            return;
        }
        _ => {}
    }
    if !text.starts_with('/') {
        errors.push(Error::invalid(path, text, "must start with a '/'"));
    }
    // Upstream drops the first character, whatever it is.
    let rest = text.char_indices().nth(1).map_or("", |(i, _)| &text[i..]);
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    for (i, step) in rest.split('/').enumerate() {
        if step.is_empty() {
            errors.push(Error::invalid(path, text, format!("segment[{i}] may not be empty")));
            continue;
        }
        let problems = names::dns1123_subdomain(step);
        validate::problems(
            errors,
            path,
            text,
            problems.into_iter().map(|p| format!("segment[{i}]: {p}")).collect(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        for (text, wanted) in [
            ("https://a.b/c", &[][..]),
            ("https://a.b:443/c", &[]),
            ("https://[::1]:8443", &[]),
            ("http://a", &["Invalid value: \"http\": 'https' is the only allowed URL scheme"]),
            ("https:///c", &["Invalid value: \"\": host must be specified"]),
            ("https://u:p@a/", &["Invalid value: \"u:p\": user information"]),
            ("https://a/#f", &["Invalid value: \"f\": fragments are not"]),
            ("https://a/?q=1", &["Invalid value: \"q=1\": query parameters"]),
            (":x", &["Required value: url must be a valid URL: parse \":x\": missing protocol scheme;"]),
            (
                "https://a:b/",
                &[
                    "Required value: url must be a valid URL: parse \"https://a:b/\": invalid port \":b\" after host",
                ],
            ),
            ("", &["Invalid value: \"\": 'https'", "Invalid value: \"\": host must be"]),
        ] {
            let mut errors = ErrorList::new();
            webhook_url(&mut errors, &Path::new("u"), text);
            assert_eq!(errors.0.len(), wanted.len(), "{text}: {errors}");
            for (error, start) in errors.0.iter().zip(wanted) {
                assert!(error.body().starts_with(start), "{text}: {error}");
            }
        }
    }
}
