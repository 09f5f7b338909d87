//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: user-defined expressions that refuse or change writes.
//!
//! Source: `k8s.io/apiserver/pkg/admission/plugin/policy`.

pub mod definitions;
pub mod expression;
pub mod inputs;
mod matching;
mod mutating;
mod params;
mod patches;
pub mod questions;
mod validating;
mod validations;
mod variables;

pub use mutating::{MutatingAdmissionPolicy, Mutations};
pub use validating::ValidatingAdmissionPolicy;
pub use validations::Validations;
