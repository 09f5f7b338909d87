//! The `authorization.k8s.io` group.

mod attributes;
pub mod localsubjectaccessreview;
pub mod selfsubjectaccessreview;
pub mod selfsubjectrulesreview;
pub mod subjectaccessreview;
