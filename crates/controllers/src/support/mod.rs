//! What several controllers use: questions about objects, ownership, pods made and deleted, history.

pub mod discovery;
pub mod nodes;
pub mod owners;
pub mod pod_control;
pub mod pod_disruption;
pub mod pod_state;
pub mod refusals;
pub mod revisions;
pub mod service_pods;
pub mod subsets;
pub mod trigger_times;
pub mod written;
