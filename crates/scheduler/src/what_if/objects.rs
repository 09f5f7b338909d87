//! Reads the objects of a cluster that scheduling depends on, and puts them where the plugins read them.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use knarr_api::kind::{Kind, ResourceType};
use serde_json::Value;

use super::WhatIf;
use crate::framework::Catalog;
use crate::groups::Groups;

macro_rules! looked_up {
    ($($kind:ty),* $(,)?) => {
        /// The resources that a copy of a cluster is made of. Without the first two it is not possible.
        pub const READ: &[ResourceType] = &[
            Node::RESOURCE, Pod::RESOURCE, Namespace::RESOURCE, PriorityClass::RESOURCE, PodGroup::RESOURCE,
            $(<$kind>::RESOURCE),*
        ];

        fn look_up(catalog: &Catalog, object: &Value) -> Result<(), String> {
            $(
                if is::<$kind>(object) {
                    catalog.put(decode::<$kind>(object)?);
                    return Ok(());
                }
            )*
            Ok(())
        }
    };
}

looked_up!(
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    CSINode,
    CSIDriver,
    CSIStorageCapacity,
    VolumeAttachment,
    ResourceClaim,
    ResourceSlice,
    DeviceClass,
    DeviceTaintRule,
    PodDisruptionBudget,
    Service,
    ReplicationController,
    ReplicaSet,
    StatefulSet,
);

/// Splits the text of a file into objects: YAML with one or more documents, or JSON; lists are split into their items.
pub fn read(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Value> = if text.trim_start().starts_with('{') {
        vec![serde_json::from_str(text).map_err(|e| e.to_string())?]
    } else {
        serde_saphyr::from_multiple(text).map_err(|e| e.to_string())?
    };
    let mut objects = Vec::new();
    for mut document in documents {
        match document.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => objects.extend(items),
            _ if document.is_null() => {}
            _ => objects.push(document),
        }
    }
    Ok(objects)
}

fn is<K: Kind>(object: &Value) -> bool {
    object["kind"] == K::RESOURCE.kind && object["apiVersion"] == K::RESOURCE.api_version().as_str()
}

fn decode<K: Kind>(object: &Value) -> Result<K, String> {
    K::decode(object.to_string().as_bytes()).map_err(|e| e.to_string())
}

impl WhatIf {
    /// Adds one object to the copy.
    pub(super) fn take(&mut self, catalog: &Catalog, object: &Value) -> Result<(), String> {
        if is::<Node>(object) {
            let node = Arc::new(decode::<Node>(object)?);
            self.nodes.insert(node.name().to_owned(), Arc::clone(&node));
            self.cache.set_node(node);
        } else if is::<Pod>(object) {
            let mut pod = decode::<Pod>(object)?;
            if pod.uid().is_empty() {
                // The file may have been written by hand, without uids.
                pod.metadata.uid = Some(format!("{}/{}", pod.namespace(), pod.name()));
            }
            self.cache.set_pod(&pod);
            if pod.spec.as_ref().is_none_or(|s| s.node_name.as_deref().unwrap_or("").is_empty()) {
                self.cache.set_waiting(&pod);
            }
            self.pods.insert(pod.key(), Arc::new(pod));
        } else if is::<Namespace>(object) {
            let namespace = decode::<Namespace>(object)?;
            self.cache
                .set_namespace(namespace.name(), Some(namespace.metadata.labels.clone().unwrap_or_default()));
        } else if is::<PodGroup>(object) {
            catalog.shared::<Groups>().set_object(Arc::new(decode(object)?));
        } else if is::<PriorityClass>(object) {
            self.classes.push(decode(object)?);
        } else {
            look_up(catalog, object)?;
        }
        Ok(())
    }
}
