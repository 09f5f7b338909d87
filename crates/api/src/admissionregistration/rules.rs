//! The rules of webhooks and policies, which select requests.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::defaults::{Fields, items, unset};
use crate::validate;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
/// The operations that a mutating policy may match.
const MUTABLE_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// The fields of a rule that are validated, with or without resource names.
#[derive(Clone, Copy)]
pub struct Rule<'a> {
    pub operations: &'a [String],
    pub groups: &'a [String],
    pub versions: &'a [String],
    pub resources: &'a [String],
    pub scope: Option<&'a str>,
}

impl<'a> From<&'a api::RuleWithOperations> for Rule<'a> {
    fn from(rule: &'a api::RuleWithOperations) -> Self {
        Self {
            operations: rule.operations.as_deref().unwrap_or_default(),
            groups: rule.api_groups.as_deref().unwrap_or_default(),
            versions: rule.api_versions.as_deref().unwrap_or_default(),
            resources: rule.resources.as_deref().unwrap_or_default(),
            scope: rule.scope.as_deref(),
        }
    }
}

impl<'a> From<&'a api::NamedRuleWithOperations> for Rule<'a> {
    fn from(rule: &'a api::NamedRuleWithOperations) -> Self {
        Self {
            operations: rule.operations.as_deref().unwrap_or_default(),
            groups: rule.api_groups.as_deref().unwrap_or_default(),
            versions: rule.api_versions.as_deref().unwrap_or_default(),
            resources: rule.resources.as_deref().unwrap_or_default(),
            scope: rule.scope.as_deref(),
        }
    }
}

/// Sets the default scope of rules, `*`.
pub fn default_all(parent: &mut Fields, field: &str) {
    items(parent, field).for_each(|rule| unset(rule, "scope", "*"));
}

pub fn validate(errors: &mut ErrorList, path: &Path, rule: Rule<'_>) {
    operations(errors, &path.child("operations"), rule.operations);
    let groups = path.child("apiGroups");
    if rule.groups.is_empty() {
        errors.push(Error::required(&groups, ""));
    }
    alone(errors, &groups, rule.groups, "API groups");
    let versions = path.child("apiVersions");
    if rule.versions.is_empty() {
        errors.push(Error::required(&versions, ""));
    }
    alone(errors, &versions, rule.versions, "API versions");
    for (i, _) in rule.versions.iter().enumerate().filter(|(_, v)| v.is_empty()) {
        errors.push(Error::required(&versions.index(i), ""));
    }
    resources(errors, &path.child("resources"), rule.resources);
    if let Some(scope) = rule.scope {
        validate::supported_value(errors, &path.child("scope"), scope, &SCOPES);
    }
}

fn operations(errors: &mut ErrorList, path: &Path, operations: &[String]) {
    if operations.is_empty() {
        errors.push(Error::required(path, ""));
    }
    alone(errors, path, operations, "operations");
    for (i, operation) in operations.iter().enumerate() {
        validate::supported_value(errors, &path.index(i), operation, &OPERATIONS);
    }
}

/// Requires that `*` is the only entry of its list.
fn alone(errors: &mut ErrorList, path: &Path, list: &[String], what: &str) {
    if list.len() > 1 && list.iter().any(|s| s == "*") {
        let problem = format!("if '*' is present, must not specify other {what}");
        errors.push(Error::invalid(path, validate::shown(&list), problem));
    }
}

fn resources(errors: &mut ErrorList, path: &Path, resources: &[String]) {
    if resources.is_empty() {
        errors.push(Error::required(path, ""));
    }
    let (mut all_parts_of, mut part_of_all) = (BTreeSet::new(), BTreeSet::new());
    // As upstream does, only the last entry without a subresource counts.
    let mut plain = false;
    for (i, resource) in resources.iter().enumerate() {
        if resource.is_empty() {
            errors.push(Error::required(&path.index(i), ""));
            continue;
        }
        let Some((parent, part)) = resource.split_once('/') else {
            plain = resource != "*";
            continue;
        };
        if all_parts_of.contains(parent) {
            let problem = format!("if '{parent}/*' is present, must not specify {resource}");
            errors.push(Error::invalid(&path.index(i), resource.as_str(), problem));
        }
        if part_of_all.contains(part) {
            let problem = format!("if '*/{part}' is present, must not specify {resource}");
            errors.push(Error::invalid(&path.index(i), resource.as_str(), problem));
        }
        if part == "*" {
            all_parts_of.insert(parent);
        }
        if parent == "*" {
            part_of_all.insert(part);
        }
    }
    let has = |what: &str| resources.iter().any(|r| r == what);
    if resources.len() > 1 && has("*/*") {
        let problem = "if '*/*' is present, must not specify other resources";
        errors.push(Error::invalid(path, validate::shown(&resources), problem));
    }
    if has("*") && plain {
        let problem = "if '*' is present, must not specify other resources without subresources";
        errors.push(Error::invalid(path, validate::shown(&resources), problem));
    }
}

/// Validates a rule of a policy, which may have resource names.
pub fn validate_named(errors: &mut ErrorList, path: &Path, rule: &api::NamedRuleWithOperations) {
    let mut seen = BTreeSet::new();
    for (i, name) in rule.resource_names.iter().flatten().enumerate() {
        let path = path.child("resourceNames").index(i);
        validate::problems(errors, &path, name, names::path_segment_name(name));
        if !seen.insert(name) {
            errors.push(Error::duplicate(&path, name.as_str()));
        }
    }
    validate(errors, path, rule.into());
}

/// Refuses operations that a mutating policy cannot match, such as DELETE.
pub fn only_mutable_operations(errors: &mut ErrorList, path: &Path, resources: Option<&api::MatchResources>) {
    let rules = resources.and_then(|r| r.resource_rules.as_deref()).unwrap_or_default();
    for operation in rules.iter().flat_map(|r| r.operations.iter().flatten()) {
        let path = path.child("resourceRules").child("operations");
        validate::supported_value(errors, &path, operation, &MUTABLE_OPERATIONS);
    }
}

/// Reviews that are not sent to webhooks, by group.
const EXCLUDED: [(&str, &str); 6] = [
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Warns about each resource of a rule that is not sent to webhooks.
pub fn exclusion_warnings(path: &Path, rules: &[api::RuleWithOperations]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let rule = Rule::from(rule);
        if rule.groups.iter().chain(rule.resources).any(|s| s == "*") {
            continue;
        }
        let mut seen = BTreeSet::new();
        for group in rule.groups {
            for resource in rule.resources {
                if EXCLUDED.contains(&(group, resource)) && seen.insert((group, resource)) {
                    warnings.push(format!(
                        "{}: {resource}.{group} is excluded from admission webhooks; this rule will have no effect",
                        path.index(i)
                    ));
                }
            }
        }
    }
    warnings
}
