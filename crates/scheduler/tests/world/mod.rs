//! Shared by tests of a whole scheduler: the kinds that it watches, and objects from JSON.

use k8s_openapi::api::core::v1::{Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use knarr_api::kind::{Kind, ResourceType};
use serde_json::Value;

pub fn kinds() -> Vec<ResourceType> {
    use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
    use k8s_openapi::api::core::v1::{ReplicationController, Service};
    vec![
        Event::RESOURCE,
        Namespace::RESOURCE,
        Node::RESOURCE,
        Pod::RESOURCE,
        PersistentVolume::RESOURCE,
        PersistentVolumeClaim::RESOURCE,
        PodDisruptionBudget::RESOURCE,
        CSIDriver::RESOURCE,
        CSINode::RESOURCE,
        CSIStorageCapacity::RESOURCE,
        StorageClass::RESOURCE,
        VolumeAttachment::RESOURCE,
        DeviceClass::RESOURCE,
        DeviceTaintRule::RESOURCE,
        ResourceClaim::RESOURCE,
        ResourceSlice::RESOURCE,
        ReplicaSet::RESOURCE,
        StatefulSet::RESOURCE,
        ReplicationController::RESOURCE,
        Service::RESOURCE,
        PodGroup::RESOURCE,
    ]
}

pub fn object<K: Kind>(value: Value) -> K {
    K::decode(value.to_string().as_bytes()).unwrap()
}
