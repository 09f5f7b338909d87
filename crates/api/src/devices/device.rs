//! One device of a slice.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::lists::bounded;
use super::selection::{self, Way};
use super::{capacity, counters, identifiers, taints};
use crate::validate;

const FACTS_MAX: usize = 32;
const VALUES_MAX: usize = 48;
const VALUE_MAX_BYTES: usize = 64;
const TAINTS_MAX: usize = 16;
const BINDING_MAX: usize = 4;
/// The longest key that errors show: a domain, a slash and an identifier.
const KEY_SHOWN_MAX: usize = 63 + 1 + 32;

/// Validates a device. `old` is the device before an update; `per_device` says whether each device selects its own
/// nodes.
pub fn validate(
    errors: &mut ErrorList,
    path: &Path,
    device: &api::Device,
    old: Option<&api::Device>,
    per_device: bool,
) {
    validate::dns_label(errors, &path.child("name"), &device.name);
    facts(errors, path, device);
    for (name, attribute) in device.attributes.iter().flatten() {
        let path = path.child("attributes");
        identifiers::qualified(errors, &path, name);
        validate_attribute(errors, &path.key(&cut(name)), attribute);
    }
    if old.is_none_or(|old| old.capacity != device.capacity) {
        let shared = device.allow_multiple_allocations.unwrap_or(false);
        for (name, amount) in device.capacity.iter().flatten() {
            let path = path.child("capacity");
            identifiers::qualified(errors, &path, name);
            capacity::validate(errors, &path.key(&cut(name)), amount, shared);
        }
    }
    if old.is_none_or(|old| old.taints != device.taints) {
        let list = device.taints.as_deref().unwrap_or_default();
        bounded(errors, &path.child("taints"), list, TAINTS_MAX, |errors, path, taint| {
            taints::validate_taint(errors, path, taint, None);
        });
    }
    let consumed = device.consumes_counters.as_deref().unwrap_or_default();
    counters::validate_consumptions(errors, &path.child("consumesCounters"), consumed);
    nodes(errors, path, device, per_device);
    let binding = device.binding_conditions.as_deref().unwrap_or_default();
    let failure = device.binding_failure_conditions.as_deref().unwrap_or_default();
    validate_binding(errors, path, binding, failure);
}

/// Shortens long keys by omitting their middle.
fn cut(key: &str) -> String {
    if key.len() <= KEY_SHOWN_MAX {
        return key.to_owned();
    }
    let left = KEY_SHOWN_MAX - 3;
    let (head, tail) = (left.div_ceil(2), key.len() - left / 2);
    match (key.get(..head), key.get(tail..)) {
        (Some(head), Some(tail)) => format!("{head}...{tail}"),
        _ => key.to_owned(),
    }
}

fn facts(errors: &mut ErrorList, path: &Path, device: &api::Device) {
    let attributes = || device.attributes.iter().flat_map(|a| a.values());
    let count = attributes().count() + device.capacity.as_ref().map_or(0, |c| c.len());
    if count > FACTS_MAX {
        let problem = format!("the total number of attributes and capacities must not exceed {FACTS_MAX}");
        errors.push(Error::invalid(path, count, problem));
    }
    let values = |a: &api::DeviceAttribute| {
        let lists = [
            a.bools.as_ref().map_or(0, Vec::len),
            a.ints.as_ref().map_or(0, Vec::len),
            a.strings.as_ref().map_or(0, Vec::len),
            a.versions.as_ref().map_or(0, Vec::len),
        ];
        lists.iter().sum::<usize>().max(1)
    };
    let count: usize = attributes().map(values).sum();
    if count > VALUES_MAX {
        let problem = format!("the total number of attribute values must not exceed {VALUES_MAX}");
        errors.push(Error::invalid(path, count, problem));
    }
}

fn validate_attribute(errors: &mut ErrorList, path: &Path, attribute: &api::DeviceAttribute) {
    let a = attribute;
    let text = |errors: &mut ErrorList, path: &Path, text: &str| {
        if text.len() > VALUE_MAX_BYTES {
            errors.push(Error::too_long(path, VALUE_MAX_BYTES));
        }
    };
    let version = |errors: &mut ErrorList, path: &Path, version: &str| {
        if !is_semantic_version(version) {
            let problem = "must be a string compatible with semver.org spec 2.0.0";
            errors.push(Error::invalid(path, version, problem));
        }
        text(errors, path, version);
    };
    if let Some(value) = &a.string {
        text(errors, &path.child("string"), value);
    }
    if let Some(value) = &a.version {
        version(errors, &path.child("version"), value);
    }
    for (i, value) in a.strings.iter().flatten().enumerate() {
        text(errors, &path.child("strings").index(i), value);
    }
    for (i, value) in a.versions.iter().flatten().enumerate() {
        version(errors, &path.child("versions").index(i), value);
    }
    let members = [
        ("int", a.int.is_some()),
        ("bool", a.bool.is_some()),
        ("string", a.string.is_some()),
        ("version", a.version.is_some()),
        ("ints", a.ints.is_some()),
        ("bools", a.bools.is_some()),
        ("strings", a.strings.is_some()),
        ("versions", a.versions.is_some()),
    ];
    validate::union(errors, path, &members);
}

