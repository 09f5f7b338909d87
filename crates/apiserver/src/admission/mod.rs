//! Admission: plugins that look at, change or refuse a write before it is stored. One file each, one line in a list.

pub mod certificates;
pub mod default_toleration_seconds;
pub mod escalation;
pub mod namespace_lifecycle;
pub mod node_restriction;
pub mod priority;
pub mod service_account;
pub mod taint_nodes_by_condition;

use async_trait::async_trait;
use knarr_api::kind::ResourceType;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use crate::authn::UserInfo;
use crate::server::Inner;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    /// Exec, attach, port-forward, proxy.
    Connect,
}

/// The write that is to be admitted.
pub struct Attributes<'a> {
    pub user: &'a UserInfo,
    pub operation: Operation,
    pub resource: ResourceType,
    pub subresource: &'a str,
    pub namespace: &'a str,
    /// Empty on a create with a generated name.
    pub name: &'a str,
    /// `Null` on a delete.
    pub object: Value,
    pub old: Option<&'a Value>,
    pub warnings: Vec<String>,
}

impl Attributes<'_> {
    /// Whether it is about this resource itself.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_empty() && self.resource.group == group && self.resource.plural == plural
    }

    pub fn group_resource(&self) -> GroupResource {
        self.resource.group_resource()
    }

    /// 403 in the words of a refusal by admission.
    pub fn forbidden(&self, why: &str) -> StatusError {
        let own = self.object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
        let name = if self.name.is_empty() { own } else { self.name };
        StatusError::forbidden(&self.group_resource(), name, why)
    }
}

/// One admission plugin.
#[async_trait]
pub trait Plugin: Send + Sync {
    fn handles(&self, operation: Operation) -> bool;

    /// Changes the object; runs for all plugins before any validates.
    async fn mutate(&self, _attributes: &mut Attributes<'_>, _server: &Inner) -> Result<(), StatusError> {
        Ok(())
    }

    /// Refuses, or does not.
    async fn validate(&self, _attributes: &Attributes<'_>, _server: &Inner) -> Result<(), StatusError> {
        Ok(())
    }
}

/// All plugins, in upstream's order.
pub const PLUGINS: &[&dyn Plugin] = &[
    &namespace_lifecycle::NamespaceLifecycle,
    &service_account::ServiceAccount,
    &node_restriction::NodeRestriction,
    &taint_nodes_by_condition::TaintNodesByCondition,
    &priority::Priority,
    &default_toleration_seconds::DefaultTolerationSeconds,
    &certificates::CertificateRequestor,
    &certificates::CertificateApproval,
    &certificates::CertificateSigning,
    &certificates::CertificateSubjectRestriction,
    &escalation::Escalation,
];

pub async fn mutate(attributes: &mut Attributes<'_>, server: &Inner) -> Result<(), StatusError> {
    let operation = attributes.operation;
    for plugin in PLUGINS.iter().filter(|p| p.handles(operation)) {
        plugin.mutate(attributes, server).await?;
    }
    Ok(())
}

pub async fn validate(attributes: &Attributes<'_>, server: &Inner) -> Result<(), StatusError> {
    for plugin in PLUGINS.iter().filter(|p| p.handles(attributes.operation)) {
        plugin.validate(attributes, server).await?;
    }
    Ok(())
}
