//! The spec of a claim: its requests, constraints and configuration.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

use super::lists::{bounded, set};
use super::{configuration, expressions, identifiers, taints};
use crate::defaults::{Fields, blank, existing, items, text};
use crate::validate;

const REQUESTS_MAX: usize = 32;
const CONSTRAINTS_MAX: usize = 32;
pub const CONFIGURATIONS_MAX: usize = 32;
pub const SELECTORS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const TOLERATIONS_MAX: usize = 16;

/// Sets the default of each request: one device.
pub fn default_spec(spec: &mut Fields) {
    let Some(devices) = existing(spec, "devices") else { return };
    for request in items(devices, "requests") {
        if let Some(exactly) = existing(request, "exactly") {
            default_request(exactly);
        }
        items(request, "firstAvailable").for_each(default_request);
    }
}

fn default_request(request: &mut Fields) {
    blank(request, "allocationMode", "ExactCount");
    if text(request, "allocationMode") == "ExactCount" {
        blank(request, "count", 1);
    }
}

/// The names of requests, each with the names of its alternatives.
pub struct RequestNames(BTreeMap<String, BTreeSet<String>>);

impl RequestNames {
    pub fn of(spec: &api::ResourceClaimSpec) -> Self {
        let requests = spec.devices.iter().flat_map(|d| d.requests.iter().flatten());
        let alternatives = |r: &api::DeviceRequest| {
            r.first_available.iter().flatten().map(|s| s.name.clone()).collect::<BTreeSet<_>>()
        };
        Self(requests.map(|r| (r.name.clone(), alternatives(r))).collect())
    }

    fn has(&self, name: &str) -> bool {
        match name.split('/').collect::<Vec<_>>()[..] {
            [request] => self.0.contains_key(request),
            [request, alternative] => self.0.get(request).is_some_and(|a| a.contains(alternative)),
            _ => false,
        }
    }

    /// Validates a reference to `request` or `request/alternative`.
    pub fn reference(&self, errors: &mut ErrorList, path: &Path, name: &str) {
        let problem = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() > 2 {
            errors.push(Error::invalid(path, name, problem));
            return;
        }
        for part in parts {
            validate::dns_label(errors, path, part);
        }
        if !self.has(name) {
            errors.push(Error::invalid(path, name, problem));
        }
    }

    /// Validates a set of references.
    pub fn references(&self, errors: &mut ErrorList, path: &Path, names: Option<&Vec<String>>) {
        let names = names.map(Vec::as_slice).unwrap_or_default();
        set(errors, path, names, REQUESTS_MAX, String::clone, |errors, path, name| {
            self.reference(errors, path, name);
        });
    }
}

pub fn validate_spec(errors: &mut ErrorList, path: &Path, spec: &api::ResourceClaimSpec) {
    let path = path.child("devices");
    let devices = spec.devices.clone().unwrap_or_default();
    let names = RequestNames::of(spec);
    let requests = devices.requests.as_deref().unwrap_or_default();
    let at = path.child("requests");
    set(errors, &at, requests, REQUESTS_MAX, |r| r.name.clone(), validate_request);
    let constraints = devices.constraints.as_deref().unwrap_or_default();
    bounded(errors, &path.child("constraints"), constraints, CONSTRAINTS_MAX, |errors, path, constraint| {
        validate_constraint(errors, path, constraint, &names);
    });
    let config = devices.config.as_deref().unwrap_or_default();
    bounded(errors, &path.child("config"), config, CONFIGURATIONS_MAX, |errors, path, config| {
        names.references(errors, &path.child("requests"), config.requests.as_ref());
        configuration::validate(errors, path, config.opaque.as_ref());
    });
}

