//! ValidatingAdmissionPolicy: CEL expressions that allow or refuse a request.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::jsonpath::JsonPath;
use knarr_cel::Type;
use serde_json::Value;

use super::expressions::{Compiler, Offers};
use super::policies::{self, Policy};
use super::{not_static, static_warnings};
use crate::conditions;
use crate::kind::Kind;
use crate::naming;
use crate::object::Object;
use crate::prepare;
use crate::resource::{self, CellContext, Column, Resource};
use crate::strategy::Strategy;
use crate::table::{self, AGE, NAME};
use crate::validate;

pub const RESOURCE: Resource = Resource {
    categories: &["api-extensions"],
    subresources: &[resource::STATUS],
    columns: COLUMNS,
    cells,
    ..Resource::stored(
        api::ValidatingAdmissionPolicy::RESOURCE,
        "ValidatingAdmissionPolicyList",
        "validatingadmissionpolicy",
        &Rules,
    )
};

const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Validations", "integer", "The number of validations in the policy."),
    Column::new("ParamKind", "string", "The kind of the resources that parameterize the policy."),
    AGE,
];

fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let o = object.typed::<api::ValidatingAdmissionPolicy>().unwrap_or_default();
    let age = table::age(o.metadata.creation_timestamp.as_ref(), cx);
    let spec = o.spec.clone().unwrap_or_default();
    let count = spec.validations.iter().flatten().count();
    let kind = policies::param_kind_cell(spec.param_kind.as_ref());
    vec![Value::from(object.name()), Value::from(count), kind, age]
}

struct Rules;

impl Strategy for Rules {
    fn default(&self, object: &mut Value) {
        policies::default_policy(object);
    }

    fn prepare_for_create(&self, object: &mut Value) {
        prepare::create_with_status(object);
    }

    fn prepare_for_update(&self, new: &mut Value, old: &Value, subresource: Option<&str>) {
        prepare::update_with_generation(new, old, subresource);
        if subresource == Some("status") {
            prepare::keep_metadata_for_status(new, old);
        }
    }

    fn validate(&self, object: &Object) -> ErrorList {
        let mut errors = object
            .typed::<api::ValidatingAdmissionPolicy>()
            .map(|o| validate_own(&o, None))
            .unwrap_or_default();
        not_static(&mut errors, object.name());
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, subresource: Option<&str>) -> ErrorList {
        match (new.typed::<api::ValidatingAdmissionPolicy>(), old.typed::<api::ValidatingAdmissionPolicy>()) {
            (Ok(new), Ok(_)) if subresource == Some("status") => validate_status(&new),
            (Ok(new), Ok(old)) => validate_own(&new, Some(&old)),
            _ => ErrorList::new(),
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        naming::subdomain(name, prefix)
    }

    fn warnings(&self, new: &Object, old: Option<&Object>) -> Vec<String> {
        old.map(|_| static_warnings(new.name())).unwrap_or_default()
    }

    fn allow_unconditional_update(&self) -> bool {
        false
    }
}

fn head(spec: &api::ValidatingAdmissionPolicySpec) -> Policy<'_> {
    Policy {
        failure_policy: spec.failure_policy.as_deref(),
        param_kind: spec.param_kind.as_ref(),
        constraints: spec.match_constraints.as_ref(),
        conditions: spec.match_conditions.as_deref().unwrap_or_default(),
        variables: spec.variables.as_deref().unwrap_or_default(),
    }
}

fn validate_own(
    policy: &api::ValidatingAdmissionPolicy,
    old: Option<&api::ValidatingAdmissionPolicy>,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let (path, spec) = (Path::new("spec"), policy.spec.clone().unwrap_or_default());
    let before = old.map(|o| o.spec.clone().unwrap_or_default());
    let own = head(&spec);
    policies::validate_head(&mut errors, &path, &own);
    policies::validate_conditions(&mut errors, &path, &own, before.as_ref().map(head).as_ref());
    let stored = before.as_ref().map(Stored::of).unwrap_or_default();
    let composition =
        policies::validate_variables(&mut errors, &path, &own, stored.expressions.iter().copied());
    let composition = (!own.variables.is_empty()).then_some(composition);
    let validations = spec.validations.as_deref().unwrap_or_default();
    let annotations = spec.audit_annotations.as_deref().unwrap_or_default();
    if validations.is_empty() && annotations.is_empty() {
        for field in ["validations", "auditAnnotations"] {
            let problem = "validations or auditAnnotations must contain at least one item";
            errors.push(Error::required(&path.child(field), problem));
        }
        return errors;
    }
    let expressions = Compiler::of(stored.expressions, composition.clone());
    let messages = Compiler::of(stored.messages, composition.clone());
    for (i, validation) in validations.iter().enumerate() {
        let path = path.child("validations").index(i);
        validate_validation(&mut errors, &path, validation, own.offers(), (&expressions, &messages));
    }
    let name = policy.metadata.name.as_deref().unwrap_or("");
    let compiler = Compiler::of(stored.annotations, composition);
    let path = path.child("auditAnnotations");
    validate_annotations(&mut errors, &path, annotations, name, (&compiler, own.offers()));
    errors
}

