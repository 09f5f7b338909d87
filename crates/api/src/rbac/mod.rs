//! The `rbac.authorization.k8s.io` group.

pub mod clusterrole;
pub mod clusterrolebinding;
pub mod role;
pub mod rolebinding;
mod rules;
pub mod subjects;
