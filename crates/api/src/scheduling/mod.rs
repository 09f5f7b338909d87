//! The `scheduling.k8s.io` group.

mod groups;
pub mod podgroup;
pub mod priorityclass;
pub mod workload;
