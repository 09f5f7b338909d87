//! The `node.k8s.io` group: how nodes run containers.

pub mod runtimeclass;
