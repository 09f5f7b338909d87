//! Authorization: the `system:masters` exemption, the Node authorizer, RBAC, webhooks.

mod attributes;
mod conditions;
pub mod config;
mod decision;
pub mod escalation;
pub mod node;
mod node_folders;
pub mod options;
mod pod_references;
pub mod policy;
pub mod rbac;
pub mod rules;
mod volume_secrets;
pub mod webhook;

use std::sync::Arc;

use async_trait::async_trait;
use knarr_apimachinery::clock::Clock;
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;

use crate::authn::{MASTERS, UserInfo};
use knarr_registry::Permissions;
use knarr_reload::Reloaded;
use knarr_wire::annotations::annotate;
use knarr_wire::metrics::{Metric, Metrics};
use knarr_wire::request::Request;

pub use attributes::Attributes;
pub use decision::Decision;

/// One authorizer of the chain.
pub enum Step {
    AlwaysAllow,
    AlwaysDeny,
    Node,
    Rbac,
    Webhook(Arc<webhook::Webhook>),
}

impl Step {
    /// Returns the kind and name for the metrics.
    fn labels(&self) -> (&str, &str) {
        match self {
            Self::AlwaysAllow => ("AlwaysAllow", "alwaysallow"),
            Self::AlwaysDeny => ("AlwaysDeny", "alwaysdeny"),
            Self::Node => ("Node", "node"),
            Self::Rbac => ("RBAC", "rbac"),
            Self::Webhook(webhook) => ("Webhook", &webhook.settings.name),
        }
    }
}

/// The ordered authorizers, after the exemption of `system:masters`.
pub struct Authorizer {
    pub rbac: rbac::Rbac,
    pub node: node::NodeAuthorizer,
    pub steps: Reloaded<Vec<Step>>,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
}

impl Authorizer {
    pub async fn authorize(&self, user: &UserInfo, attributes: &Attributes) -> Decision {
        if user.in_group(MASTERS) {
            return Decision::Allowed { reason: String::new() };
        }
        let mut reasons = Vec::new();
        for step in self.steps.get(&*self.clock).iter() {
            let decision = match step {
                Step::AlwaysAllow => Decision::Allowed { reason: String::new() },
                Step::AlwaysDeny => Decision::NoOpinion { reason: "Everything is forbidden.".into() },
                Step::Node => self.node.authorize(user, attributes),
                Step::Rbac => self.rbac.authorize(user, attributes),
                Step::Webhook(webhook) => webhook.authorize(user, attributes, &*self.clock).await,
            };
            match decision {
                Decision::NoOpinion { reason } if !reason.is_empty() => {
                    reasons.push(format!("{}: {reason}", step.labels().1));
                }
                Decision::NoOpinion { .. } => {}
                terminal => {
                    let (kind, name) = step.labels();
                    self.metrics.increment(Metric::AuthorizationDecisions, &[terminal.word(), name, kind]);
                    return terminal;
                }
            }
        }
        Decision::NoOpinion { reason: reasons.join("\n") }
    }

    /// Authorizes like `authorize`, but returns a refusal as the 403 for the client.
    pub async fn check(&self, user: &UserInfo, attributes: &Attributes) -> Result<(), StatusError> {
        match self.authorize(user, attributes).await {
            Decision::Allowed { .. } => Ok(()),
            Decision::Denied { reason } | Decision::NoOpinion { reason } => {
                Err(forbidden(user, attributes, &reason))
            }
        }
    }

    /// Checks a client's own request to this path, and records the decision in the audit log and metrics.
    pub async fn check_request(
        &self,
        user: &UserInfo,
        attributes: &Attributes,
        path: &str,
    ) -> Result<(), StatusError> {
        let started = self.clock.monotonic();
        let narrower = match node_folders::narrower(attributes, path) {
            Some(narrower) => Some(self.authorize(user, &narrower).await).filter(Decision::is_allowed),
            None => None,
        };
        let decision = match narrower {
            Some(allowed) => allowed,
            None => self.authorize(user, attributes).await,
        };
        let took = self.clock.monotonic().saturating_sub(started).as_secs_f64();
        self.metrics.increment(Metric::AuthorizationAttempts, &[decision.word()]);
        self.metrics.record(Metric::AuthorizationDuration, &[decision.word()], took);
        let allowed = decision.is_allowed();
        annotate("authorization.k8s.io/decision", if allowed { "allow" } else { "forbid" });
        annotate("authorization.k8s.io/reason", decision.reason());
        if allowed { Ok(()) } else { Err(forbidden(user, attributes, decision.reason())) }
    }
}

#[async_trait]
impl Permissions for Authorizer {
    async fn check_verb(&self, request: &Request, verb: &str) -> Result<(), StatusError> {
        let mut attributes = Attributes::of_request(&request.info, &request.query);
        attributes.verb = verb.to_owned();
        self.check(&request.user, &attributes).await
    }
}

/// Returns a refusal such as `pods "x" is forbidden: User "u" cannot get resource "pods" in API group "" in the
/// namespace "default"`.
pub fn forbidden(user: &UserInfo, attributes: &Attributes, reason: &str) -> StatusError {
    let mut why = format!("User \"{}\" cannot {} ", user.name, attributes.verb);
    if attributes.is_resource() {
        let place = if attributes.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{}\"", attributes.namespace)
        };
        why.push_str(&format!(
            "resource \"{}\" in API group \"{}\" {place}",
            attributes.full_resource(),
            attributes.group
        ));
    } else {
        why.push_str(&format!("path \"{}\"", attributes.path));
    }
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    if attributes.is_resource() {
        let resource = GroupResource::new(&attributes.group, &attributes.resource);
        StatusError::forbidden(&resource, &attributes.name, &why)
    } else {
        let mut error = StatusError::new(403, "Forbidden", format!("forbidden: {why}"));
        error.0.details = Some(Default::default());
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_as_upstreams() {
        let user = UserInfo::new("jane", &[]);
        let mut attributes = Attributes {
            verb: "list".into(),
            resource: "pods".into(),
            namespace: "default".into(),
            ..Attributes::default()
        };
        assert_eq!(
            forbidden(&user, &attributes, "").message(),
            "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
        );
        attributes.verb = "get".into();
        attributes.group = "apps".into();
        attributes.resource = "deployments".into();
        attributes.subresource = "scale".into();
        attributes.name = "d".into();
        attributes.namespace = String::new();
        assert_eq!(
            forbidden(&user, &attributes, "").message(),
            "deployments.apps \"d\" is forbidden: User \"jane\" cannot get resource \"deployments/scale\" in API group \"apps\" at the cluster scope"
        );
        let path = Attributes { verb: "get".into(), path: "/metrics".into(), ..Attributes::default() };
        assert_eq!(
            forbidden(&user, &path, "").message(),
            "forbidden: User \"jane\" cannot get path \"/metrics\""
        );
    }
}
