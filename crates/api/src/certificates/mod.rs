//! certificates.k8s.io: requests for certificates, and their parsing.

pub mod certificatesigningrequest;
pub mod clustertrustbundle;
pub mod podcertificaterequest;
pub mod request;
pub mod signature;
pub mod signers;
#[cfg(test)]
mod testing;
mod trust;
mod validation;

pub use validation::signer_name;
