//! The controllers: each watches objects and reconciles the cluster's state with their specs. Each has one file or
//! folder and one line in `list::ALL`.

mod context;
mod list;
mod manager;
pub mod metrics;
pub mod names;
mod resource_claim;
mod resource_quota;
mod settings;
mod support;
#[cfg(test)]
mod testing;

pub mod api_server_identity;
mod attach_detach;
mod bootstrap_tokens;
mod certificates;
mod cluster_role_aggregation;
mod cron_job;
mod daemon_set;
mod deployment;
mod device_taint_eviction;
mod disruption;
mod endpoint_slice;
mod endpoint_slice_mirroring;
mod endpoints;
mod ephemeral_volume;
mod garbage_collector;
mod horizontal_pod_autoscaler;
mod job;
pub mod lease_election;
mod legacy_token_cleaner;
mod local_path;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod node_ttl;
mod persistent_volumes;
mod pod_garbage_collector;
mod pod_group_protection;
mod replicas;
mod root_ca_publisher;
mod service_account_tokens;
mod service_accounts;
mod service_cidr;
mod stateful_set;
mod storage_version_gc;
mod storage_version_migrator;
mod taint_eviction;
mod ttl_after_finished;
mod validating_admission_policy_status;

pub use certificates::CertificateSigner;
pub use context::{ClientOf, Context, Options};
pub use manager::{run, run_chosen};
pub use names::names;
pub use service_account_tokens::TokenSigner;
pub use settings::{AutoscalerSettings, NodeSettings, RecyclerSettings, Scrubbing, Settings};
