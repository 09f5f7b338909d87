//! Converts objects to other groups and versions of the same resource, for webhooks that match only those.

use std::sync::Arc;

use knarr_api::object::Object;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::invocation::Invocation;
use crate::Attributes;
use crate::Context;
use knarr_registry::served::Served;

/// Returns the resources that serve the same stored objects.
pub fn equivalents(attributes: &Attributes<'_>, context: &Context<'_>) -> Vec<Arc<Served>> {
    let (own, stored) = (attributes.resource, attributes.served.stored.types);
    if !attributes.served.resource.is_stored() {
        return Vec::new();
    }
    let same = |s: &&Arc<Served>| {
        let custom = attributes.served.resource.custom().is_some()
            && (s.resource.types.group, s.resource.types.plural) == (own.group, own.plural);
        (s.stored.types == stored || custom) && s.resource.types != own
    };
    context.registry.table.snapshot().iter().filter(same).cloned().collect()
}

/// Returns the kind of a resource's objects, or of its subresource.
pub fn kind_of(served: &Served, subresource: &str) -> GroupVersionKind {
    match served.resource.subresource(subresource).and_then(|s| s.body) {
        Some((group, version, kind)) => GroupVersionKind::new(group, version, kind),
        None => served.resource.types.gvk(),
    }
}

/// Returns the resource of an invocation.
fn served_as(invocation: &Invocation, context: &Context<'_>) -> Result<Arc<Served>, StatusError> {
    let found = context.registry.table.find(&invocation.group, &invocation.version, &invocation.plural);
    found.ok_or_else(|| StatusError::internal("an equivalent resource is not served any more"))
}

/// Returns whether the webhook receives another version than the request's.
fn differs(invocation: &Invocation, attributes: &Attributes<'_>) -> bool {
    let own = attributes.resource;
    let same_kind = invocation.kind == attributes.kind();
    !same_kind && (invocation.group.as_str(), invocation.version.as_str()) != (own.group, own.version)
}

/// Converts an object by way of the stored form.
async fn convert(value: &Value, from: &Served, to: &Served) -> Result<Value, StatusError> {
    if value.is_null() {
        return Ok(Value::Null);
    }
    let stored = from.to_stored(value).await?;
    let held = Object::new(stored, &[]).map_err(StatusError::internal)?;
    let shown = to.show(&Arc::new(held)).await?;
    serde_json::from_slice(&shown.json()).map_err(StatusError::internal)
}

/// Returns an object of the request in the version for the webhook.
pub async fn shown(
    value: &Value,
    invocation: &Invocation,
    attributes: &Attributes<'_>,
    context: &Context<'_>,
) -> Result<Value, StatusError> {
    if !differs(invocation, attributes) {
        return Ok(value.clone());
    }
    convert(value, attributes.served, served_as(invocation, context)?.as_ref()).await
}

/// Converts an object from the webhook's version back to the request's.
pub async fn returned(
    value: Value,
    invocation: &Invocation,
    attributes: &Attributes<'_>,
    context: &Context<'_>,
) -> Result<Value, StatusError> {
    if !differs(invocation, attributes) {
        return Ok(value);
    }
    convert(&value, served_as(invocation, context)?.as_ref(), attributes.served).await
}
