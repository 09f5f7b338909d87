//! What validating and mutating admission policies have in common.

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;
use serde_json::Value;

use super::expressions::{Compiler, Composition, Offers};
use super::matching;
use crate::defaults::{child, existing, unset};
use crate::prepare;
use crate::resource::Column;
use crate::table::{AGE, NAME};
use crate::validate;

pub const BINDING_COLUMNS: &[Column] = &[
    NAME,
    Column::new("PolicyName", "string", "The name of the bound policy."),
    Column::new("ParamRef", "string", "The parameter resource of the binding."),
    AGE,
];

pub fn default_policy(object: &mut Value) {
    let spec = child(prepare::object(object), "spec");
    unset(spec, "failurePolicy", "Fail");
    if let Some(constraints) = existing(spec, "matchConstraints") {
        matching::default_resources(constraints);
    }
}

pub fn default_binding(object: &mut Value) {
    let spec = child(prepare::object(object), "spec");
    if let Some(resources) = existing(spec, "matchResources") {
        matching::default_resources(resources);
    }
}

pub fn param_kind_cell(kind: Option<&api::ParamKind>) -> Value {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    Value::from(match kind {
        Some(kind) => format!("{}/{}", part(&kind.api_version), part(&kind.kind)),
        None => "<unset>".to_owned(),
    })
}

/// Splits an API version into group and version as upstream does for parameters.
fn group_version(text: &str) -> Result<(&str, &str), String> {
    match text.matches('/').count() {
        0 => Ok(("", text)),
        1 if text == "/" => Ok(("", "")),
        1 => Ok(text.split_once('/').unwrap_or_default()),
        _ => Err(format!("unexpected GroupVersion string: {text}")),
    }
}

pub fn validate_param_kind(errors: &mut ErrorList, path: &Path, kind: &api::ParamKind) {
    let (at, text) = (path.child("apiVersion"), kind.api_version.as_deref().unwrap_or(""));
    if validate::required(errors, &at, text) {
        match group_version(text) {
            Err(problem) => errors.push(Error::invalid(&at, text, problem)),
            Ok((group, version)) => {
                if !group.is_empty() {
                    joined(errors, &at, group, "", names::dns1123_subdomain(group));
                }
                match version {
                    "" => errors.push(Error::invalid(&at, text, "version must be specified")),
                    version => joined(errors, &at, version, "", names::dns1035_label(version)),
                }
            }
        }
    }
    let (at, text) = (path.child("kind"), kind.kind.as_deref().unwrap_or(""));
    if validate::required(errors, &at, text) {
        let problems = names::dns1035_label(&text.to_lowercase());
        joined(errors, &at, text, "may have mixed case, but should otherwise match: ", problems);
    }
}

/// Adds one error for all problems of a value.
fn joined(errors: &mut ErrorList, path: &Path, value: &str, before: &str, problems: names::Problems) {
    if !problems.is_empty() {
        errors.push(Error::invalid(path, value, format!("{before}{}", problems.join(","))));
    }
}

/// The fields that both kinds of policy have.
pub struct Policy<'a> {
    pub failure_policy: Option<&'a str>,
    pub param_kind: Option<&'a api::ParamKind>,
    pub constraints: Option<&'a api::MatchResources>,
    pub conditions: &'a [api::MatchCondition],
    pub variables: &'a [api::Variable],
}

impl Policy<'_> {
    /// Returns what the policy's variables, validations and annotations may use.
    pub fn offers(&self) -> Offers {
        Offers { params: self.param_kind.is_some(), authorizer: true, patches: false }
    }
}

pub fn validate_head(errors: &mut ErrorList, path: &Path, policy: &Policy<'_>) {
    let at = path.child("failurePolicy");
    matching::required_policy(errors, &at, policy.failure_policy, &matching::FAILURE_POLICIES);
    if let Some(kind) = policy.param_kind {
        validate_param_kind(errors, &path.child("paramKind"), kind);
    }
    let at = path.child("matchConstraints");
    match policy.constraints {
        None => errors.push(Error::required(&at, "")),
        Some(constraints) => {
            matching::validate_resources(errors, &at, constraints);
            if constraints.resource_rules.as_ref().is_none_or(Vec::is_empty) {
                errors.push(Error::required(&at.child("resourceRules"), ""));
            }
        }
    }
}

/// Validates the match conditions, unless they and the parameter kind are those of `old`, the policy before an
/// update.
pub fn validate_conditions(
    errors: &mut ErrorList,
    path: &Path,
    policy: &Policy<'_>,
    old: Option<&Policy<'_>>,
) {
    let same = old.is_some_and(|o| o.param_kind == policy.param_kind && o.conditions == policy.conditions);
    if !same {
        let (params, before) = (policy.param_kind.is_some(), old.map_or(&[][..], |o| o.conditions));
        let at = path.child("matchConditions");
        matching::validate_conditions(errors, &at, policy.conditions, params, before);
    }
}

/// Validates the variables and returns their declarations for the policy's other expressions. `old` are the
/// expressions before an update.
pub fn validate_variables<'o>(
    errors: &mut ErrorList,
    path: &Path,
    policy: &Policy<'_>,
    old: impl IntoIterator<Item = &'o str>,
) -> Composition {
    let mut compiler = Compiler::new(old).composed(Composition::default());
    let offers = policy.offers();
    for (i, variable) in policy.variables.iter().enumerate() {
        let path = path.child("variables").index(i);
        if variable.name.trim().is_empty() {
            errors.push(Error::required(&path.child("name"), "name is not specified"));
        } else if !is_cel_identifier(&variable.name) {
            let problem = "must be a valid CEL identifier";
            errors.push(Error::invalid(&path.child("name"), variable.name.as_str(), problem));
        }
        let (at, source) = (path.child("expression"), variable.expression.as_str());
        if source.trim().is_empty() {
            errors.push(Error::required(&at, "expression is not specified"));
        } else {
            let of = compiler.check(errors, &at, (source, source), offers, &[]);
            compiler.add(&variable.name, of.as_ref());
        }
    }
    compiler.into_composition()
}

const CEL_RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

fn is_cel_identifier(name: &str) -> bool {
    let fine = |c: u8| c == b'_' || c.is_ascii_alphanumeric();
    name.bytes().all(fine)
        && name.bytes().next().is_some_and(|c| !c.is_ascii_digit())
        && !CEL_RESERVED.contains(&name)
}

/// Validates the fields of a binding: the policy's name, the parameters and the resources.
pub fn validate_binding(
    errors: &mut ErrorList,
    path: &Path,
    policy: &str,
    param: Option<&api::ParamRef>,
    resources: Option<&api::MatchResources>,
) {
    let at = path.child("policyName");
    if validate::required(errors, &at, policy) {
        validate::dns_subdomain(errors, &at, policy);
    }
    if let Some(param) = param {
        matching::validate_param_ref(errors, &path.child("paramRef"), param);
    }
    if let Some(resources) = resources {
        matching::validate_resources(errors, &path.child("matchResources"), resources);
    }
}