/// The expressions of a policy before an update.
#[derive(Default)]
struct Stored<'s> {
    expressions: Vec<&'s str>,
    messages: Vec<&'s str>,
    annotations: Vec<&'s str>,
}

impl<'s> Stored<'s> {
    fn of(spec: &'s api::ValidatingAdmissionPolicySpec) -> Self {
        let validations = || spec.validations.iter().flatten();
        let annotations = spec.audit_annotations.iter().flatten();
        Self {
            expressions: validations().map(|v| v.expression.as_str()).collect(),
            messages: validations().filter_map(|v| v.message_expression.as_deref()).collect(),
            annotations: annotations.map(|a| a.value_expression.as_str()).collect(),
        }
    }
}

const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

/// Validates one validation. The compilers are for expressions and for message expressions, which have no authorizer.
fn validate_validation(
    errors: &mut ErrorList,
    path: &Path,
    validation: &api::Validation,
    offers: Offers,
    (expressions, messages): (&Compiler<'_>, &Compiler<'_>),
) {
    let (at, source) = (path.child("expression"), validation.expression.as_str());
    if source.trim().is_empty() {
        errors.push(Error::required(&at, "expression is not specified"));
    } else {
        expressions.check(errors, &at, (source, source), offers, &[Type::Bool]);
    }
    let text = |t: &Option<String>| t.clone().filter(|t| !t.is_empty());
    let empty = "must be non-empty if specified";
    if let Some(source) = text(&validation.message_expression) {
        let at = path.child("messageExpression");
        if source.trim().is_empty() {
            errors.push(Error::invalid(&at, source, empty));
        } else {
            let offers = Offers { authorizer: false, ..offers };
            messages.check(errors, &at, (&source, &source), offers, &[Type::String]);
        }
    }
    if let Some(message) = text(&validation.message) {
        let trimmed = message.trim();
        if trimmed.is_empty() {
            errors.push(Error::invalid(&path.child("message"), message, empty));
        } else if trimmed.contains(['\n', '\r']) {
            errors.push(Error::invalid(&path.child("message"), message, "must not contain line breaks"));
        }
    }
    if let Some(reason) = &validation.reason {
        validate::supported_value(errors, &path.child("reason"), reason, &REASONS);
    }
}

const ANNOTATIONS_MAX: usize = 20;
const ANNOTATION_EXPRESSION_MAX_BYTES: usize = 5 * 1024;

fn validate_annotations(
    errors: &mut ErrorList,
    path: &Path,
    annotations: &[api::AuditAnnotation],
    policy: &str,
    (compiler, offers): (&Compiler<'_>, Offers),
) {
    if annotations.len() > ANNOTATIONS_MAX {
        // The message shows upstream's internal Go type.
        let one = |a: &api::AuditAnnotation| {
            let (key, expression) = (Value::from(a.key.as_str()), Value::from(a.value_expression.as_str()));
            format!(r#"{{"Key":{key},"ValueExpression":{expression}}}"#)
        };
        let text = format!("[{}]", annotations.iter().map(one).collect::<Vec<_>>().join(","));
        let problem = format!("must not have more than {ANNOTATIONS_MAX} auditAnnotations");
        errors.push(validate::invalid_text(path, &text, &problem));
    }
    let mut seen = BTreeSet::new();
    for (i, annotation) in annotations.iter().enumerate() {
        let path = path.index(i);
        let (at, key) = (path.child("key"), annotation.key.as_str());
        if policy.is_empty() {
            errors.push(Error::invalid(&at, key, "requires metadata.name be non-empty"));
        } else {
            validate::label_key(errors, &at, &format!("{policy}/{key}"));
        }
        let (of_value, expression) = (path.child("valueExpression"), annotation.value_expression.trim());
        if expression.is_empty() {
            errors.push(Error::required(&of_value, "valueExpression is not specified"));
        } else if expression.len() > ANNOTATION_EXPRESSION_MAX_BYTES {
            let problem = format!("must not exceed {ANNOTATION_EXPRESSION_MAX_BYTES} bytes in length");
            errors.push(Error::required(&of_value, problem));
        } else {
            let shown = annotation.value_expression.as_str();
            compiler.check(errors, &of_value, (expression, shown), offers, &[Type::String, Type::Null]);
        }
        if !seen.insert(key) {
            errors.push(Error::duplicate(&at, key));
        }
    }
}

fn validate_status(policy: &api::ValidatingAdmissionPolicy) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("status");
    let Some(status) = &policy.status else { return errors };
    let warnings = status.type_checking.iter().flat_map(|t| t.expression_warnings.iter().flatten());
    for (i, warning) in warnings.enumerate() {
        let path = path.child("typeChecking").child("expressionWarnings").index(i);
        validate::required(&mut errors, &path.child("warning"), &warning.warning);
        let (at, place) = (path.child("fieldRef"), warning.field_ref.trim());
        if validate::required(&mut errors, &at, place)
            && let Err(problem) = JsonPath::parse(place)
        {
            errors.push(Error::invalid(&at, place, problem.to_string()));
        }
    }
    let listed = status.conditions.as_deref().unwrap_or_default();
    conditions::validate(&mut errors, &path.child("conditions"), listed);
    errors
}
