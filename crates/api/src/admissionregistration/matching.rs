//! What webhooks and policies match requests by: selectors, conditions, parameters.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use knarr_cel::Type;
use serde_json::{Value, json};

use super::expressions::{Compiler, Offers};
use super::rules;
use crate::defaults::{Fields, unset};
use crate::validate;

pub const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
pub const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
pub const REINVOCATION_POLICIES: [&str; 2] = ["IfNeeded", "Never"];
const CONDITIONS_MAX: usize = 64;

/// Sets the defaults of `matchPolicy` and of both selectors, for webhooks and for the `matchConstraints` of policies.
pub fn default_selectors(fields: &mut Fields) {
    unset(fields, "matchPolicy", "Equivalent");
    unset(fields, "namespaceSelector", json!({}));
    unset(fields, "objectSelector", json!({}));
}

pub fn default_resources(fields: &mut Fields) {
    default_selectors(fields);
    rules::default_all(fields, "resourceRules");
    rules::default_all(fields, "excludeResourceRules");
}

/// Adds Required if the value is missing, Unsupported if it is not one of these.
pub fn required_policy(errors: &mut ErrorList, path: &Path, value: Option<&str>, supported: &[&str]) {
    match value {
        None => errors.push(Error::required(path, "")),
        Some(value) => validate::supported_value(errors, path, value, supported),
    }
}

pub fn validate_resources(errors: &mut ErrorList, path: &Path, resources: &api::MatchResources) {
    let policy = resources.match_policy.as_deref();
    required_policy(errors, &path.child("matchPolicy"), policy, &MATCH_POLICIES);
    let mut selector = |field: &str, selector: Option<&LabelSelector>| {
        let path = path.child(field);
        if selector.is_none() {
            errors.push(Error::required(&path, ""));
        }
        validate::label_selector(errors, &path, selector);
    };
    selector("namespaceSelector", resources.namespace_selector.as_ref());
    selector("objectSelector", resources.object_selector.as_ref());
    for (i, rule) in resources.resource_rules.iter().flatten().enumerate() {
        rules::validate_named(errors, &path.child("resourceRules").index(i), rule);
    }
    for (i, rule) in resources.exclude_resource_rules.iter().flatten().enumerate() {
        rules::validate_named(errors, &path.child("excludeResourceRules").index(i), rule);
    }
}

/// Validates match conditions. `params` says whether the policy has parameters; `old` are the conditions before an
/// update.
pub fn validate_conditions(
    errors: &mut ErrorList,
    path: &Path,
    conditions: &[api::MatchCondition],
    params: bool,
    old: &[api::MatchCondition],
) {
    if conditions.len() > CONDITIONS_MAX {
        errors.push(Error::too_many(path, conditions.len(), CONDITIONS_MAX));
    }
    let mut seen = BTreeSet::new();
    let compiler = Compiler::new(old.iter().map(|c| c.expression.as_str()));
    let offers = Offers { params, authorizer: true, patches: false };
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        let (at, source) = (path.child("expression"), condition.expression.trim());
        if validate::required(errors, &at, source) {
            compiler.check(errors, &at, (source, source), offers, &[Type::Bool]);
        }
        let (path, name) = (path.child("name"), condition.name.as_str());
        if validate::required(errors, &path, name) {
            validate::label_key(errors, &path, name);
            if !seen.insert(name) {
                errors.push(Error::duplicate(&path, name));
            }
        }
    }
}

pub fn validate_param_ref(errors: &mut ErrorList, path: &Path, param: &api::ParamRef) {
    let name = param.name.as_deref().unwrap_or("");
    let exclusive = "name and selector are mutually exclusive";
    if !name.is_empty() {
        validate::problems(errors, &path.child("name"), name, names::path_segment_name(name));
        if param.selector.is_some() {
            errors.push(Error::forbidden(&path.child("name"), exclusive));
        }
    }
    if param.selector.is_some() {
        let path = path.child("selector");
        validate::label_selector(errors, &path, param.selector.as_ref());
        if !name.is_empty() {
            errors.push(Error::forbidden(&path, exclusive));
        }
    }
    if name.is_empty() && param.selector.is_none() {
        errors.push(Error::required(path, "one of name or selector must be specified"));
    }
    let action = param.parameter_not_found_action.as_deref().unwrap_or("");
    validate::one_of(errors, &path.child("parameterNotFoundAction"), action, &["Deny", "Allow"]);
}

/// Returns the cell of a binding's parameters.
pub fn param_cell(param: Option<&api::ParamRef>) -> Value {
    let text = match param {
        Some(api::ParamRef { name: Some(name), namespace, .. }) if !name.is_empty() => {
            let namespace = namespace.as_deref().filter(|n| !n.is_empty());
            format!("{}/{name}", namespace.unwrap_or("*"))
        }
        Some(api::ParamRef { selector: Some(selector), .. }) => selector_cell(selector),
        _ => "<unset>".to_owned(),
    };
    Value::from(text)
}

/// Formats a selector as upstream's generated code does.
fn selector_cell(selector: &LabelSelector) -> String {
    let labels: String = selector.match_labels.iter().flatten().map(|(k, v)| format!("{k}: {v},")).collect();
    let requirements: String = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|r| {
            let values = r.values.as_deref().unwrap_or_default().join(" ");
            let (key, operator) = (&r.key, &r.operator);
            format!("LabelSelectorRequirement{{Key:{key},Operator:{operator},Values:[{values}],}},")
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{requirements}}},}}"
    )
}
