//! Admission: plugins that inspect, change or refuse a write before it is stored. Each plugin is one file, and one
//! line in a list.
//!
//! All plugins mutate, in the order of `plugins.rs`. They run a second time if a webhook or policy changed the object
//! and an earlier one asked for reinvocation. Then the strategy validates the object, then all plugins validate.

mod chain;
mod config;
mod configuration;
mod context;
mod lookup;
mod manifests;
mod metrics;
mod plugin;
mod plugins;

pub mod always;
pub mod always_pull_images;
pub mod certificates;
pub mod cluster_trust_bundle_attest;
pub mod default_ingress_class;
pub mod default_storage_class;
pub mod default_toleration_seconds;
pub mod deny_service_external_ips;
pub mod device_taint_times;
pub mod escalation;
pub mod event_rate_limit;
pub mod extended_resource_toleration;
pub mod limit_pod_hard_anti_affinity_topology;
pub mod limit_ranger;
pub mod match_conditions;
pub mod matching;
pub mod namespace_lifecycle;
pub mod namespaces;
mod node_claims;
pub mod node_declared_feature_validator;
pub mod node_restriction;
pub mod owner_references_permission_enforcement;
pub mod persistent_volume_claim_resize;
pub mod pod_group_protection;
pub mod pod_node_selector;
pub mod pod_resize_validator;
pub mod pod_security;
pub mod pod_topology_labels;
pub mod policy;
pub mod priority;
pub mod resource_quota;
pub mod runtime_class;
pub mod service_account;
pub mod storage_object_in_use_protection;
pub mod taint_nodes_by_condition;
pub mod webhooks;

pub use chain::{Chain, ChainError};
pub use config::{AdmissionConfig, EventLimit, Exemptions, LimitType, TolerationSeconds};
pub use configuration::{ConfigurationError, read as read_configuration};
pub use context::Context;
pub use knarr_registry::attributes::{Attributes, Operation, Reinvocation};
pub use plugin::Plugin;
