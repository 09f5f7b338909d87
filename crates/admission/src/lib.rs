//! Admission: plugins that inspect, change or refuse a write before it is stored. Each plugin is one file, and one
//! line in a list.
//!
//! All plugins mutate, in the order of [`PLUGINS`]. They run a second time if a webhook or policy changed the object
//! and an earlier one asked for reinvocation. Then the strategy validates the object, then all plugins validate.

mod chain;
mod config;
mod configuration;
mod lookup;
mod manifests;
mod metrics;

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

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;

pub use chain::{Chain, ChainError, Context};
pub use config::AdmissionConfig;
pub use configuration::{ConfigurationError, read as read_configuration};
pub use knarr_registry::attributes::{Attributes, Operation, Reinvocation};

/// One admission plugin.
#[async_trait]
pub trait Plugin: Send + Sync {
    /// Returns upstream's name, as in `--enable-admission-plugins`.
    fn name(&self) -> &'static str;

    fn handles(&self, operation: Operation) -> bool;

    /// Changes the object; runs for all plugins before any validates, possibly twice.
    async fn mutate(
        &self,
        _attributes: &mut Attributes<'_>,
        _context: &Context<'_>,
    ) -> Result<(), StatusError> {
        Ok(())
    }

    /// Sets fields that no admission plugin may change; runs once, after all plugins have mutated.
    fn complete(&self, _attributes: &mut Attributes<'_>, _context: &Context<'_>) {}

    /// Refuses the write with an error, or admits it.
    async fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _context: &Context<'_>,
    ) -> Result<(), StatusError> {
        Ok(())
    }
}

/// Whether a plugin runs by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    On,
    Off,
    /// Not a plugin of upstream but part of its registry: it always runs.
    Always,
}

use Runs::{Always, Off, On};

/// All plugins, in upstream's order.
const PLUGINS: &[(Runs, &dyn Plugin)] = &[
    (Off, &always::AlwaysAdmit),
    (Off, &namespaces::NamespaceAutoProvision),
    (On, &namespace_lifecycle::NamespaceLifecycle),
    (Off, &namespaces::NamespaceExists),
    (Off, &limit_pod_hard_anti_affinity_topology::LimitPodHardAntiAffinityTopology),
    (On, &limit_ranger::LimitRanger),
    (On, &service_account::ServiceAccount),
    // Off upstream, but all installers enable it.
    (On, &node_restriction::NodeRestriction),
    (On, &taint_nodes_by_condition::TaintNodesByCondition),
    (Off, &always_pull_images::AlwaysPullImages),
    (On, &pod_security::PodSecurity),
    (Off, &pod_node_selector::PodNodeSelector),
    (On, &priority::Priority),
    (On, &default_toleration_seconds::DefaultTolerationSeconds),
    (Off, &event_rate_limit::EventRateLimit),
    (Off, &extended_resource_toleration::ExtendedResourceToleration),
    (On, &default_storage_class::DefaultStorageClass),
    (On, &storage_object_in_use_protection::StorageObjectInUseProtection),
    (On, &pod_group_protection::PodGroupProtection),
    (Off, &owner_references_permission_enforcement::OwnerReferencesPermissionEnforcement),
    (On, &persistent_volume_claim_resize::PersistentVolumeClaimResize),
    (On, &runtime_class::RuntimeClass),
    (Always, &certificates::CertificateRequestor),
    (On, &certificates::CertificateApproval),
    (On, &certificates::CertificateSigning),
    (On, &cluster_trust_bundle_attest::ClusterTrustBundleAttest),
    (On, &certificates::CertificateSubjectRestriction),
    (On, &default_ingress_class::DefaultIngressClass),
    (Off, &deny_service_external_ips::DenyServiceExternalIps),
    (On, &pod_topology_labels::PodTopologyLabels),
    (On, &node_declared_feature_validator::NodeDeclaredFeatureValidator),
    (On, &pod_resize_validator::PodResizeValidator),
    (Always, &device_taint_times::DeviceTaintTimes),
    (Always, &escalation::Escalation),
    // Webhooks and policies run after the built-in plugins.
    (On, &policy::MutatingAdmissionPolicy),
    (On, &webhooks::MutatingAdmissionWebhook),
    (On, &policy::ValidatingAdmissionPolicy),
    (On, &webhooks::ValidatingAdmissionWebhook),
    // Runs last, so that no other plugin refuses a write that was charged.
    (On, &resource_quota::ResourceQuota),
    (Off, &always::AlwaysDeny),
];
