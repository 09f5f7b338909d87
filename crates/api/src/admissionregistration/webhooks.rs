//! What validating and mutating webhooks have in common: defaults, validation, cells.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use super::{client_config, matching, rules};
use crate::defaults::{Fields, existing, items, unset};
use crate::prepare;
use crate::resource::{CellContext, Column};
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const COLUMNS: &[Column] =
    &[NAME, Column::new("Webhooks", "integer", "The number of webhooks in the configuration."), AGE];

pub fn cells(metadata: &ObjectMeta, webhooks: usize, cx: &CellContext) -> Vec<Value> {
    let name = metadata.name.as_deref().unwrap_or("");
    let age = table::age(metadata.creation_timestamp.as_ref(), cx);
    vec![Value::from(name), Value::from(webhooks), age]
}

/// Sets the defaults of each webhook; `own` sets those of one kind of webhook.
pub fn default_all(object: &mut Value, own: fn(&mut Fields)) {
    for hook in items(prepare::object(object), "webhooks") {
        unset(hook, "failurePolicy", "Fail");
        matching::default_selectors(hook);
        unset(hook, "timeoutSeconds", 10);
        own(hook);
        if let Some(service) = existing(hook, "clientConfig").and_then(|c| existing(c, "service")) {
            unset(service, "port", 443);
        }
        rules::default_all(hook, "rules");
    }
}

/// A webhook of either kind.
pub struct Hook<'a> {
    pub name: &'a str,
    pub client_config: &'a api::WebhookClientConfig,
    pub rules: &'a [api::RuleWithOperations],
    pub failure_policy: Option<&'a str>,
    pub match_policy: Option<&'a str>,
    pub namespace_selector: Option<&'a LabelSelector>,
    pub object_selector: Option<&'a LabelSelector>,
    pub side_effects: &'a str,
    pub timeout_seconds: Option<i32>,
    pub review_versions: &'a [String],
    pub match_conditions: &'a [api::MatchCondition],
    /// Only set for mutating webhooks.
    pub reinvocation_policy: Option<&'a str>,
}

/// Builds a [`Hook`] from the fields that both kinds of webhook have.
macro_rules! hook {
    ($hook:expr, $reinvocation:expr) => {{
        let hook = $hook;
        $crate::admissionregistration::webhooks::Hook {
            name: &hook.name,
            client_config: &hook.client_config,
            rules: hook.rules.as_deref().unwrap_or_default(),
            failure_policy: hook.failure_policy.as_deref(),
            match_policy: hook.match_policy.as_deref(),
            namespace_selector: hook.namespace_selector.as_ref(),
            object_selector: hook.object_selector.as_ref(),
            side_effects: &hook.side_effects,
            timeout_seconds: hook.timeout_seconds,
            review_versions: &hook.admission_review_versions,
            match_conditions: hook.match_conditions.as_deref().unwrap_or_default(),
            reinvocation_policy: $reinvocation,
        }
    }};
}
pub(super) use hook;

/// Checks that an update skips because the old object already fails them.
struct Lenience {
    match_conditions: bool,
    side_effects: bool,
    review_versions: bool,
    names: bool,
    label_values: bool,
    /// The old conditions of all webhooks.
    conditions: Vec<api::MatchCondition>,
}

const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const SIDE_EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

fn has_known_version(hook: &Hook<'_>) -> bool {
    hook.review_versions.iter().any(|v| REVIEW_VERSIONS.contains(&v.as_str()))
}

impl Lenience {
    const NONE: Self = Self {
        match_conditions: false,
        side_effects: false,
        review_versions: false,
        names: false,
        label_values: false,
        conditions: Vec::new(),
    };

    fn towards(new: &[Hook<'_>], old: &[Hook<'_>]) -> Self {
        let mut names = BTreeSet::new();
        let bad_selector = |selector: Option<&LabelSelector>| {
            let mut errors = ErrorList::new();
            validate::label_selector(&mut errors, &Path::default(), selector);
            !errors.is_empty()
        };
        Self {
            match_conditions: new.len() == old.len()
                && new.iter().zip(old).all(|(n, o)| n.match_conditions == o.match_conditions),
            side_effects: !old.iter().all(|h| NO_SIDE_EFFECTS.contains(&h.side_effects)),
            review_versions: old.iter().any(|h| !h.review_versions.is_empty() && !has_known_version(h)),
            names: !old.iter().all(|h| names.insert(h.name)),
            label_values: old
                .iter()
                .any(|h| bad_selector(h.namespace_selector) || bad_selector(h.object_selector)),
            conditions: old.iter().flat_map(|h| h.match_conditions).cloned().collect(),
        }
    }
}

