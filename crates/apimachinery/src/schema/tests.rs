//! Tests of the completeness and consistency of the table.

use std::collections::BTreeSet;

use super::*;

/// Calls `$check` with group, version and kind of every type that k8s-openapi has for Kubernetes 1.37, and with the
/// kind of its list if it has one.
macro_rules! each_kind {
    ($check:ident, listable: [$($listable:path,)*], single: [$($single:path,)*]) => {
        $({
            use k8s_openapi::{ListableResource, Resource};
            $check(<$listable>::GROUP, <$listable>::VERSION, <$listable>::KIND);
            $check(<$listable>::GROUP, <$listable>::VERSION, <$listable>::LIST_KIND);
        })*
        $({
            use k8s_openapi::Resource;
            $check(<$single>::GROUP, <$single>::VERSION, <$single>::KIND);
        })*
    };
}

#[test]
fn every_kind_of_k8s_openapi_resolves() {
    let mut count = 0;
    let mut check = |group: &str, version: &str, kind: &str| {
        count += 1;
        let schema = for_kind(&GroupVersionKind::new(group, version, kind));
        assert!(schema.is_some_and(|s| s.short_name() == kind), "{group}/{version} {kind}");
    };
    use k8s_openapi::{api, apiextensions_apiserver, apimachinery, kube_aggregator};
    each_kind!(check, listable: [
        api::admissionregistration::v1::MutatingAdmissionPolicy,
        api::admissionregistration::v1::MutatingAdmissionPolicyBinding,
        api::admissionregistration::v1::MutatingWebhookConfiguration,
        api::admissionregistration::v1::ValidatingAdmissionPolicy,
        api::admissionregistration::v1::ValidatingAdmissionPolicyBinding,
        api::admissionregistration::v1::ValidatingWebhookConfiguration,
        api::admissionregistration::v1alpha1::MutatingAdmissionPolicy,
        api::admissionregistration::v1alpha1::MutatingAdmissionPolicyBinding,
        api::admissionregistration::v1beta1::MutatingAdmissionPolicy,
        api::admissionregistration::v1beta1::MutatingAdmissionPolicyBinding,
        api::apiserverinternal::v1alpha1::StorageVersion,
        api::apps::v1::ControllerRevision,
        api::apps::v1::DaemonSet,
        api::apps::v1::Deployment,
        api::apps::v1::ReplicaSet,
        api::apps::v1::StatefulSet,
        api::autoscaling::v1::HorizontalPodAutoscaler,
        api::autoscaling::v2::HorizontalPodAutoscaler,
        api::batch::v1::CronJob,
        api::batch::v1::Job,
        api::certificates::v1::CertificateSigningRequest,
        api::certificates::v1::ClusterTrustBundle,
        api::certificates::v1::PodCertificateRequest,
        api::certificates::v1beta1::ClusterTrustBundle,
        api::certificates::v1beta1::PodCertificateRequest,
        api::coordination::v1::Lease,
        api::coordination::v1alpha2::LeaseCandidate,
        api::coordination::v1beta1::LeaseCandidate,
        api::core::v1::ComponentStatus,
        api::core::v1::ConfigMap,
        api::core::v1::Endpoints,
        api::core::v1::Event,
        api::core::v1::LimitRange,
        api::core::v1::Namespace,
        api::core::v1::Node,
        api::core::v1::PersistentVolume,
        api::core::v1::PersistentVolumeClaim,
        api::core::v1::Pod,
        api::core::v1::PodTemplate,
        api::core::v1::ReplicationController,
        api::core::v1::ResourceQuota,
        api::core::v1::Secret,
        api::core::v1::Service,
        api::core::v1::ServiceAccount,
        api::discovery::v1::EndpointSlice,
        api::events::v1::Event,
        api::flowcontrol::v1::FlowSchema,
        api::flowcontrol::v1::PriorityLevelConfiguration,
        api::lifecycle::v1alpha1::Eviction,
        api::lifecycle::v1alpha1::EvictionRequest,
        api::networking::v1::Ingress,
        api::networking::v1::IngressClass,
        api::networking::v1::IPAddress,
        api::networking::v1::NetworkPolicy,
        api::networking::v1::ServiceCIDR,
        api::node::v1::RuntimeClass,
        api::policy::v1::PodDisruptionBudget,
        api::rbac::v1::ClusterRole,
        api::rbac::v1::ClusterRoleBinding,
        api::rbac::v1::Role,
        api::rbac::v1::RoleBinding,
        api::resource::v1::DeviceClass,
        api::resource::v1::DeviceTaintRule,
        api::resource::v1::ResourceClaim,
        api::resource::v1::ResourceClaimTemplate,
        api::resource::v1::ResourceSlice,
        api::resource::v1alpha3::DeviceTaintRule,
        api::resource::v1alpha3::ResourcePoolStatusRequest,
        api::resource::v1beta1::DeviceClass,
        api::resource::v1beta1::ResourceClaim,
        api::resource::v1beta1::ResourceClaimTemplate,
        api::resource::v1beta1::ResourceSlice,
        api::resource::v1beta2::DeviceClass,
        api::resource::v1beta2::DeviceTaintRule,
        api::resource::v1beta2::ResourceClaim,
        api::resource::v1beta2::ResourceClaimTemplate,
        api::resource::v1beta2::ResourceSlice,
        api::scheduling::v1::PriorityClass,
        api::scheduling::v1alpha3::CompositePodGroup,
        api::scheduling::v1alpha3::PodGroup,
        api::scheduling::v1alpha3::Workload,
        api::scheduling::v1beta1::PodGroup,
        api::scheduling::v1beta1::Workload,
        api::storage::v1::CSIDriver,
        api::storage::v1::CSINode,
        api::storage::v1::CSIStorageCapacity,
        api::storage::v1::StorageClass,
        api::storage::v1::VolumeAttachment,
        api::storage::v1::VolumeAttributesClass,
        api::storagemigration::v1::StorageVersionMigration,
        api::storagemigration::v1beta1::StorageVersionMigration,
        apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        kube_aggregator::pkg::apis::apiregistration::v1::APIService,
    ], single: [
        api::authentication::v1::SelfSubjectReview,
        api::authentication::v1::TokenRequest,
        api::authentication::v1::TokenReview,
        api::authorization::v1::LocalSubjectAccessReview,
        api::authorization::v1::SelfSubjectAccessReview,
        api::authorization::v1::SelfSubjectRulesReview,
        api::authorization::v1::SubjectAccessReview,
        api::autoscaling::v1::Scale,
        api::core::v1::Binding,
        api::policy::v1::Eviction,
        apimachinery::pkg::apis::meta::v1::APIGroup,
        apimachinery::pkg::apis::meta::v1::APIGroupList,
        apimachinery::pkg::apis::meta::v1::APIResourceList,
        apimachinery::pkg::apis::meta::v1::APIVersions,
        apimachinery::pkg::apis::meta::v1::Status,
    ]);
    assert!(count > 200, "{count}");
}

