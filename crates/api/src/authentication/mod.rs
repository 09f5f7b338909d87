//! The `authentication.k8s.io` group.

pub mod selfsubjectreview;
pub mod tokenrequest;
pub mod tokenreview;
