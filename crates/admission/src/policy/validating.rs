//! ValidatingAdmissionPolicy: every bound policy that matches is evaluated; the first denial is the answer.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusCause;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::definitions::{Binding, Bound, Policies};
use super::inputs::{self, Inputs};
use super::params;
use super::questions::Questions;
use super::validations::{Outcome, Validations};
use crate::Context;
use crate::config::AdmissionConfig;
use crate::matching::{Invocation, concerned_policies, presented, versions};
use crate::{Attributes, Operation, Plugin};
use knarr_registry::served::Served;

pub struct ValidatingAdmissionPolicy {
    policies: Policies<Validations>,
}

/// The maximum length of an audit annotation's value, and of the failures that one annotation lists, in bytes.
const LONGEST_ANNOTATION: usize = 10 * 1024;
const MOST_FAILURES: usize = 50;

impl ValidatingAdmissionPolicy {
    pub fn new(settings: &AdmissionConfig) -> Result<Self, String> {
        Ok(Self { policies: Policies::new(settings.manifests.validating_policies.as_deref())? })
    }
}

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let bound = self.policies.bound(concerned_policies(attributes), attributes.request, context)?;
        if bound.is_empty() {
            return Ok(());
        }
        let whole = presented(attributes, &attributes.object);
        let old = presented(attributes, attributes.old.unwrap_or(&Value::Null));
        let questions = Questions::new();
        let verdict = Verdict::default();
        let mut review = Review { attributes, context, object: whole, old, questions, verdict };
        for bound in bound.iter() {
            review.policy(bound).await?;
        }
        review.verdict.answer(attributes)
    }
}

/// One request, for all policies.
struct Review<'r, 'a> {
    attributes: &'r Attributes<'a>,
    context: &'r Context<'r>,
    object: Value,
    old: Value,
    questions: Arc<Questions>,
    verdict: Verdict,
}

/// The results of all policies.
#[derive(Default)]
struct Verdict {
    /// Messages and reasons; the client gets the first one.
    denials: Vec<(String, String)>,
    failures: Vec<Value>,
}

impl Review<'_, '_> {
    async fn policy(&mut self, bound: &Bound<Validations>) -> Result<(), StatusError> {
        let policy = &bound.policy;
        let found = policy.constraints.invocation(self.attributes, &self.object, self.context).await;
        let invocation = match found {
            Ok(Some(invocation)) => invocation,
            Ok(None) => return Ok(()),
            Err(error) => {
                if !policy.ignores_failures {
                    let why = format!("failed to configure policy: {}", error.message());
                    self.verdict.deny_policy(&policy.name, &why);
                }
                return Ok(());
            }
        };
        let params = match policy.param_kind.as_ref().map(|kind| kind.resource(self.context)).transpose() {
            Ok(params) => params,
            Err(why) => {
                if !policy.ignores_failures {
                    self.verdict.deny_policy(&policy.name, &format!("failed to configure policy: {why}"));
                }
                return Ok(());
            }
        };
        let mut annotations: Vec<(String, Vec<String>)> = Vec::new();
        for binding in &bound.bindings {
            let outcomes = match self.binding(bound, binding, params.as_deref(), &invocation).await {
                Ok(outcomes) => outcomes,
                Err(Misfit::Status(error)) => return Err(error),
                Err(Misfit::Configuration(why)) => {
                    if !policy.ignores_failures {
                        let why = format!("failed to configure binding: {why}");
                        self.verdict.deny(&policy.name, &binding.name, &why, "");
                    }
                    continue;
                }
            };
            for outcome in outcomes {
                self.verdict.take(&policy.name, binding, &outcome, self.attributes);
                self.count(&policy.name, binding, &outcome);
                for (key, value) in outcome.annotations {
                    collect(&mut annotations, key, value);
                }
            }
        }
        for (key, values) in annotations {
            self.attributes.annotate(format!("{}/{key}", policy.name), values.join(", "));
        }
        Ok(())
    }

    fn count(&self, policy: &str, binding: &Binding, outcome: &Outcome) {
        let metrics = &self.context.metrics;
        for denial in &outcome.denials {
            for action in &binding.actions {
                let why = Some(denial.message.as_str());
                metrics.validating_policy(policy, &binding.name, why, &action.to_lowercase());
            }
        }
        for why in &outcome.failed_annotations {
            metrics.validating_policy(policy, &binding.name, Some(why), "deny");
        }
        for why in &outcome.ignored {
            metrics.validating_policy(policy, &binding.name, Some(why), "allow");
        }
    }