/// Returns whether this is a version such as `1.2.3-pre.1+build`, as semver.org defines it.
fn is_semantic_version(text: &str) -> bool {
    let number = |n: &str| {
        !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) && (n.len() == 1 || !n.starts_with('0'))
    };
    let word = |w: &str| !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let (rest, build) = text.split_once('+').map_or((text, None), |(r, b)| (r, Some(b)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(c, p)| (c, Some(p)));
    let parts: Vec<&str> = core.split('.').collect();
    parts.len() == 3
        && parts.into_iter().all(number)
        && pre.is_none_or(|p| {
            p.split('.').all(|w| word(w) && (number(w) || !w.bytes().all(|b| b.is_ascii_digit())))
        })
        && build.is_none_or(|b| b.split('.').all(word))
}

fn nodes(errors: &mut ErrorList, path: &Path, device: &api::Device, per_device: bool) {
    if !per_device {
        if device.node_name.is_some() || device.node_selector.is_some() || device.all_nodes.is_some() {
            let problem = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
            errors.push(Error::invalid(path, Value::Null, problem));
        }
        return;
    }
    let at = path.child("nodeName");
    match device.node_name.as_deref() {
        Some("") => errors.push(Error::invalid(&at, "", "must not be empty")),
        Some(name) => validate::dns_subdomain(errors, &at, name),
        None => {}
    }
    if let Some(selector) = &device.node_selector {
        selection::node_selector(errors, &path.child("nodeSelector"), selector);
    }
    selection::unset_or_true(errors, &path.child("allNodes"), device.all_nodes);
    let used = selection::used(&[
        Way { name: "nodeName", used: device.node_name.as_deref().is_some_and(|n| !n.is_empty()) },
        Way { name: "nodeSelector", used: device.node_selector.is_some() },
        Way { name: "allNodes", used: device.all_nodes == Some(true) },
    ]);
    let problem = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match used.len() {
        0 => errors.push(Error::required(path, problem)),
        1 => {}
        _ => errors.push(Error::invalid(path, format!("{{{}}}", used.join(", ")), problem)),
    }
}

/// Validates the conditions that must be true before a pod is bound, and those that end the waiting with a
/// failure.
pub fn validate_binding(errors: &mut ErrorList, path: &Path, binding: &[String], failure: &[String]) {
    let (at, failure_at) = (path.child("bindingConditions"), path.child("bindingFailureConditions"));
    let name = |errors: &mut ErrorList, path: &Path, name: &String| validate::label_key(errors, path, name);
    bounded(errors, &at, binding, BINDING_MAX, name);
    bounded(errors, &failure_at, failure, BINDING_MAX, name);
    let mut seen = BTreeSet::new();
    for (i, condition) in binding.iter().enumerate() {
        if !seen.insert(condition) {
            errors.push(Error::duplicate(&at.index(i), condition.as_str()));
        }
    }
    let mut seen_failures = BTreeSet::new();
    for (i, condition) in failure.iter().enumerate() {
        if !seen_failures.insert(condition) {
            errors.push(Error::duplicate(&failure_at.index(i), condition.as_str()));
        }
        if seen.contains(condition) {
            let problem = "bindingFailureConditions must not overlap with bindingConditions";
            errors.push(Error::invalid(&failure_at.index(i), condition.as_str(), problem));
        }
    }
    let shown = |list: &[String]| if list.is_empty() { Value::Null } else { validate::shown(&list) };
    if binding.is_empty() && !failure.is_empty() {
        let problem = "bindingConditions are required to use bindingFailureConditions";
        errors.push(Error::invalid(&at, shown(binding), problem));
    }
    if failure.is_empty() && !binding.is_empty() {
        let problem = "bindingFailureConditions are required to use bindingConditions";
        errors.push(Error::invalid(&failure_at, shown(failure), problem));
    }
}

#[cfg(test)]
mod tests {
    use super::is_semantic_version;

    #[test]
    fn semantic_versions() {
        for fine in ["1.2.3", "0.0.0", "1.2.3-alpha.1", "1.0.0+build.007", "1.0.0-0a+x-y"] {
            assert!(is_semantic_version(fine), "{fine}");
        }
        for bad in ["", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "v1.2.3", "1.2.3+"] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }
}
