//! Certificate signing requests: approves those of nodes, signs what is approved, cleans up what is over.
//!
//! Three controllers with one service account, as upstream has them; and what belongs to other certificates: the
//! requests of pods, and the bundle that the API server is checked against.

pub mod approver;
pub mod cleaner;
pub mod pod_request_cleaner;
mod serving;
pub mod signer;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod trust_bundle_publisher;

use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Whoever holds the cluster's authorities.
pub trait CertificateSigner: Debug + Send + Sync {
    /// Issues a certificate for a PKCS#10 request (DER), with its subject and alternative names and these usages, valid
    /// from `now` for `lifetime` or as long as the CA is. Which CA that is depends on the request's signer name. Returns
    /// PEM.
    fn sign(
        &self,
        signer: &str,
        csr_der: &[u8],
        usages: &[String],
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>>;
}

fn condition(
    type_: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

fn usages_of(csr: &k8s_openapi::api::certificates::v1::CertificateSigningRequest) -> &[String] {
    csr.spec.usages.as_deref().unwrap_or_default()
}
