//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: programs of users' that look at, change or refuse writes.
//!
//! Source: `k8s.io/apiserver/pkg/admission/plugin/webhook`.

mod call;
mod configurations;
pub(super) mod matching;
mod mutating;
mod review;
mod validating;
pub(super) mod versions;

use knarr_apimachinery::status::StatusError;

use super::Attributes;

pub use configurations::{Configurations, Rule, selector};
pub use matching::Invocation;
pub use mutating::MutatingAdmissionWebhook;
pub(super) use mutating::{presented, whole};
pub use validating::ValidatingAdmissionWebhook;

/// The group of webhook configurations and policies.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// Which webhooks and policies have a say about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerned {
    All,
    /// Those of files alone: about what the others are made of, lest nobody can repair them.
    Manifests,
    /// Reviews that authentication and authorization need.
    None,
}

/// Of the webhooks. Source: upstream's `IsExemptAdmissionConfigurationResource`.
fn concerned(attributes: &Attributes<'_>) -> Concerned {
    match (attributes.resource.group, attributes.resource.plural) {
        (GROUP, "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => Concerned::Manifests,
        _ => concerned_policies(attributes),
    }
}

/// Of the policies, which may look at webhooks. Source: upstream's `admissionResources`.
pub(super) fn concerned_policies(attributes: &Attributes<'_>) -> Concerned {
    match (attributes.resource.group, attributes.resource.plural) {
        (
            GROUP,
            "mutatingadmissionpolicies"
            | "mutatingadmissionpolicybindings"
            | "validatingadmissionpolicies"
            | "validatingadmissionpolicybindings",
        ) => Concerned::Manifests,
        ("authentication.k8s.io", "selfsubjectreviews" | "tokenreviews") => Concerned::None,
        ("authorization.k8s.io", plural) if plural.ends_with("reviews") => Concerned::None,
        _ => Concerned::All,
    }
}

/// What became of a webhook's call.
enum Failure {
    /// It could not be called, or answered nonsense: the failure policy decides. The code is for the metrics.
    Calling { why: String, code: u16 },
    /// It said no.
    Rejected(StatusError),
    /// We failed: nobody's policy lets that pass.
    Internal(StatusError),
}

impl Failure {
    fn calling(why: impl Into<String>, code: u16) -> Self {
        Self::Calling { why: why.into(), code }
    }
}

/// A failure that closes the door.
fn closed(webhook: &str, why: &str) -> StatusError {
    StatusError::internal(format!("failed calling webhook \"{webhook}\": {why}"))
}

#[cfg(test)]
mod tests;
