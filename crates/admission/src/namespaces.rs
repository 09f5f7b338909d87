//! NamespaceExists and NamespaceAutoProvision: refuse writes to a missing namespace, or create the namespace.

use async_trait::async_trait;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;
use knarr_registry::own;

const NAMESPACES: (&str, &str, &str) = ("", "v1", "namespaces");

async fn is_missing(attributes: &Attributes<'_>, context: &Context<'_>) -> Result<bool, StatusError> {
    let is_namespace = attributes.resource.group.is_empty() && attributes.resource.plural == "namespaces";
    if attributes.namespace.is_empty() || is_namespace {
        return Ok(false);
    }
    Ok(lookup::find(context, NAMESPACES, "", attributes.namespace).await?.is_none())
}

pub struct NamespaceExists;

#[async_trait]
impl Plugin for NamespaceExists {
    fn name(&self) -> &'static str {
        "NamespaceExists"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation != Operation::Connect
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        if is_missing(attributes, context).await? {
            let resource = GroupResource::new("", "namespaces");
            return Err(StatusError::not_found(&resource, attributes.namespace));
        }
        Ok(())
    }
}

pub struct NamespaceAutoProvision;

#[async_trait]
impl Plugin for NamespaceAutoProvision {
    fn name(&self) -> &'static str {
        "NamespaceAutoProvision"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        if attributes.dry_run || !is_missing(attributes, context).await? {
            return Ok(());
        }
        own::ensure_namespace(context.registry, attributes.namespace)
            .await
            .map_err(|e| attributes.forbidden(e.message()))
    }
}
