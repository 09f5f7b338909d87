//! Priority: sets the priority of a pod or a pod group from its priority class.

use async_trait::async_trait;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;
use std::sync::Arc;

use super::{Attributes, Operation, Plugin};
use crate::Context;
use knarr_registry::store;

pub struct Priority;

const DEFAULT_POLICY: &str = "PreemptLowerPriority";

#[async_trait]
impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        let group = attributes.is("scheduling.k8s.io", "podgroups")
            && attributes.old.is_none()
            && context.features.is_on("GenericWorkload");
        if !group && !attributes.is("", "pods") {
            return Ok(());
        }
        if let Some(old) = attributes.old {
            // An update that omits these fields keeps them.
            for field in ["priority", "preemptionPolicy"] {
                let before = &old["spec"][field];
                if attributes.object["spec"][field].is_null() && !before.is_null() {
                    attributes.object["spec"][field] = before.clone();
                }
            }
            return Ok(());
        }
        let name = attributes.object["spec"]["priorityClassName"].as_str().unwrap_or("").to_owned();
        let class = if name.is_empty() {
            default_class(context)?
        } else {
            Some(named(attributes, context, &name).await?)
        };
        if group { apply_to_group(attributes, class.as_deref()) } else { apply(attributes, class.as_deref()) }
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if !attributes.is("scheduling.k8s.io", "priorityclasses")
            || attributes.object["globalDefault"] != true
        {
            return Ok(());
        }
        match default_class(context)? {
            Some(other) if other.metadata.name.as_deref() != Some(attributes.name) => {
                let other = other.metadata.name.as_deref().unwrap_or("");
                Err(attributes.forbidden(&format!(
                    "PriorityClass {other} is already marked as default. Only one default can exist"
                )))
            }
            _ => Ok(()),
        }
    }
}

fn apply(attributes: &mut Attributes<'_>, class: Option<&PriorityClass>) -> Result<(), StatusError> {
    let name = class.and_then(|c| c.metadata.name.clone()).unwrap_or_default();
    let value = class.and_then(|c| c.value).unwrap_or(0);
    let policy = class.and_then(|c| c.preemption_policy.clone()).unwrap_or_else(|| DEFAULT_POLICY.into());
    let spec = &attributes.object["spec"];
    if let Some(given) = spec["priority"].as_i64()
        && given != i64::from(value)
    {
        return Err(attributes.forbidden(&format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
        )));
    }
    if let Some(given) = spec["preemptionPolicy"].as_str()
        && given != policy
    {
        return Err(attributes.forbidden(&format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        )));
    }
    let spec = &mut attributes.object["spec"];
    if !name.is_empty() {
        spec["priorityClassName"] = name.into();
    }
    spec["priority"] = value.into();
    spec["preemptionPolicy"] = Value::from(policy);
    Ok(())
}

/// Sets the priority of a pod group. It has no preemption policy: that of its pods applies.
fn apply_to_group(attributes: &mut Attributes<'_>, class: Option<&PriorityClass>) -> Result<(), StatusError> {
    let value = class.and_then(|c| c.value).unwrap_or(0);
    if let Some(given) = attributes.object["spec"]["priority"].as_i64()
        && given != i64::from(value)
    {
        return Err(attributes.forbidden(&format!(
            "priority set in the pod group ({given}) must match the priority computed ({value}) based on the priority class set in the spec"
        )));
    }
    let spec = &mut attributes.object["spec"];
    if let Some(name) = class.and_then(|c| c.metadata.name.clone()) {
        spec["priorityClassName"] = name.into();
    }
    spec["priority"] = value.into();
    Ok(())
}

async fn named(
    attributes: &Attributes<'_>,
    context: &Context<'_>,
    name: &str,
) -> Result<Arc<PriorityClass>, StatusError> {
    if let Some(served) = context.registry.table.find("scheduling.k8s.io", "v1", "priorityclasses") {
        let held = match served.cache()?.get(name) {
            Some(held) => Some(held),
            None => store::read(context.registry, &served, "", name).await?.map(|c| c.object),
        };
        if let Some(class) = held.and_then(|o| o.typed::<PriorityClass>().ok()) {
            return Ok(class);
        }
    }
    Err(attributes.forbidden(&format!("no PriorityClass with name {name} was found")))
}

/// Returns the class of pods that name none; of several default classes the lowest, as upstream does.
fn default_class(context: &Context<'_>) -> Result<Option<Arc<PriorityClass>>, StatusError> {
    let Some(served) = context.registry.table.find("scheduling.k8s.io", "v1", "priorityclasses") else {
        return Ok(None);
    };
    let all = served.cache()?.list(None);
    let classes = all.iter().filter_map(|o| o.typed::<PriorityClass>().ok());
    Ok(classes.filter(|c| c.global_default == Some(true)).min_by_key(|c| c.value))
}