fn validate_request(errors: &mut ErrorList, path: &Path, request: &api::DeviceRequest) {
    validate::dns_label(errors, &path.child("name"), &request.name);
    let alternatives = request.first_available.as_deref().unwrap_or_default();
    let one = "exactly one of `exactly` or `firstAvailable` is required";
    match (&request.exactly, alternatives.is_empty()) {
        (None, true) => errors.push(Error::required(path, one)),
        (Some(_), false) => {
            errors.push(Error::invalid(path, Value::Null, format!("{one}, but multiple fields are set")));
        }
        (Some(exactly), true) => validate_what(errors, &path.child("exactly"), &What::from(exactly)),
        (None, false) => {
            let path = path.child("firstAvailable");
            set(
                errors,
                &path,
                alternatives,
                ALTERNATIVES_MAX,
                |s| s.name.clone(),
                |errors, path, request| {
                    validate::dns_label(errors, &path.child("name"), &request.name);
                    validate_what(errors, path, &What::from(request));
                },
            );
        }
    }
}

/// What a request and its alternatives have in common.
struct What<'a> {
    class: &'a str,
    selectors: &'a [api::DeviceSelector],
    mode: &'a str,
    count: i64,
    tolerations: &'a [api::DeviceToleration],
}

impl<'a> From<&'a api::ExactDeviceRequest> for What<'a> {
    fn from(request: &'a api::ExactDeviceRequest) -> Self {
        Self {
            class: &request.device_class_name,
            selectors: request.selectors.as_deref().unwrap_or_default(),
            mode: request.allocation_mode.as_deref().unwrap_or(""),
            count: request.count.unwrap_or(0),
            tolerations: request.tolerations.as_deref().unwrap_or_default(),
        }
    }
}

impl<'a> From<&'a api::DeviceSubRequest> for What<'a> {
    fn from(request: &'a api::DeviceSubRequest) -> Self {
        Self {
            class: &request.device_class_name,
            selectors: request.selectors.as_deref().unwrap_or_default(),
            mode: request.allocation_mode.as_deref().unwrap_or(""),
            count: request.count.unwrap_or(0),
            tolerations: request.tolerations.as_deref().unwrap_or_default(),
        }
    }
}

fn validate_what(errors: &mut ErrorList, path: &Path, what: &What<'_>) {
    let at = path.child("deviceClassName");
    if validate::required(errors, &at, what.class) {
        validate::dns_subdomain(errors, &at, what.class);
    }
    validate_selectors(errors, &path.child("selectors"), what.selectors, false);
    let at = path.child("count");
    match what.mode {
        "All" if what.count != 0 => {
            let problem = "must not be specified when allocationMode is 'All'";
            errors.push(Error::invalid(&at, what.count, problem));
        }
        "All" => {}
        "ExactCount" => validate::positive(errors, &at, what.count),
        mode => {
            let supported = ["All", "ExactCount"];
            errors.push(validate::not_supported(&path.child("allocationMode"), mode, &supported));
        }
    }
    let at = path.child("tolerations");
    bounded(errors, &at, what.tolerations, TOLERATIONS_MAX, taints::validate_toleration);
}

/// Validates selectors. `stored` expressions are not compiled again: they were valid when they were written.
pub fn validate_selectors(
    errors: &mut ErrorList,
    path: &Path,
    selectors: &[api::DeviceSelector],
    stored: bool,
) {
    bounded(errors, path, selectors, SELECTORS_MAX, |errors, path, selector| match &selector.cel {
        None => errors.push(Error::required(&path.child("cel"), "")),
        Some(cel) => {
            let path = path.child("cel").child("expression");
            validate::required(errors, &path, &cel.expression);
            if !stored {
                expressions::check(errors, &path, &cel.expression);
            }
        }
    });
}

fn validate_constraint(
    errors: &mut ErrorList,
    path: &Path,
    constraint: &api::DeviceConstraint,
    names: &RequestNames,
) {
    names.references(errors, &path.child("requests"), constraint.requests.as_ref());
    match (&constraint.match_attribute, &constraint.distinct_attribute) {
        (Some(name), _) => identifiers::fully_qualified(errors, &path.child("matchAttribute"), name),
        (None, Some(name)) => identifiers::fully_qualified(errors, &path.child("distinctAttribute"), name),
        (None, None) => errors.push(Error::required(
            path,
            r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#,
        )),
    }
}
