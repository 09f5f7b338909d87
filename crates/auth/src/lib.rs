//! Who sends a request, and whether they may: authentication and authorization.

pub mod authn;
pub mod authz;
