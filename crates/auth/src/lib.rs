//! Authentication and authorization.

pub mod authn;
pub mod authz;
