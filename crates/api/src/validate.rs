//! Checks that many resources share. Each adds its errors, with upstream's texts, to a list.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names::{self, Problems};
use knarr_apimachinery::selector::Selector;
use serde::Serialize;
use serde_json::Value;

/// Upstream's message for a negative value.
pub const NEGATIVE: &str = "must be greater than or equal to 0";
/// Upstream's message for a change of an immutable field.
pub const IMMUTABLE: &str = "field is immutable";

/// Returns a typed value as error messages show it.
pub fn shown(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

/// Adds one Invalid error for each problem of a text.
pub fn problems(errors: &mut ErrorList, path: &Path, value: &str, problems: Problems) {
    for problem in problems {
        errors.push(Error::invalid(path, value, problem));
    }
}

/// Adds one Invalid error for each problem of a number.
pub fn number_problems(errors: &mut ErrorList, path: &Path, value: i64, problems: Problems) {
    for problem in problems {
        errors.push(Error::invalid(path, value, problem));
    }
}

/// Adds a Required error if the text is empty; returns whether it is set.
pub fn required(errors: &mut ErrorList, path: &Path, text: &str) -> bool {
    if text.is_empty() {
        errors.push(Error::required(path, ""));
    }
    !text.is_empty()
}

/// Adds Required if the value is empty, Unsupported if it is not one of these.
pub fn one_of(errors: &mut ErrorList, path: &Path, value: &str, supported: &[&str]) {
    if required(errors, path, value) {
        supported_value(errors, path, value, supported);
    }
}

/// Returns `Unsupported value: "x": supported values: "A", "B"`, in the given order.
pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> Error {
    Error { detail: supported_words(supported), ..Error::not_supported(path, value, &[]) }
}

fn supported_words(supported: &[&str]) -> String {
    let names: Vec<String> = supported.iter().map(|s| format!("\"{s}\"")).collect();
    format!("supported values: {}", names.join(", "))
}

/// Returns an Invalid error for a value that error messages do not show as API JSON, or whose fields have a fixed
/// order.
pub fn invalid_text(path: &Path, text: &str, problem: &str) -> Error {
    let detail = if problem.is_empty() { text.to_owned() } else { format!("{text}: {problem}") };
    Error { value: None, ..Error::invalid(path, Value::Null, detail) }
}

/// Returns an Invalid error whose message does not show the value.
pub fn omitted(path: &Path, problem: &str) -> Error {
    Error { value: None, ..Error::invalid(path, Value::Null, problem) }
}

/// Requires a domain-prefixed path such as `acme.io/foo`: a DNS subdomain, a slash, and characters of a URL path.
pub fn domain_prefixed_path(errors: &mut ErrorList, path: &Path, value: &str) {
    if !required(errors, path, value) {
        return;
    }
    let Some((host, rest)) = value.split_once('/').filter(|(h, r)| !h.is_empty() && !r.is_empty()) else {
        let problem = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(Error::invalid(path, value, problem));
        return;
    };
    dns_subdomain(errors, path, host);
    let fine = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !rest.bytes().all(fine) {
        let problem = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";
        errors.push(Error::invalid(path, rest, problem));
    }
}

/// Returns a Duplicate error whose value is given as text.
pub fn duplicate_text(path: &Path, text: &str) -> Error {
    Error { value: None, detail: text.to_owned(), ..Error::duplicate(path, Value::Null) }
}

/// Returns an Unsupported error whose value is given as text.
pub fn not_supported_text(path: &Path, text: &str, supported: &[&str]) -> Error {
    let detail = format!("{text}: {}", supported_words(supported));
    Error { value: None, detail, ..Error::not_supported(path, Value::Null, &[]) }
}

/// Returns a label selector as error messages show it: labels before expressions.
pub fn selector_text(selector: &LabelSelector) -> String {
    let mut parts = Vec::new();
    if let Some(labels) = selector.match_labels.as_ref().filter(|l| !l.is_empty()) {
        parts.push(format!("\"matchLabels\":{}", shown(labels)));
    }
    if let Some(expressions) = selector.match_expressions.as_ref().filter(|e| !e.is_empty()) {
        // The order of the Go fields is alphabetical here, as JSON maps are.
        parts.push(format!("\"matchExpressions\":{}", shown(expressions)));
    }
    format!("{{{}}}", parts.join(","))
}

/// Adds Unsupported if the value is not one of these.
pub fn supported_value(errors: &mut ErrorList, path: &Path, value: &str, supported: &[&str]) {
    if !supported.contains(&value) {
        errors.push(not_supported(path, value, supported));
    }
}

pub fn nonnegative(errors: &mut ErrorList, path: &Path, value: i64) {
    if value < 0 {
        errors.push(Error::invalid(path, value, NEGATIVE));
    }
}

pub fn positive(errors: &mut ErrorList, path: &Path, value: i64) {
    if value <= 0 {
        errors.push(Error::invalid(path, value, "must be greater than zero"));
    }
}

/// Requires exactly one member of a union; each member is given with whether it is set.
pub fn union(errors: &mut ErrorList, path: &Path, members: &[(&str, bool)]) {
    let names: Vec<String> = members.iter().map(|(name, _)| format!("`{name}`")).collect();
    let names = names.join(", ");
    let there: Vec<&str> = members.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect();
    match there.len() {
        1 => {}
        0 => errors.push(Error::invalid(path, "", format!("must specify one of: {names}"))),
        _ => {
            let problem = format!("must specify exactly one of: {names}");
            errors.push(Error::invalid(path, format!("{{{}}}", there.join(", ")), problem));
        }
    }
}

/// Returns the error for a change of an immutable field whose value the message does not show.
pub fn changed(path: &Path) -> Error {
    Error::invalid(path, Value::Null, IMMUTABLE)
}

pub fn immutable<T: PartialEq + Serialize>(errors: &mut ErrorList, path: &Path, new: &T, old: &T) {
    if new != old {
        errors.push(Error::invalid(path, shown(new), IMMUTABLE));
    }
}

/// Requires a text that may be a segment of a URL path.
pub fn path_segment(errors: &mut ErrorList, path: &Path, value: &str) {
    if required(errors, path, value) {
        problems(errors, path, value, names::path_segment_name(value));
    }
}

/// Requires a DNS label.
pub fn dns_label(errors: &mut ErrorList, path: &Path, value: &str) {
    problems(errors, path, value, names::dns1123_label(value));
}

pub fn dns_subdomain(errors: &mut ErrorList, path: &Path, value: &str) {
    problems(errors, path, value, names::dns1123_subdomain(value));
}

pub fn label_key(errors: &mut ErrorList, path: &Path, value: &str) {
    problems(errors, path, value, names::label_key(value));
}

/// Validates labels, node selectors and similar maps.
pub fn labels(errors: &mut ErrorList, path: &Path, labels: Option<&BTreeMap<String, String>>) {
    for (key, value) in labels.into_iter().flatten() {
        label_key(errors, path, key);
        problems(errors, path, value, names::label_value(value));
    }
}

/// Limit of the annotations of one object, keys and values together.
const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

pub fn annotations(errors: &mut ErrorList, path: &Path, annotations: Option<&BTreeMap<String, String>>) {
    let mut size = 0;
    for (key, value) in annotations.into_iter().flatten() {
        problems(errors, path, key, names::label_key(&key.to_lowercase()));
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_MAX_BYTES {
        errors.push(Error::too_long(path, ANNOTATIONS_MAX_BYTES));
    }
}

pub fn label_selector(errors: &mut ErrorList, path: &Path, selector: Option<&LabelSelector>) {
    let Some(selector) = selector else { return };
    labels(errors, &path.child("matchLabels"), selector.match_labels.as_ref());
    for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => errors.push(Error::required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(Error::forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let problem = "not a valid selector operator";
                errors.push(Error::invalid(&path.child("operator"), other, problem));
            }
        }
        label_key(errors, &path.child("key"), &requirement.key);
        for (i, value) in values.iter().enumerate() {
            problems(errors, &path.child("values").index(i), value, names::label_value(value));
        }
    }
}

pub fn is_empty_selector(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// Requires that the workload's selector matches the template's labels.
pub fn template_is_selected(
    errors: &mut ErrorList,
    path: &Path,
    selector: &Selector,
    labels: Option<&BTreeMap<String, String>>,
) {
    if !selector.matches_optional(labels) {
        let value = labels.map_or(Value::Null, shown);
        errors.push(Error::invalid(path, value, "`selector` does not match template `labels`"));
    }
}

/// Validates a port number or a port name.
pub fn port_or_name(errors: &mut ErrorList, path: &Path, port: &IntOrString) {
    match port {
        IntOrString::Int(number) => {
            let number = i64::from(*number);
            number_problems(errors, path, number, names::port_number(number));
        }
        IntOrString::String(name) => problems(errors, path, name, names::port_name(name)),
    }
}

/// Requires `5` or `25%`, not negative.
pub fn int_or_percent(errors: &mut ErrorList, path: &Path, value: &IntOrString) {
    match value {
        IntOrString::Int(number) => nonnegative(errors, path, i64::from(*number)),
        IntOrString::String(text) => problems(errors, path, text, names::percent(text)),
    }
}

/// Returns the percentage, if it is well-formed.
fn percent(value: &IntOrString) -> Option<i64> {
    match value {
        IntOrString::String(text) if names::percent(text).is_empty() => {
            text.trim_end_matches('%').parse().ok()
        }
        _ => None,
    }
}

/// Returns the number of items, or the percentage.
pub fn amount(value: &IntOrString) -> i64 {
    match value {
        IntOrString::Int(number) => i64::from(*number),
        other => percent(other).unwrap_or(0),
    }
}

pub fn at_most_100_percent(errors: &mut ErrorList, path: &Path, value: &IntOrString) {
    if percent(value).is_some_and(|p| p > 100) {
        errors.push(Error::invalid(path, shown(value), "must not be greater than 100%"));
    }
}

/// Refuses paths that contain `..`.
pub fn no_backsteps(errors: &mut ErrorList, path: &Path, value: &str) {
    if value.split('/').any(|part| part == "..") {
        errors.push(Error::invalid(path, value, "must not contain '..'"));
    }
}

/// Requires a relative path without `..`.
pub fn descending_path(errors: &mut ErrorList, path: &Path, value: &str) {
    if value.starts_with('/') {
        errors.push(Error::invalid(path, value, "must be a relative path"));
    }
    no_backsteps(errors, path, value);
}
