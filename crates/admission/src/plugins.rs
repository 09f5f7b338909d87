//! The list of admission plugins: one line each.

use crate::config::AdmissionConfig;
use crate::plugin::Plugin;
use crate::{
    always, always_pull_images, certificates, cluster_trust_bundle_attest, default_ingress_class,
    default_storage_class, default_toleration_seconds, deny_service_external_ips, device_taint_times,
    escalation, event_rate_limit, extended_resource_toleration, limit_pod_hard_anti_affinity_topology,
    limit_ranger, namespace_lifecycle, namespaces, node_declared_feature_validator, node_restriction,
    owner_references_permission_enforcement, persistent_volume_claim_resize, pod_group_protection,
    pod_node_selector, pod_resize_validator, pod_security, pod_topology_labels, policy, priority,
    resource_quota, runtime_class, service_account, storage_object_in_use_protection,
    taint_nodes_by_condition, webhooks,
};

/// Whether a plugin runs by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    On,
    Off,
    /// Not a plugin of upstream but part of its registry: it always runs.
    Always,
}

use Runs::{Always, Off, On};

/// Makes the plugin of one server, or returns what is wrong with its settings.
pub type Make = fn(&AdmissionConfig) -> Result<Box<dyn Plugin>, String>;

/// All plugins, in upstream's order.
pub const PLUGINS: &[(Runs, Make)] = &[
    (Off, |_| Ok(Box::new(always::AlwaysAdmit))),
    (Off, |_| Ok(Box::new(namespaces::NamespaceAutoProvision))),
    (On, |_| Ok(Box::new(namespace_lifecycle::NamespaceLifecycle))),
    (Off, |_| Ok(Box::new(namespaces::NamespaceExists))),
    (Off, |_| Ok(Box::new(limit_pod_hard_anti_affinity_topology::LimitPodHardAntiAffinityTopology))),
    (On, |_| Ok(Box::new(limit_ranger::LimitRanger))),
    (On, |_| Ok(Box::new(service_account::ServiceAccount))),
    // Off upstream, but all installers enable it.
    (On, |_| Ok(Box::new(node_restriction::NodeRestriction))),
    (On, |_| Ok(Box::new(taint_nodes_by_condition::TaintNodesByCondition))),
    (Off, |_| Ok(Box::new(always_pull_images::AlwaysPullImages))),
    (On, |_| Ok(Box::new(pod_security::PodSecurity))),
    (Off, |_| Ok(Box::new(pod_node_selector::PodNodeSelector))),
    (On, |_| Ok(Box::new(priority::Priority))),
    (On, |_| Ok(Box::new(default_toleration_seconds::DefaultTolerationSeconds))),
    (Off, |_| Ok(Box::<event_rate_limit::EventRateLimit>::default())),
    (Off, |_| Ok(Box::new(extended_resource_toleration::ExtendedResourceToleration))),
    (On, |_| Ok(Box::new(default_storage_class::DefaultStorageClass))),
    (On, |_| Ok(Box::new(storage_object_in_use_protection::StorageObjectInUseProtection))),
    (On, |_| Ok(Box::new(pod_group_protection::PodGroupProtection))),
    (Off, |_| Ok(Box::new(owner_references_permission_enforcement::OwnerReferencesPermissionEnforcement))),
    (On, |_| Ok(Box::new(persistent_volume_claim_resize::PersistentVolumeClaimResize))),
    (On, |_| Ok(Box::new(runtime_class::RuntimeClass))),
    (Always, |_| Ok(Box::new(certificates::CertificateRequestor))),
    (On, |_| Ok(Box::new(certificates::CertificateApproval))),
    (On, |_| Ok(Box::new(certificates::CertificateSigning))),
    (On, |_| Ok(Box::new(cluster_trust_bundle_attest::ClusterTrustBundleAttest))),
    (On, |_| Ok(Box::new(certificates::CertificateSubjectRestriction))),
    (On, |_| Ok(Box::new(default_ingress_class::DefaultIngressClass))),
    (Off, |_| Ok(Box::new(deny_service_external_ips::DenyServiceExternalIps))),
    (On, |_| Ok(Box::new(pod_topology_labels::PodTopologyLabels))),
    (On, |_| Ok(Box::new(node_declared_feature_validator::NodeDeclaredFeatureValidator))),
    (On, |_| Ok(Box::new(pod_resize_validator::PodResizeValidator))),
    (Always, |_| Ok(Box::new(device_taint_times::DeviceTaintTimes))),
    (Always, |_| Ok(Box::new(escalation::Escalation))),
    // Webhooks and policies run after the built-in plugins.
    (On, |s| Ok(Box::new(policy::MutatingAdmissionPolicy::new(s)?))),
    (On, |s| Ok(Box::new(webhooks::MutatingAdmissionWebhook::new(s)?))),
    (On, |s| Ok(Box::new(policy::ValidatingAdmissionPolicy::new(s)?))),
    (On, |s| Ok(Box::new(webhooks::ValidatingAdmissionWebhook::new(s)?))),
    // Runs last, so that no other plugin refuses a write that was charged.
    (On, |_| Ok(Box::new(resource_quota::ResourceQuota))),
    (Off, |_| Ok(Box::new(always::AlwaysDeny))),
];

/// Returns the names of all plugins, one for each line of [`PLUGINS`].
pub fn names() -> Vec<(Runs, &'static str)> {
    let nothing = AdmissionConfig::default();
    // Without settings there is nothing that could be wrong; a plugin without a name would still keep its line.
    let named = |(runs, make): &(Runs, Make)| (*runs, make(&nothing).map_or("", |plugin| plugin.name()));
    PLUGINS.iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plugin_has_a_name() {
        assert!(names().iter().all(|(_, name)| !name.is_empty()));
    }
}