pub fn validate_new(hooks: &[Hook<'_>]) -> ErrorList {
    validate_all(hooks, &Lenience::NONE)
}

pub fn validate_update(new: &[Hook<'_>], old: &[Hook<'_>]) -> ErrorList {
    validate_all(new, &Lenience::towards(new, old))
}

fn validate_all(hooks: &[Hook<'_>], lenience: &Lenience) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut names = BTreeSet::new();
    for (i, hook) in hooks.iter().enumerate() {
        let path = Path::new("webhooks").index(i);
        validate_one(&mut errors, &path, hook, lenience);
        review_versions(&mut errors, &path.child("admissionReviewVersions"), hook, lenience);
        if !lenience.names && !hook.name.is_empty() && !names.insert(hook.name) {
            errors.push(Error::duplicate(&path.child("name"), hook.name));
        }
    }
    errors
}

fn validate_one(errors: &mut ErrorList, path: &Path, hook: &Hook<'_>, lenience: &Lenience) {
    qualified_name(errors, &path.child("name"), hook.name);
    for (i, rule) in hook.rules.iter().enumerate() {
        rules::validate(errors, &path.child("rules").index(i), rule.into());
    }
    let policies = [
        ("failurePolicy", hook.failure_policy, &matching::FAILURE_POLICIES),
        ("matchPolicy", hook.match_policy, &matching::MATCH_POLICIES),
        ("reinvocationPolicy", hook.reinvocation_policy, &matching::REINVOCATION_POLICIES),
    ];
    for (field, value, supported) in policies {
        if let Some(value) = value {
            validate::supported_value(errors, &path.child(field), value, supported);
        }
    }
    side_effects(errors, &path.child("sideEffects"), hook.side_effects, lenience);
    if let Some(seconds) = hook.timeout_seconds.filter(|s| !(1..=30).contains(s)) {
        let problem = "the timeout value must be between 1 and 30 seconds";
        errors.push(Error::invalid(&path.child("timeoutSeconds"), seconds, problem));
    }
    selector(errors, &path.child("namespaceSelector"), hook.namespace_selector, lenience);
    selector(errors, &path.child("objectSelector"), hook.object_selector, lenience);
    client_config::validate(errors, &path.child("clientConfig"), hook.client_config);
    if !lenience.match_conditions {
        let at = path.child("matchConditions");
        matching::validate_conditions(errors, &at, hook.match_conditions, false, &lenience.conditions);
    }
}

fn side_effects(errors: &mut ErrorList, path: &Path, value: &str, lenience: &Lenience) {
    let allowed = if lenience.side_effects { &SIDE_EFFECTS[..] } else { &NO_SIDE_EFFECTS };
    if value.is_empty() {
        errors.push(Error::required(path, format!("must specify one of {}", allowed.join(", "))));
    } else {
        validate::supported_value(errors, path, value, allowed);
    }
}

/// Validates a selector; skips the label values if the old object has invalid ones.
fn selector(errors: &mut ErrorList, path: &Path, selector: Option<&LabelSelector>, lenience: &Lenience) {
    let mut found = ErrorList::new();
    validate::label_selector(&mut found, path, selector);
    if lenience.label_values {
        let of_values = |e: &Error| e.path.to_string().contains(".values[");
        found.0.retain(|e| !of_values(e));
    }
    errors.extend(found);
}

/// Requires a name of at least three segments.
fn qualified_name(errors: &mut ErrorList, path: &Path, name: &str) {
    if !validate::required(errors, path, name) {
        return;
    }
    let problems = names::dns1123_subdomain(name);
    if !problems.is_empty() {
        errors.push(Error::invalid(path, name, problems.join(",")));
    } else if name.split('.').count() < 3 {
        let problem = "should be a domain with at least three segments separated by dots";
        errors.push(Error::invalid(path, name, problem));
    }
}

fn review_versions(errors: &mut ErrorList, path: &Path, hook: &Hook<'_>, lenience: &Lenience) {
    let known = REVIEW_VERSIONS.join(", ");
    if hook.review_versions.is_empty() {
        errors.push(Error::required(path, format!("must specify one of {known}")));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, version) in hook.review_versions.iter().enumerate() {
        let path = path.index(i);
        if !seen.insert(version) {
            errors.push(Error::invalid(&path, version.as_str(), "duplicate version"));
            continue;
        }
        validate::problems(errors, &path, version, names::dns1035_label(version));
    }
    if !lenience.review_versions && !has_known_version(hook) {
        let problem = format!("must include at least one of {known}");
        errors.push(Error::invalid(path, validate::shown(&hook.review_versions), problem));
    }
}

/// Returns warnings about the rules of all webhooks.
pub fn warnings(hooks: &[Hook<'_>]) -> Vec<String> {
    let path = Path::new("webhooks");
    let of =
        |(i, hook): (usize, &Hook<'_>)| rules::exclusion_warnings(&path.index(i).child("rules"), hook.rules);
    hooks.iter().enumerate().flat_map(of).collect()
}
