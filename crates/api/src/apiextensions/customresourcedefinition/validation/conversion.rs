//! Validation of `spec.conversion`.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use super::Options;

/// The versions of ConversionReview that the API server supports.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

fn review_versions(conversion: &Value) -> Vec<&str> {
    let list = conversion.pointer("/webhook/conversionReviewVersions").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns whether a conversion lists a supported review version, or none at all.
pub fn keeps_to_known_versions(conversion: &Value) -> bool {
    let versions = review_versions(conversion);
    versions.is_empty() || versions.iter().any(|v| REVIEW_VERSIONS.contains(v))
}

pub fn validate(conversion: &Value, options: &Options, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if conversion.is_null() {
        return errors;
    }
    let strategy = conversion["strategy"].as_str().unwrap_or("");
    match strategy {
        "" => errors.push(Error::required(&path.child("strategy"), "")),
        "None" | "Webhook" => {}
        other => errors.push(Error::not_supported(&path.child("strategy"), other, &["None", "Webhook"])),
    }
    let client = conversion.pointer("/webhook/clientConfig").filter(|c| !c.is_null());
    let (at, at_versions) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if strategy != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if client.is_some() {
            errors.push(Error::forbidden(&at, why));
        }
        if !review_versions(conversion).is_empty() {
            errors.push(Error::forbidden(&at_versions, why));
        }
        return errors;
    }
    match client {
        None => errors.push(Error::required(&at, "required when strategy is set to Webhook")),
        Some(client) => client_config(client, options, &at, &mut errors),
    }
    versions(&review_versions(conversion), options, &at_versions, &mut errors);
    errors
}

fn client_config(client: &Value, options: &Options, path: &Path, errors: &mut ErrorList) {
    let url = client.get("url").and_then(Value::as_str);
    let service = client.get("service").filter(|s| s.is_object());
    match (url, service) {
        (Some(url), None) => check_url(url, &path.child("url"), errors),
        (None, Some(service)) => check_service(service, &path.child("service"), errors),
        _ => errors.push(Error::required(path, "exactly one of url or service is required")),
    }
    let bundle = client.get("caBundle").and_then(Value::as_str).unwrap_or("");
    if !bundle.is_empty() && !options.invalid_ca_bundle && !holds_certificates(bundle) {
        let why = "unable to load root certificates: unable to parse bytes as PEM block";
        errors.push(Error::invalid(&path.child("caBundle"), bundle, why));
    }
}

fn holds_certificates(bundle: &str) -> bool {
    use base64::Engine;
    let pem = base64::engine::general_purpose::STANDARD.decode(bundle).unwrap_or_default();
    x509_parser::pem::Pem::iter_from_buffer(&pem).any(|block| block.is_ok_and(|b| b.parse_x509().is_ok()))
}

fn check_url(url: &str, path: &Path, errors: &mut ErrorList) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let mut wrong = |value: &str, why: &str| errors.push(Error::invalid(path, value, format!("{why}{FORM}")));
    if scheme != "https" {
        wrong(scheme, "'https' is the only allowed URL scheme");
    }
    if authority.is_empty() {
        wrong(authority, "host must be specified");
    }
    if let Some((user, _)) = authority.rsplit_once('@') {
        wrong(user, "user information is not permitted in the URL");
    }
    if let Some((_, fragment)) = tail.split_once('#') {
        wrong(fragment, "fragments are not permitted in the URL");
    }
    if let Some((_, query)) = tail.split_once('?') {
        wrong(query, "query parameters are not permitted in the URL");
    }
}

fn check_service(service: &Value, path: &Path, errors: &mut ErrorList) {
    let text = |name: &str| service.get(name).and_then(Value::as_str).unwrap_or("");
    if text("name").is_empty() {
        errors.push(Error::required(&path.child("name"), "service name is required"));
    }
    if text("namespace").is_empty() {
        errors.push(Error::required(&path.child("namespace"), "service namespace is required"));
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
    for problem in names::port_number(port) {
        errors.push(Error::invalid(&path.child("port"), port, format!("port is not valid: {problem}")));
    }
    let Some(url_path) = service.get("path").and_then(Value::as_str) else { return };
    let at = path.child("path");
    if !url_path.starts_with('/') {
        errors.push(Error::invalid(&at, url_path, "must start with a '/'"));
        return;
    }
    let inner = url_path[1..].strip_suffix('/').unwrap_or(&url_path[1..]);
    for (i, step) in inner.split('/').enumerate().filter(|_| url_path != "/") {
        if step.is_empty() {
            errors.push(Error::invalid(&at, url_path, format!("segment[{i}] may not be empty")));
            continue;
        }
        for problem in names::dns1123_subdomain(step) {
            errors.push(Error::invalid(&at, url_path, format!("segment[{i}]: {problem}")));
        }
    }
}

fn versions(given: &[&str], options: &Options, path: &Path, errors: &mut ErrorList) {
    if given.is_empty() {
        return errors.push(Error::required(path, ""));
    }
    for (i, version) in given.iter().enumerate() {
        if given[..i].contains(version) {
            errors.push(Error::invalid(&path.index(i), *version, "duplicate version"));
            continue;
        }
        for problem in names::dns1035_label(version) {
            errors.push(Error::invalid(&path.index(i), *version, problem));
        }
    }
    if options.recognized_review_version && !given.iter().any(|v| REVIEW_VERSIONS.contains(v)) {
        let why = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(Error::invalid(path, given.to_vec(), why));
    }
}
