//! MutatingAdmissionWebhook: webhooks are called one after the other; each receives the object as the previous ones
//! changed it.

use async_trait::async_trait;
use knarr_api::admissionregistration::mutatingwebhookconfiguration;
use knarr_apimachinery::patch::json_patch;
use knarr_apimachinery::schema::validate as schema;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::configurations::{Configurations, Hook};
use super::matching;
use super::review::Verdict;
use super::{Failure, call, closed, concerned};
use crate::Context;
use crate::config::AdmissionConfig;
use crate::matching::Invocation;
use crate::matching::{presented, versions, whole};
use crate::{Attributes, Operation, Plugin, Reinvocation};

pub struct MutatingAdmissionWebhook {
    configurations: Configurations,
}

const NAME: &str = "MutatingAdmissionWebhook";

impl MutatingAdmissionWebhook {
    pub fn new(settings: &AdmissionConfig) -> Result<Self, String> {
        let (users, folder) =
            (settings.mutating_webhook_users.clone(), &settings.manifests.mutating_webhooks);
        let configurations =
            Configurations::new(&mutatingwebhookconfiguration::RESOURCE, users, folder.as_deref())?;
        Ok(Self { configurations })
    }
}

#[async_trait]
impl Plugin for MutatingAdmissionWebhook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        let hooks = self.configurations.hooks(concerned(attributes), attributes.request, context)?;
        if hooks.is_empty() {
            return Ok(());
        }
        let mut memory = attributes.reinvocations.remove(NAME).unwrap_or_default();
        memory.begin(attributes.reinvoking, &attributes.object);
        let mut done = Ok(());
        for (index, hook) in hooks.iter().enumerate() {
            done = one(index, hook, attributes, &mut memory, context).await;
            if done.is_err() {
                break;
            }
        }
        memory.end(&attributes.object);
        attributes.reinvocations.insert(NAME, memory);
        done
    }
}

async fn one(
    index: usize,
    hook: &Hook,
    attributes: &mut Attributes<'_>,
    memory: &mut Reinvocation,
    context: &Context<'_>,
) -> Result<(), StatusError> {
    let object = presented(attributes, &attributes.object);
    let Some(invocation) = matching::invocation(hook, attributes, &object, context).await? else {
        return Ok(());
    };
    // The second round calls no webhook for the first time.
    if attributes.reinvoking && !memory.is_wanted(&hook.uid) {
        return Ok(());
    }
    let started = context.registry.clock.monotonic();
    let old = presented(attributes, attributes.old.unwrap_or(&Value::Null));
    let asked = call::ask(hook, &invocation, attributes, (&object, &old), true, context).await;
    let outcome = match asked {
        Ok(verdict) => changed(hook, &invocation, attributes, &object, &verdict, context).await,
        Err(failure) => Err(failure),
    };
    let took = context.registry.clock.monotonic().saturating_sub(started);
    call::observe(hook, "admit", attributes, &outcome, took, context);
    let at = format!("round_{}_index_{index}", u8::from(attributes.reinvoking));
    let mutated = matches!(outcome, Ok(Some(_)));
    let note = json!({"configuration": hook.configuration, "webhook": hook.name, "mutated": mutated});
    attributes.annotate(format!("mutation.webhook.admission.k8s.io/{at}"), note.to_string());
    if mutated {
        memory.require();
        attributes.reinvoke = true;
    }
    if hook.reinvoke {
        memory.note(&hook.uid);
    }
    match outcome {
        Ok(Some(new)) => attributes.object = new,
        Ok(None) => {}
        Err(Failure::Rejected(status) | Failure::Internal(status)) => return Err(status),
        Err(Failure::Calling { why, .. }) if !hook.ignores_failures => return Err(closed(&hook.name, &why)),
        Err(Failure::Calling { why, .. }) => {
            tracing::warn!(webhook = hook.name, why, "failed calling webhook, failing open");
            let key = format!("failed-open.mutation.webhook.admission.k8s.io/{at}");
            attributes.annotate(key, hook.name.clone());
        }
    }
    Ok(())
}

/// Returns the whole object after the webhook's patch; `None` if it is unchanged.
async fn changed(
    hook: &Hook,
    invocation: &Invocation,
    attributes: &Attributes<'_>,
    object: &Value,
    verdict: &Verdict,
    context: &Context<'_>,
) -> Result<Option<Value>, Failure> {
    if verdict.patch.is_empty() {
        return Ok(None);
    }
    let patch: Value = serde_json::from_slice(&verdict.patch)
        .map_err(|e| Failure::calling(format!("received undecodable patch in webhook response: {e}"), 503))?;
    if patch.as_array().is_some_and(Vec::is_empty) {
        return Ok(None);
    }
    if object.is_null() {
        let why = format!(
            "admission webhook \"{}\" attempted to modify the object, which is not supported for this operation",
            hook.name
        );
        return Err(Failure::Internal(StatusError::internal(why)));
    }
    if verdict.patch_type != "JSONPatch" {
        return Err(Failure::calling(format!("unsupported patch type {:?}", verdict.patch_type), 400));
    }
    let shown = versions::shown(object, invocation, attributes, context).await.map_err(Failure::Internal)?;
    let patched =
        json_patch::apply(&shown, &patch).map_err(|e| Failure::Internal(StatusError::internal(e)))?;
    let new = read(patched, invocation).map_err(Failure::Internal)?;
    let new = versions::returned(new, invocation, attributes, context).await.map_err(Failure::Internal)?;
    let new = whole(attributes, new);
    Ok((new != attributes.object).then_some(new))
}

/// Decodes a patched object like a body.
fn read(patched: Value, invocation: &Invocation) -> Result<Value, StatusError> {
    if knarr_apimachinery::schema::for_kind(&invocation.kind).is_none() {
        return Ok(patched);
    }
    let text = knarr_wire::output::to_json(&patched);
    let decoded = schema::decode_request(&text, &invocation.kind, false);
    decoded.map(|d| d.value).map_err(|e| StatusError::internal(e.message()))
}
