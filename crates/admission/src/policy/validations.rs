//! The evaluation of a validating policy for one object: decisions and audit annotations.

use knarr_api::admissionregistration::expressions::{Offers, declarations};
use knarr_api::admissionregistration::{validatingadmissionpolicy, validatingadmissionpolicybinding};
use knarr_api::resource::Resource;
use knarr_cel::{Budget, Type, Value};
use serde_json::Value as Json;

use super::definitions::Compiled;
use super::expression::{Expression, OutOfBudget, named};
use super::inputs::Inputs;
use super::variables::{Evaluated, Variables};
use crate::match_conditions::MatchConditions;

/// The compiled expressions of a validating policy.
pub struct Validations {
    pub conditions: MatchConditions,
    pub variables: Variables,
    pub list: Vec<Validation>,
    pub annotations: Vec<Annotation>,
}

pub struct Validation {
    pub expression: Expression,
    message: String,
    pub message_expression: Option<Expression>,
    reason: String,
}

pub struct Annotation {
    pub key: String,
    pub value: Expression,
}

/// Why an object is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The index of the validation.
    pub index: usize,
    pub message: String,
    /// The reason of the Status; `Invalid` if it is empty.
    pub reason: String,
}

/// The result of a policy.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub denials: Vec<Denial>,
    /// Denials because of audit annotations that could not be evaluated; no binding's action softens these.
    pub failed_annotations: Vec<String>,
    /// Errors that the failure policy ignores.
    pub ignored: Vec<String>,
    pub annotations: Vec<(String, String)>,
}

impl Compiled for Validations {
    const POLICIES: &'static Resource = &validatingadmissionpolicy::RESOURCE;
    const BINDINGS: &'static Resource = &validatingadmissionpolicybinding::RESOURCE;

    fn compile(spec: &Json) -> Self {
        let params = spec["paramKind"].is_object();
        let with = |authorizer| declarations(Offers { params, authorizer, patches: false }).stored();
        let (variables, composition) = Variables::compile(&named(&spec["variables"]), &with(true));
        let decls = composition.declare(with(true));
        let without_authorizer = composition.declare(with(false));
        let list = |field: &str| spec[field].as_array().into_iter().flatten();
        let text = |v: &Json, field: &str| v[field].as_str().unwrap_or("").to_owned();
        let validation = |v: &Json| Validation {
            expression: Expression::new(&text(v, "expression"), &decls, &[Type::Bool]),
            message: text(v, "message"),
            message_expression: v["messageExpression"]
                .as_str()
                .filter(|e| !e.is_empty())
                .map(|e| Expression::new(e, &without_authorizer, &[Type::String])),
            reason: text(v, "reason"),
        };
        let annotation = |v: &Json| Annotation {
            key: text(v, "key"),
            value: Expression::new(&text(v, "valueExpression"), &decls, &[Type::String, Type::Null]),
        };
        Self {
            conditions: MatchConditions::within(&named(&spec["matchConditions"]), &with(true)),
            list: list("validations").map(validation).collect(),
            annotations: list("auditAnnotations").map(annotation).collect(),
            variables,
        }
    }
}

impl Validations {
    /// Evaluates the policy for an object; `ignores` is whether the failure policy is Ignore.
    pub fn look(&self, inputs: &Inputs<'_>, ignores: bool) -> Outcome {
        let failed = |message: String| {
            let mut outcome = Outcome::default();
            outcome.fail(0, message, ignores);
            outcome
        };
        match self.conditions.hold(&inputs.without_namespace()) {
            Ok(true) => {}
            Ok(false) => return Outcome::default(),
            Err(why) => return failed(why),
        }
        let mut budget = Budget::default();
        let results = match self.evaluate(inputs, self.list.iter().map(|v| Some(&v.expression)), &mut budget)
        {
            Ok(results) => results,
            Err(spent) => return failed(spent.to_string()),
        };
        let own = inputs.without_authorizer();
        let messages = self.list.iter().map(|v| v.message_expression.as_ref());
        let messages = self.evaluate(&own, messages, &mut budget);
        let mut outcome = Outcome::default();
        for (index, (validation, result)) in self.list.iter().zip(results).enumerate() {
            match (result, &messages) {
                (Some(Err(why)), _) => outcome.fail(index, why, ignores),
                (_, Err(spent)) => {
                    outcome.fail(index, format!("failed messageExpression: {spent}"), ignores);
                }
                (Some(Ok(Value::Bool(true))), _) => {}
                (_, Ok(messages)) => {
                    let own = messages.get(index).and_then(Option::as_ref);
                    let own = own.and_then(|m| m.as_ref().ok()).and_then(Value::as_str);
                    let message = validation.message(own.unwrap_or(""));
                    outcome.denials.push(Denial { index, message, reason: validation.reason.clone() });
                }
            }
        }
        let annotations = self.annotations.iter().map(|a| Some(&a.value));
        let values = match self.evaluate(&own, annotations, &mut Budget::default()) {
            Ok(values) => values,
            Err(spent) => return failed(spent.to_string()),
        };
        for (annotation, value) in self.annotations.iter().zip(values) {
            match value {
                Some(Ok(Value::String(value))) if !value.trim().is_empty() => {
                    outcome.annotations.push((annotation.key.clone(), value.trim().to_owned()));
                }
                Some(Err(why)) if !ignores => outcome.failed_annotations.push(why),
                _ => {}
            }
        }
        outcome
    }

    /// Evaluates expressions one after the other; `None` for absent ones.
    fn evaluate<'c, 'v>(
        &'c self,
        inputs: &Inputs<'v>,
        expressions: impl Iterator<Item = Option<&'c Expression>>,
        budget: &mut Budget<'_>,
    ) -> Result<Vec<Option<Result<Value<'v>, String>>>, OutOfBudget> {
        let variables = Evaluated::new(&self.variables, inputs);
        let activation = inputs.activation().with_lazy("variables", &variables);
        let one = |e: Option<&Expression>| e.map(|e| e.evaluate(&activation, budget)).transpose();
        expressions.map(one).collect()
    }
}

impl Outcome {
    fn fail(&mut self, index: usize, message: String, ignores: bool) {
        if ignores {
            self.ignored.push(message);
        } else {
            self.denials.push(Denial { index, message, reason: String::new() });
        }
    }
}

impl Validation {
    /// Returns the message: the result of `messageExpression` if it is valid, else the fixed message, else the
    /// expression.
    fn message(&self, own: &str) -> String {
        let own = own.trim();
        let fit = own.len() <= knarr_cel::budget::MESSAGE_LIMIT && !own.contains('\n');
        let fixed = self.message.trim();
        match (own, fixed) {
            (own, _) if fit && !own.is_empty() => own.to_owned(),
            (_, fixed) if !fixed.is_empty() => fixed.to_owned(),
            _ => format!("failed expression: {}", self.expression.text.trim()),
        }
    }
}
