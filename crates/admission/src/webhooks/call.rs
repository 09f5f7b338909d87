//! One call of one webhook: dry runs, request, response, metrics.

use std::time::Duration;

use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::Failure;
use super::configurations::Hook;
use super::review::{self, Verdict, Version};
use crate::Attributes;
use crate::Context;
use crate::matching::Invocation;
use crate::matching::versions;
use crate::metrics::WebhookCall;
use knarr_outgoing::webhook::Call;

/// The maximum timeout of a webhook, whatever its configuration sets.
const LONGEST: Duration = Duration::from_secs(30);

/// Calls the webhook, and adds its warnings and audit annotations to the request.
pub async fn ask(
    hook: &Hook,
    invocation: &Invocation,
    attributes: &Attributes<'_>,
    (object, old): (&Value, &Value),
    mutating: bool,
    context: &Context<'_>,
) -> Result<Verdict, Failure> {
    if attributes.dry_run {
        check_dry_run(hook)?;
    }
    let Some(version) = Version::choose(&hook.versions) else {
        let why = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        return Err(Failure::calling(why, 400));
    };
    let object = versions::shown(object, invocation, attributes, context).await.map_err(Failure::Internal)?;
    let old = versions::shown(old, invocation, attributes, context).await.map_err(Failure::Internal)?;
    let uid = uuid::Uuid::new_v4().to_string();
    let body = review::request(version, &uid, attributes, invocation, object, old);
    let target = hook.target.as_ref();
    let target = target.map_err(|why| Failure::calling(format!("could not get REST client: {why}"), 500))?;
    let call = Call::new(body.to_string().into(), hook.timeout.clamp(Duration::from_secs(1), LONGEST));
    let answer = context.registry.webhooks.post(context.registry, target, &call).await.map_err(|error| {
        let code = error.status().map_or(503, StatusError::code);
        Failure::calling(format!("failed to call webhook: {error}"), code)
    })?;
    let invalid = |why: String| Failure::calling(format!("received invalid webhook response: {why}"), 503);
    let answer: Value = serde_json::from_slice(&answer)
        .map_err(|e| Failure::calling(format!("failed to call webhook: {e}"), 503))?;
    let verdict = review::verdict(version, &uid, mutating, &answer).map_err(invalid)?;
    for (key, value) in &verdict.annotations {
        attributes.annotate(format!("{}/{key}", hook.name), value.clone());
    }
    verdict.warnings.iter().for_each(|w| attributes.warn(w.clone()));
    if verdict.allowed {
        return Ok(verdict);
    }
    Err(Failure::Rejected(review::denied(&hook.name, verdict.status)))
}

/// Refuses to call a webhook with side effects during a dry run.
fn check_dry_run(hook: &Hook) -> Result<(), Failure> {
    match hook.side_effects.as_str() {
        "None" | "NoneOnDryRun" => Ok(()),
        "" => Err(Failure::calling("Webhook SideEffects is nil", 400)),
        _ => {
            let why = format!("admission webhook \"{}\" does not support dry run", hook.name);
            Err(Failure::Internal(StatusError::bad_request(why)))
        }
    }
}

/// Records the metrics of a call.
pub fn observe<T>(
    hook: &Hook,
    type_: &'static str,
    attributes: &Attributes<'_>,
    outcome: &Result<T, Failure>,
    took: Duration,
    context: &Context<'_>,
) {
    let metrics = &context.metrics;
    let (code, rejected, error_type) = match outcome {
        Ok(_) => (200, false, ""),
        Err(Failure::Calling { code, .. }) => (*code, !hook.ignores_failures, "calling_webhook_error"),
        Err(Failure::Rejected(status)) => (status.code(), true, "no_error"),
        Err(Failure::Internal(_)) => (0, true, "apiserver_internal_error"),
    };
    let call = WebhookCall { name: &hook.name, type_, operation: attributes.operation, code, rejected, took };
    metrics.webhook(&call);
    if rejected {
        metrics.webhook_rejection(&call, error_type);
    } else if outcome.is_err() {
        metrics.webhook_fail_open(&hook.name, type_);
    }
}
