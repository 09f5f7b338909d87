//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: user-provided programs that inspect, change or refuse
//! writes.
//!
//! Source: `k8s.io/apiserver/pkg/admission/plugin/webhook`.

mod call;
mod configurations;
mod matching;
mod mutating;
mod review;
mod validating;

use knarr_apimachinery::status::StatusError;

use crate::Attributes;
use crate::matching::{Concerned, GROUP, concerned_policies};

pub use mutating::MutatingAdmissionWebhook;
pub use validating::ValidatingAdmissionWebhook;

/// Returns which webhooks apply. Source: upstream's `IsExemptAdmissionConfigurationResource`.
fn concerned(attributes: &Attributes<'_>) -> Concerned {
    match (attributes.resource.group, attributes.resource.plural) {
        (GROUP, "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => Concerned::Manifests,
        _ => concerned_policies(attributes),
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
