//! ResourceQuota: limits what a namespace may use; usage is charged when an object is written.

use std::collections::BTreeMap;

use async_trait::async_trait;
use knarr_api::quota::{self, Amounts, Charge, Evaluator, Refusal, check};
use knarr_apimachinery::status::StatusError;
use serde_json::{Map, Value};

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;
use knarr_registry::update;

pub struct ResourceQuota;

const QUOTAS: (&str, &str, &str) = ("", "v1", "resourcequotas");

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let types = attributes.resource;
        if attributes.namespace.is_empty() || (types.group.is_empty() && types.plural == "namespaces") {
            return Ok(());
        }
        let Some(evaluator) = Evaluator::of(types.group, types.plural) else { return Ok(()) };
        let limited = &context.settings.limited_resources;
        let quotas = lookup::list_whole((attributes.request, context), QUOTAS, Some(attributes.namespace))?;
        if quotas.is_empty() && limited.is_empty() {
            return Ok(());
        }
        let charge = Charge {
            evaluator: &evaluator,
            group: types.group,
            resource: types.plural,
            operation: match attributes.operation {
                Operation::Create => quota::Operation::Create,
                _ => quota::Operation::Update,
            },
            subresource: attributes.subresource,
            new: &attributes.object,
            old: attributes.old,
            now: context.registry.clock.now(),
        };
        // All cached quotas must allow the write before any of them is charged.
        let all: Vec<&Value> = quotas.iter().collect();
        let changed = check(&all, &charge, limited).map_err(|r| refused(attributes, r))?;
        for index in changed.into_keys() {
            if let Some(quota) = quotas.get(index) {
                let name = quota["metadata"]["name"].as_str().unwrap_or("");
                charge_one(attributes, context, name, &charge).await?;
            }
        }
        Ok(())
    }
}

fn refused(attributes: &Attributes<'_>, refusal: Refusal) -> StatusError {
    match refusal {
        Refusal::Forbidden(why) => attributes.forbidden(&why),
        Refusal::Other(why) => StatusError::internal(why),
    }
}

/// Charges one quota in the store by compare-and-swap, so that concurrent writers cannot both take the remaining
/// amount. A dry run checks the same state without changing it.
async fn charge_one(
    attributes: &Attributes<'_>,
    context: &Context<'_>,
    name: &str,
    charge: &Charge<'_>,
) -> Result<(), StatusError> {
    let Some(served) = context.registry.table.find(QUOTAS.0, QUOTAS.1, QUOTAS.2) else { return Ok(()) };
    let change = |current: Value| {
        let used = check(&[&current], charge, &[]).map_err(|r| refused(attributes, r))?;
        Ok(with_used(&current, &used))
    };
    let (namespace, dry_run) = (attributes.namespace, attributes.dry_run);
    match update::modify_raw(context.registry, &served, namespace, name, dry_run, &change).await {
        // A quota that was deleted in the meantime limits nothing.
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map(|_| ()),
    }
}

fn with_used(quota: &Value, used: &BTreeMap<usize, Amounts>) -> Value {
    let mut quota = quota.clone();
    if let Some(used) = used.get(&0) {
        let used: Map<String, Value> = used.iter().map(|(n, a)| (n.clone(), a.to_string().into())).collect();
        quota["status"]["used"] = Value::Object(used);
    }
    quota
}
