//! NamespaceLifecycle: refuses creates in a namespace that is missing or terminating, and deletions of the default
//! namespaces.

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;

use super::{Attributes, Operation, Plugin};
use crate::Context;
use knarr_registry::{metadata, store};

pub struct NamespaceLifecycle;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation != Operation::Connect
    }

    async fn mutate(
        &self,
        attributes: &mut Attributes<'_>,
        context: &Context<'_>,
    ) -> Result<(), StatusError> {
        let is_namespace = attributes.resource.group.is_empty() && attributes.resource.plural == "namespaces";
        if is_namespace {
            if attributes.operation == Operation::Delete && IMMORTAL.contains(&attributes.name) {
                return Err(attributes.forbidden("this namespace may not be deleted"));
            }
            return Ok(());
        }
        if attributes.namespace.is_empty()
            || attributes.operation != Operation::Create
            || attributes.resource.group == "authorization.k8s.io"
        {
            return Ok(());
        }
        let Some(namespaces) = context.registry.table.find("", "v1", "namespaces") else { return Ok(()) };
        let phase = match namespaces.cache()?.get(attributes.namespace) {
            Some(held) => held.header().field("status.phase").map(str::to_owned),
            // The cache may not contain a namespace that was created a moment ago.
            None => match store::read(context.registry, &namespaces, "", attributes.namespace).await? {
                Some(current) => current.object.header().field("status.phase").map(str::to_owned),
                None => {
                    let resource = GroupResource::new("", "namespaces");
                    return Err(StatusError::not_found(&resource, attributes.namespace));
                }
            },
        };
        if phase.as_deref() == Some("Terminating") {
            return Err(terminating(attributes));
        }
        Ok(())
    }
}

fn terminating(attributes: &Attributes<'_>) -> StatusError {
    let namespace = attributes.namespace;
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut error = attributes.forbidden(&why);
    let cause = StatusCause {
        reason: Some("NamespaceTerminating".into()),
        message: Some(format!("namespace {namespace} is being terminated")),
        field: Some("metadata.namespace".into()),
    };
    let details = error.0.details.get_or_insert_with(StatusDetails::default);
    details.causes = Some(vec![cause]);
    if details.name.is_none() {
        let name = metadata::text(&attributes.object, "name");
        details.name = (!name.is_empty()).then(|| name.to_owned());
    }
    error
}
