//! Decides whether a webhook applies to a request, and in which version it receives the request.

use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::configurations::Hook;
use crate::matching::{
    Invocation, Rule, by_rules, in_selected_namespace, object_selected, presented, versions,
};
use crate::{Attributes, Context};

/// Returns how the webhook is to be called; `None` if it does not apply. `object` is what it would receive, before
/// any conversion.
pub async fn invocation(
    hook: &Hook,
    attributes: &Attributes<'_>,
    object: &Value,
    context: &Context<'_>,
) -> Result<Option<Invocation>, StatusError> {
    let namespace = in_selected_namespace(&hook.namespaces, attributes, context).await;
    if matches!(namespace, Ok(false)) {
        return Ok(None);
    }
    let selected = object_selected(&hook.objects, attributes, object);
    if matches!(selected, Ok(false)) {
        return Ok(None);
    }
    let rules: Vec<&Rule> = hook.rules.iter().collect();
    let Some(invocation) = by_rules(&rules, hook.exact, attributes, context) else { return Ok(None) };
    // These errors are checked last, so that a request to which the webhook does not apply cannot fail because of it.
    namespace?;
    selected.map_err(StatusError::internal)?;
    let wanted = conditions_hold(hook, &invocation, attributes, object, context).await?;
    Ok(wanted.then_some(invocation))
}

/// Returns whether the webhook's `matchConditions` hold. If they cannot be evaluated, its failure policy decides: the
/// webhook is skipped, or the request refused.
async fn conditions_hold(
    hook: &Hook,
    invocation: &Invocation,
    attributes: &Attributes<'_>,
    object: &Value,
    context: &Context<'_>,
) -> Result<bool, StatusError> {
    if hook.conditions.is_empty() {
        return Ok(true);
    }
    let old = presented(attributes, attributes.old.unwrap_or(&Value::Null));
    let object = versions::shown(object, invocation, attributes, context).await?;
    let old = versions::shown(&old, invocation, attributes, context).await?;
    match hook.conditions.hold_for(attributes, invocation, (&object, &old), context).await {
        Ok(true) => Ok(true),
        Ok(false) => {
            let metrics = &context.metrics;
            metrics.match_condition_exclusion(&hook.name, "webhook", hook.sort, attributes.operation);
            Ok(false)
        }
        Err(_) if hook.ignores_failures => Ok(false),
        Err(why) => Err(attributes.forbidden(&why)),
    }
}
