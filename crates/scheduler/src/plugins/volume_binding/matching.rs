//! Pure functions: which volume matches a claim on a node, and whether one can be provisioned there.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;
use knarr_apimachinery::selector::Selector;

use crate::plugins::claims::{capacity, class_of, class_of_volume, reaches, requested};

/// The provisioner of classes whose volumes are created by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Returns whether the volume's claimRef is for the claim: by name, and by uid if it has one.
pub fn is_reserved_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(reference) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else { return false };
    let same = |a: &Option<String>, b: &str| a.as_deref().unwrap_or("") == b;
    same(&reference.name, claim.name())
        && same(&reference.namespace, claim.namespace())
        && reference.uid.as_deref().is_none_or(|uid| uid.is_empty() || uid == claim.uid())
}

/// The amount for comparisons; a missing quantity is zero.
fn amount(quantity: Option<Quantity>) -> i128 {
    quantity.map_or(0, |q| q.nanos())
}

/// Returns whether size, mode and attributes match and the volume is not being deleted.
fn suits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(offer), Some(wish)) = (&volume.spec, &claim.spec) else { return false };
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let attributes = |class: &Option<String>| class.clone().unwrap_or_default();
    amount(capacity(volume)) >= amount(requested(claim))
        && mode(&offer.volume_mode) == mode(&wish.volume_mode)
        && attributes(&offer.volume_attributes_class_name) == attributes(&wish.volume_attributes_class_name)
        && volume.metadata.deletion_timestamp.is_none()
}

/// The further conditions for a free volume.
fn is_free_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim, selector: &Selector) -> bool {
    let (Some(offer), Some(wish)) = (&volume.spec, &claim.spec) else { return false };
    let modes = offer.access_modes.as_deref().unwrap_or_default();
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    offer.claim_ref.is_none()
        && phase == Some("Available")
        && selector.matches_optional(volume.metadata.labels.as_ref())
        && class_of_volume(volume) == class_of(claim)
        && wish.access_modes.iter().flatten().all(|m| modes.contains(m))
}

/// Returns the volume reserved for the claim, otherwise the smallest free one that the node can use.
pub fn find_volume(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    node: &Node,
    taken: &BTreeSet<String>,
) -> Result<Option<Arc<PersistentVolume>>, String> {
    let selector = match claim.spec.as_ref().and_then(|s| s.selector.as_ref()) {
        None => Selector::everything(),
        Some(selector) => Selector::from_label_selector(Some(selector)).map_err(|error| {
            let (namespace, name) = (claim.namespace(), claim.name());
            format!("error creating internal label selector for claim: {namespace}/{name}: {error}")
        })?,
    };
    let mut smallest: Option<(i128, &Arc<PersistentVolume>)> = None;
    for volume in volumes.iter().filter(|v| !taken.contains(v.name()) && suits(v, claim)) {
        if is_reserved_for(volume, claim) {
            return Ok(reaches(volume, node).then(|| Arc::clone(volume)));
        }
        if is_free_for(volume, claim, &selector) && reaches(volume, node) {
            let size = amount(capacity(volume));
            if smallest.as_ref().is_none_or(|(least, _)| size < *least) {
                smallest = Some((size, volume));
            }
        }
    }
    Ok(smallest.map(|(_, volume)| Arc::clone(volume)))
}

/// Returns whether the class's topology allows volumes for the node.
pub fn can_provision(class: &StorageClass, node: &Node) -> bool {
    if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER {
        return false;
    }
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    let labels = node.metadata.labels.as_ref();
    terms.is_empty()
        || terms.iter().any(|term| {
            let wanted = term.match_label_expressions.as_deref().unwrap_or_default();
            let value = |key: &str| labels.and_then(|l| l.get(key));
            !wanted.is_empty() && wanted.iter().all(|w| value(&w.key).is_some_and(|v| w.values.contains(v)))
        })
}

/// The size of the largest volume that can be provisioned.
pub fn volume_limit(capacity: &CSIStorageCapacity) -> Option<Quantity> {
    let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref())?;
    Quantity::parse(&limit.0).ok()
}

/// Returns the first of these capacities that is large enough for the claim and available on the node.
pub fn enough<'a>(
    capacities: &'a [Arc<CSIStorageCapacity>],
    class: &str,
    size: &Quantity,
    node: &Node,
) -> Option<&'a Arc<CSIStorageCapacity>> {
    capacities.iter().find(|c| {
        let selector = c.node_topology.as_ref().map(|t| Selector::from_label_selector(Some(t)));
        let accessible = || match selector {
            Some(Ok(selector)) => selector.matches_optional(node.metadata.labels.as_ref()),
            _ => false,
        };
        c.storage_class_name == class
            && volume_limit(c).is_some_and(|limit| limit.value() >= size.value())
            && accessible()
    })
}