fn structs_of(ty: Type) -> Option<&'static Struct> {
    match ty {
        Type::Struct(schema) => Some(schema),
        Type::List(list) => structs_of(list.element),
        Type::Map(map) => structs_of(map.value),
        _ => None,
    }
}

#[test]
fn what_is_searched_is_sorted() {
    assert!(structs().is_sorted_by(|a, b| a.name < b.name));
    assert!(kinds().is_sorted_by(|a, b| (a.group, a.version, a.kind) < (b.group, b.version, b.kind)));
    for schema in structs() {
        assert!(schema.fields.is_sorted_by(|a, b| a.name < b.name), "{}", schema.name);
        for field in schema.fields {
            assert_eq!(schema.field(field.name).map(|f| f.name), Some(field.name));
        }
    }
}

#[test]
fn every_struct_in_reach_is_listed() {
    for schema in structs() {
        for target in schema.fields.iter().filter_map(|f| structs_of(f.ty)) {
            assert!(for_definition(target.name).is_some_and(|s| std::ptr::eq(s, target)), "{}", target.name);
        }
    }
    for kind in kinds() {
        let gvk = GroupVersionKind::new(kind.group, kind.version, kind.kind);
        assert!(for_kind(&gvk).is_some_and(|s| std::ptr::eq(s, kind.schema)));
        assert!(for_definition(kind.schema.name).is_some());
    }
}

#[test]
fn facts_fit_together() {
    for schema in structs() {
        let mut numbers = BTreeSet::new();
        for field in schema.fields {
            let at = format!("{}.{}", schema.name, field.name);
            if field.number != 0 {
                assert!(numbers.insert((field.inlined, field.number)), "{at}: number taken");
            }
            if let Some(default) = field.default {
                assert!(serde_json::from_str::<serde_json::Value>(default).is_ok(), "{at}: default");
            }
            if let Type::List(list) = field.ty
                && let Type::Struct(element) = list.element
            {
                let keys: &[&str] = if let ListKind::Map(keys) = list.kind { keys } else { &[] };
                for key in keys.iter().chain(Some(&field.patch_merge_key)).filter(|k| !k.is_empty()) {
                    assert!(element.field(key).is_some(), "{at}: key {key}");
                }
            }
            let strategies = ["", "merge", "replace", "retainKeys", "merge,retainKeys"];
            assert!(strategies.contains(&field.patch_strategy), "{at}: {}", field.patch_strategy);
        }
    }
}

#[test]
fn known_facts() {
    let pod = for_kind(&GroupVersionKind::new("", "v1", "Pod")).unwrap();
    assert_eq!(pod.name, "io.k8s.api.core.v1.Pod");
    let Some(Field { ty: Type::Struct(spec), number: 2, .. }) = pod.field("spec") else { panic!("no spec") };
    let volumes = spec.field("volumes").unwrap();
    assert_eq!((volumes.patch_strategy, volumes.patch_merge_key), ("merge,retainKeys", "name"));
    let Type::List(List { element: Type::Struct(volume), kind: ListKind::Map(keys) }) = volumes.ty else {
        panic!("volumes: {:?}", volumes.ty)
    };
    assert_eq!(*keys, ["name"]);
    let empty_dir = volume.field("emptyDir").unwrap();
    assert_eq!((empty_dir.number, empty_dir.inlined), (2, &[2][..]));
    let Type::Map(selector) = spec.field("nodeSelector").unwrap().ty else { panic!("no map") };
    assert!(selector.atomic);
    assert!(for_definition("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector").unwrap().atomic);
    let volume = for_kind(&GroupVersionKind::new("", "v1", "PersistentVolume")).unwrap();
    let Some(Field { ty: Type::Struct(spec), .. }) = volume.field("spec") else { panic!("no spec") };
    assert!(spec.field("claimRef").is_some_and(|f| f.granular));
    assert!(for_kind(&GroupVersionKind::new("apps", "v1", "DeleteOptions")).is_some());
    assert!(for_kind(&GroupVersionKind::new("apps", "v1", "Nothing")).is_none());
    assert!(for_kind(&GroupVersionKind::new("policy", "v1", "Eviction")).is_some());
    assert!(for_kind(&GroupVersionKind::new("autoscaling", "v1", "Scale")).is_some());
}
