//! The one place where typed kinds are decoded and encoded, so that each serde instance is compiled once.

use k8s_openapi::Resource;
use k8s_openapi::api::{
    admissionregistration::v1 as admissionregistration, apiserverinternal::v1alpha1 as apiserverinternal,
    apps::v1 as apps, authentication::v1 as authentication, authorization::v1 as authorization,
    autoscaling::v1 as autoscaling, autoscaling::v2 as autoscaling_v2, batch::v1 as batch,
    certificates::v1 as certificates, coordination::v1 as coordination,
    coordination::v1beta1 as coordination_v1beta1, core::v1 as core, discovery::v1 as discovery,
    events::v1 as events, flowcontrol::v1 as flowcontrol, networking::v1 as networking, node::v1 as node,
    policy::v1 as policy, rbac::v1 as rbac, resource::v1 as resource, scheduling::v1 as scheduling,
    scheduling::v1beta1 as scheduling_v1beta1, storage::v1 as storage,
    storagemigration::v1 as storagemigration,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use k8s_openapi::schemars::SchemaGenerator;

use crate::kind::{DecodeError, Kind, ResourceType};

macro_rules! kinds {
    ($($ty:ty, $namespaced:literal;)*) => {$(
        impl Kind for $ty {
            const RESOURCE: ResourceType = ResourceType {
                group: <$ty as Resource>::GROUP,
                version: <$ty as Resource>::VERSION,
                kind: <$ty as Resource>::KIND,
                plural: <$ty as Resource>::URL_PATH_SEGMENT,
                namespaced: $namespaced,
            };

            fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                serde_json::from_slice(bytes)
                    .map_err(|source| DecodeError { kind: <$ty as Resource>::KIND, source })
            }

            fn encode(&self) -> Vec<u8> {
                // Writing plain structs with string keys to memory has no way to fail.
                serde_json::to_vec(self).unwrap_or_default()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*

    /// Lets the generator describe every kind here, with all that is in it.
    pub(crate) fn describe_all(generator: &mut SchemaGenerator) {
        $( let _ = generator.subschema_for::<$ty>(); )*
    }
    };
}

kinds! {
    core::Binding, true;
    core::ComponentStatus, false;
    core::ConfigMap, true;
    core::Endpoints, true;
    core::Event, true;
    core::LimitRange, true;
    core::Namespace, false;
    core::Node, false;
    core::PersistentVolume, false;
    core::PersistentVolumeClaim, true;
    core::Pod, true;
    core::PodTemplate, true;
    core::ReplicationController, true;
    core::ResourceQuota, true;
    core::Secret, true;
    core::Service, true;
    core::ServiceAccount, true;
    admissionregistration::MutatingAdmissionPolicy, false;
    admissionregistration::MutatingAdmissionPolicyBinding, false;
    admissionregistration::MutatingWebhookConfiguration, false;
    admissionregistration::ValidatingAdmissionPolicy, false;
    admissionregistration::ValidatingAdmissionPolicyBinding, false;
    admissionregistration::ValidatingWebhookConfiguration, false;
    apiregistration::APIService, false;
    apiserverinternal::StorageVersion, false;
    apiextensions::CustomResourceDefinition, false;
    apps::ControllerRevision, true;
    apps::DaemonSet, true;
    apps::Deployment, true;
    apps::ReplicaSet, true;
    apps::StatefulSet, true;
    authentication::SelfSubjectReview, false;
    authentication::TokenRequest, true;
    authentication::TokenReview, false;
    authorization::LocalSubjectAccessReview, true;
    authorization::SelfSubjectAccessReview, false;
    authorization::SelfSubjectRulesReview, false;
    authorization::SubjectAccessReview, false;
    autoscaling::HorizontalPodAutoscaler, true;
    autoscaling::Scale, true;
    autoscaling_v2::HorizontalPodAutoscaler, true;
    batch::CronJob, true;
    batch::Job, true;
    certificates::CertificateSigningRequest, false;
    certificates::ClusterTrustBundle, false;
    certificates::PodCertificateRequest, true;
    coordination::Lease, true;
    coordination_v1beta1::LeaseCandidate, true;
    discovery::EndpointSlice, true;
    events::Event, true;
    flowcontrol::FlowSchema, false;
    flowcontrol::PriorityLevelConfiguration, false;
    networking::IPAddress, false;
    networking::Ingress, true;
    networking::IngressClass, false;
    networking::NetworkPolicy, true;
    networking::ServiceCIDR, false;
    node::RuntimeClass, false;
    policy::Eviction, true;
    policy::PodDisruptionBudget, true;
    rbac::ClusterRole, false;
    rbac::ClusterRoleBinding, false;
    rbac::Role, true;
    rbac::RoleBinding, true;
    resource::DeviceClass, false;
    resource::DeviceTaintRule, false;
    resource::ResourceClaim, true;
    resource::ResourceClaimTemplate, true;
    resource::ResourceSlice, false;
    scheduling::PriorityClass, false;
    scheduling_v1beta1::PodGroup, true;
    scheduling_v1beta1::Workload, true;
    storage::CSIDriver, false;
    storage::CSINode, false;
    storage::CSIStorageCapacity, true;
    storage::StorageClass, false;
    storage::VolumeAttachment, false;
    storage::VolumeAttributesClass, false;
    storagemigration::StorageVersionMigration, false;
}
