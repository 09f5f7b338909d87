//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: user-provided programs that inspect, change or refuse
//! writes.
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

/// The API group of webhook configurations and policies.
pub const GROUP: &str = "admissionregistration.k8s.io";

/// Which webhooks and policies apply to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concerned {
    All,
    /// Only those from files: for the resources that configure webhooks and policies, so that a faulty one can always
    /// be repaired.
    Manifests,
    /// None: for reviews that authentication and authorization need.
    None,
}

/// Returns which webhooks apply. Source: upstream's `IsExemptAdmissionConfigurationResource`.
fn concerned(attributes: &Attributes<'_>) -> Concerned {
    match (attributes.resource.group, attributes.resource.plural) {
        (GROUP, "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => Concerned::Manifests,
        _ => concerned_policies(attributes),
    }
}

/// Returns which policies apply; these may also check webhook configurations. Source: upstream's
/// `admissionResources`.
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

/// The failure of a webhook call.
enum Failure {
    /// It could not be called, or its response was invalid: the failure policy decides. The code is for the metrics.
    Calling { why: String, code: u16 },
    /// It refused the request.
    Rejected(StatusError),
    /// An internal error of this server, which no failure policy ignores.
    Internal(StatusError),
}

impl Failure {
    fn calling(why: impl Into<String>, code: u16) -> Self {
        Self::Calling { why: why.into(), code }
    }
}

/// Returns the refusal for a webhook that fails closed.
fn closed(webhook: &str, why: &str) -> StatusError {
    StatusError::internal(format!("failed calling webhook \"{webhook}\": {why}"))
}

#[cfg(test)]
mod tests;
