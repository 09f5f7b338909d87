//! ValidatingAdmissionWebhook: all webhooks are called concurrently; the first refusal is the answer.

use async_trait::async_trait;
use futures_util::future::join_all;
use knarr_api::admissionregistration::validatingwebhookconfiguration;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::configurations::{Configurations, Hook};
use super::matching;
use super::{Failure, call, closed, concerned};
use crate::Context;
use crate::config::AdmissionConfig;
use crate::matching::Invocation;
use crate::matching::presented;
use crate::{Attributes, Operation, Plugin};

pub struct ValidatingAdmissionWebhook {
    configurations: Configurations,
}

impl ValidatingAdmissionWebhook {
    pub fn new(settings: &AdmissionConfig) -> Result<Self, String> {
        let users = settings.validating_webhook_users.clone();
        let folder = &settings.manifests.validating_webhooks;
        let configurations =
            Configurations::new(&validatingwebhookconfiguration::RESOURCE, users, folder.as_deref())?;
        Ok(Self { configurations })
    }
}

#[async_trait]
impl Plugin for ValidatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionWebhook"
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let hooks = self.configurations.hooks(concerned(attributes), attributes.request, context)?;
        if hooks.is_empty() {
            return Ok(());
        }
        let object = presented(attributes, &attributes.object);
        let mut relevant = Vec::new();
        for hook in hooks.iter() {
            if let Some(invocation) = matching::invocation(hook, attributes, &object, context).await? {
                relevant.push((hook, invocation));
            }
        }
        if relevant.is_empty() {
            return Ok(());
        }
        let old = presented(attributes, attributes.old.unwrap_or(&Value::Null));
        let calls = relevant.iter().enumerate().map(|(index, (hook, invocation))| {
            one(index, hook, invocation, attributes, (&object, &old), context)
        });
        join_all(calls).await.into_iter().find(Result::is_err).unwrap_or(Ok(()))
    }
}

async fn one(
    index: usize,
    hook: &Hook,
    invocation: &Invocation,
    attributes: &Attributes<'_>,
    objects: (&Value, &Value),
    context: &Context<'_>,
) -> Result<(), StatusError> {
    let started = context.registry.clock.monotonic();
    let outcome = call::ask(hook, invocation, attributes, objects, false, context).await;
    let took = context.registry.clock.monotonic().saturating_sub(started);
    call::observe(hook, "validating", attributes, &outcome, took, context);
    match outcome {
        Ok(_) => Ok(()),
        Err(Failure::Rejected(status) | Failure::Internal(status)) => Err(status),
        Err(Failure::Calling { why, .. }) if !hook.ignores_failures => Err(closed(&hook.name, &why)),
        Err(Failure::Calling { why, .. }) => {
            tracing::warn!(webhook = hook.name, why, "failed calling webhook, failing open");
            let key = format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}");
            attributes.annotate(key, hook.name.clone());
            Ok(())
        }
    }
}
