//! PersistentVolumeClaims, volumes and storage classes, as the volume plugins read them.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::api::storage::v1::StorageClass;
pub use knarr_api::core::persistentvolume::class_of_volume;
pub use knarr_api::core::persistentvolumeclaim::class_of;
use knarr_api::core::pod::placement::term_matches;
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;

use crate::framework::{Catalog, PodInfo};

pub const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const STORAGE: &str = "storage";

/// A claim that one of the pod's volumes names, or that is created for an ephemeral volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    pub name: String,
    /// The claim belongs to this pod alone.
    pub ephemeral: bool,
}

impl Claimed {
    /// Returns the claim of one of the pod's volumes, if the volume has one.
    pub fn of(pod: &Pod, volume: &Volume) -> Option<Self> {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(Self { name: claim.claim_name.clone(), ephemeral: false });
        }
        volume.ephemeral.as_ref()?;
        Some(Self { name: format!("{}-{}", pod.name(), volume.name), ephemeral: true })
    }

    /// Returns an error message when the claim of an ephemeral volume is not owned by the pod.
    pub fn foreign(&self, pod: &Pod, claim: &PersistentVolumeClaim) -> Option<String> {
        let mut owners = claim.metadata.owner_references.iter().flatten();
        let own = owners.any(|o| o.controller == Some(true) && o.uid == pod.uid());
        (self.ephemeral && !own).then(|| {
            let (of, name) = (claim.namespace(), claim.name());
            let (namespace, pod) = (pod.namespace(), pod.name());
            format!("PVC {of}/{name} was not created for pod {namespace}/{pod} (pod is not owner)")
        })
    }
}

pub fn volumes(pod: &Pod) -> &[Volume] {
    pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default()
}

/// The claims of all of the pod's volumes.
pub fn claimed(pod: &Pod) -> impl Iterator<Item = Claimed> + '_ {
    volumes(pod).iter().filter_map(|v| Claimed::of(pod, v))
}

/// The names of the claims that the pod's volumes name, without those of its ephemeral volumes.
pub fn named(pod: &Pod) -> impl Iterator<Item = &str> {
    volumes(pod).iter().filter_map(|v| Some(v.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// Returns whether the waiting pod has a volume with this claim.
pub fn claims(pod: &PodInfo, claim: &PersistentVolumeClaim) -> bool {
    pod.namespace() == claim.namespace() && pod.footprint().claims.iter().any(|c| **c == *claim.name())
}

pub fn no_claim(name: &str) -> String {
    format!("persistentvolumeclaim {name:?} not found")
}

/// The volume that the claim names.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.metadata.annotations.as_ref()?.get(SELECTED_NODE).map(String::as_str)
}

/// Returns whether both sides of the binding are written.
pub fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    let completed = claim.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(BIND_COMPLETED));
    completed && volume_name(claim).is_some()
}

/// Returns whether an unbound claim waits for its first pod (`WaitForFirstConsumer`).
pub fn waits_for_pod(catalog: &Catalog, claim: &PersistentVolumeClaim) -> Result<bool, String> {
    let name = class_of(claim);
    let Some(class) = Some(name).filter(|n| !n.is_empty()).and_then(|n| catalog.get::<StorageClass>("", n))
    else {
        return Ok(false);
    };
    match class.volume_binding_mode.as_deref() {
        None => Err(format!("VolumeBindingMode not set for StorageClass {name:?}")),
        Some(mode) => Ok(mode == WAIT_FOR_FIRST_CONSUMER),
    }
}

/// The storage that the claim requests.
pub fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let amount = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(STORAGE)?;
    Quantity::parse(&amount.0).ok()
}

/// The capacity of the volume.
pub fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    let amount = volume.spec.as_ref()?.capacity.as_ref()?.get(STORAGE)?;
    Quantity::parse(&amount.0).ok()
}

/// Returns whether the volume's node affinity allows the node.
pub fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|a| a.required.as_ref()) else { return true };
    required.node_selector_terms.iter().any(|term| term_matches(term, node))
}
