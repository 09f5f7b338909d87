//! What several controllers share: predicates on objects, ownership, creation and deletion of pods, revision history.

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