    async fn binding(
        &self,
        bound: &Bound<Validations>,
        binding: &Binding,
        params: Option<&Served>,
        invocation: &Invocation,
    ) -> Result<Vec<Outcome>, Misfit> {
        let configuration = |e: StatusError| Misfit::Configuration(e.message().to_owned());
        if let Some(resources) = &binding.resources {
            let matches = resources.invocation(self.attributes, &self.object, self.context).await;
            if matches.map_err(configuration)?.is_none() {
                return Ok(Vec::new());
            }
        }
        let params = params::collect(params, binding.param_ref.as_ref(), self.attributes, self.context);
        let params = params.await.map_err(Misfit::Configuration)?;
        if params.is_empty() {
            return Ok(Vec::new());
        }
        let shown = |value| versions::shown(value, invocation, self.attributes, self.context);
        let convert = |e: StatusError| {
            Misfit::Configuration(format!("failed to convert object version: {}", e.message()))
        };
        let object = shown(&self.object).await.map_err(convert)?;
        let old = shown(&self.old).await.map_err(convert)?;
        let namespace = inputs::namespace(self.attributes, self.context).await.map_err(Misfit::Status)?;
        let request = inputs::request(self.attributes, invocation);
        let compiled: &Validations = &bound.policy.compiled;
        let ignores = bound.policy.ignores_failures;
        let mut outcomes = Vec::with_capacity(params.len());
        for params in &params {
            let inputs = Inputs {
                object: &object,
                old: &old,
                request: &request,
                namespace: &namespace,
                params,
                authorizer: Some(self.questions.clone()),
                about: inputs::about(self.attributes),
            };
            let look = || compiled.look(&inputs, ignores);
            outcomes.push(self.questions.settle(self.attributes, self.context, look).await);
        }
        Ok(outcomes)
    }
}

/// Why a binding could not be evaluated.
enum Misfit {
    /// An invalid configuration; the failure policy decides.
    Configuration(String),
    Status(StatusError),
}

fn collect(annotations: &mut Vec<(String, Vec<String>)>, key: String, mut value: String) {
    if value.len() > LONGEST_ANNOTATION {
        let end = (0..=LONGEST_ANNOTATION).rev().find(|n| value.is_char_boundary(*n)).unwrap_or(0);
        value.truncate(end);
    }
    match annotations.iter_mut().find(|(k, _)| *k == key) {
        Some((_, values)) if values.contains(&value) => {}
        Some((_, values)) => values.push(value),
        None => annotations.push((key, vec![value])),
    }
}

impl Verdict {
    fn deny(&mut self, policy: &str, binding: &str, why: &str, reason: &str) {
        let message =
            format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {why}");
        self.denials.push((message, reason.to_owned()));
    }

    fn deny_policy(&mut self, policy: &str, why: &str) {
        let message = format!("ValidatingAdmissionPolicy '{policy}' denied request: {why}");
        self.denials.push((message, String::new()));
    }

    /// Applies the actions of one binding to a policy's denials.
    fn take(&mut self, policy: &str, binding: &Binding, outcome: &Outcome, attributes: &Attributes<'_>) {
        for denial in &outcome.denials {
            for action in &binding.actions {
                match action.as_str() {
                    "Deny" => self.deny(policy, &binding.name, &denial.message, &denial.reason),
                    "Audit" => self.failures.push(json!({
                        "message": denial.message,
                        "policy": policy,
                        "binding": binding.name,
                        "expressionIndex": denial.index,
                        "validationActions": binding.actions,
                    })),
                    "Warn" => attributes.warn(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{}': {}",
                        binding.name, denial.message
                    )),
                    _ => {}
                }
            }
        }
        for why in &outcome.failed_annotations {
            self.deny(policy, &binding.name, why, "");
        }
    }

    fn answer(mut self, attributes: &Attributes<'_>) -> Result<(), StatusError> {
        if !self.failures.is_empty() {
            self.failures.truncate(MOST_FAILURES);
            let list = Value::Array(self.failures);
            attributes.annotate("validation.policy.admission.k8s.io/validation_failure", list.to_string());
        }
        let Some((message, reason)) = self.denials.into_iter().next() else { return Ok(()) };
        let mut error = attributes.forbidden(&message);
        let (code, reason) = match reason.as_str() {
            "Forbidden" => (403, "Forbidden"),
            "Unauthorized" => (401, "Unauthorized"),
            "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
            "" | "Invalid" => (422, "Invalid"),
            other => (422, other),
        };
        error.0.code = Some(code);
        error.0.reason = Some(reason.to_owned());
        let cause = StatusCause { message: Some(message), ..StatusCause::default() };
        error.0.details.get_or_insert_default().causes.get_or_insert_default().push(cause);
        Err(error)
    }
}
