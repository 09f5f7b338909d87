//! apiextensions.k8s.io/v1: CustomResourceDefinitions.

pub mod approval;
pub mod customresourcedefinition;
pub mod definition;
