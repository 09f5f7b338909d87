//! Certificate signing requests: approves those of nodes, signs approved ones, and deletes old ones.
//!
//! These are three controllers with one service account, as upstream has them. Two more handle other certificates:
//! the requests of pods, and the bundle by which the API server is verified.

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

/// Signs with the cluster's certificate authorities.
pub trait CertificateSigner: Debug + Send + Sync {
    /// Issues a certificate for a PKCS#10 request (DER), with its subject and alternative names and these usages,
    /// valid from `now` for `lifetime`, but no longer than the CA is. The request's signer name selects the CA.
    /// Returns PEM.
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
