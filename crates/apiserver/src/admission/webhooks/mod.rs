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

/// Webhooks and policies look at everything but what they are themselves made of, lest nobody can repair them, and the
/// reviews that authentication and authorization need.
pub(super) fn is_exempt(attributes: &Attributes<'_>) -> bool {
    match attributes.resource.group {
        GROUP => matches!(
            attributes.resource.plural,
            "mutatingadmissionpolicies"
                | "mutatingadmissionpolicybindings"
                | "mutatingwebhookconfigurations"
                | "validatingadmissionpolicies"
                | "validatingadmissionpolicybindings"
                | "validatingwebhookconfigurations"
        ),
        "authentication.k8s.io" => {
            matches!(attributes.resource.plural, "selfsubjectreviews" | "tokenreviews")
        }
        "authorization.k8s.io" => attributes.resource.plural.ends_with("reviews"),
        _ => false,
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
