//! Which volume fits a claim: pure functions.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
pub use knarr_api::core::persistentvolume::class_of_volume;
pub use knarr_api::core::persistentvolumeclaim::class_of;
use knarr_api::core::storage_class_name::CLASS_ANNOTATION;
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;
use knarr_apimachinery::selector::Selector;

const STORAGE: &str = "storage";
/// Returns whether the claim names a class, the empty one included.
pub fn has_class(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(CLASS_ANNOTATION))
        || claim.spec.as_ref().is_some_and(|s| s.storage_class_name.is_some())
}

/// Returns whether a volume's claimRef is this claim: by name, and by uid if the reference has one.
pub fn refers(reference: &ObjectReference, claim: &PersistentVolumeClaim) -> bool {
    let same = |a: &Option<String>, b: &str| a.as_deref().unwrap_or("") == b;
    same(&reference.namespace, claim.namespace())
        && same(&reference.name, claim.name())
        && reference.uid.as_deref().is_none_or(|uid| uid.is_empty() || uid == claim.uid())
}

/// Returns the capacity of a volume; 0 if it has none.
fn capacity(volume: &PersistentVolume) -> Quantity {
    let amount = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get(STORAGE));
    amount.and_then(|amount| Quantity::parse(&amount.0).ok()).unwrap_or_default()
}

fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let amount = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get(STORAGE));
    amount.and_then(|amount| Quantity::parse(&amount.0).ok()).unwrap_or_default()
}

fn mode(mode: Option<&String>) -> &str {
    mode.map_or("Filesystem", String::as_str)
}

/// Returns whether the volume modes differ.
pub fn modes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let of_volume = volume.spec.as_ref().and_then(|s| s.volume_mode.as_ref());
    mode(of_volume) != mode(claim.spec.as_ref().and_then(|s| s.volume_mode.as_ref()))
}

/// Returns why a volume that a claim names cannot be bound to it; the texts are upstream's.
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<String> {
    if volume.metadata.deletion_timestamp.is_some() {
        return Some(format!("the volume is marked for deletion {:?}", volume.name()));
    }
    if capacity(volume) < requested(claim) {
        return Some("requested PV is too small".to_owned());
    }
    if class_of_volume(volume) != class_of(claim) {
        return Some("storageClassName does not match".to_owned());
    }
    misfit(volume, claim).map(str::to_owned)
}

/// Returns the requirement that the volume violates, which applies even to a volume reserved for the claim.
fn misfit(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let (Some(offer), Some(wish)) = (&volume.spec, &claim.spec) else { return Some("no spec") };
    let attributes = |name: &Option<String>| name.clone().unwrap_or_default();
    if attributes(&offer.volume_attributes_class_name) != attributes(&wish.volume_attributes_class_name) {
        return Some("volumeAttributesClassName does not match");
    }
    if modes_differ(volume, claim) {
        return Some("incompatible volumeMode");
    }
    let modes = offer.access_modes.as_deref().unwrap_or_default();
    if !wish.access_modes.iter().flatten().all(|m| modes.contains(m)) {
        return Some("incompatible accessMode");
    }
    None
}

/// Returns the volume that is reserved for the claim, whatever its class.
pub fn reserved(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
) -> Option<Arc<PersistentVolume>> {
    let kept = |v: &&Arc<PersistentVolume>| {
        let reference = v.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
        v.metadata.deletion_timestamp.is_none()
            && reference.is_some_and(|r| refers(r, claim))
            && capacity(v) >= requested(claim)
            && misfit(v, claim).is_none()
    };
    volumes.iter().find(kept).map(Arc::clone)
}

/// Returns the best unbound volume for the claim: among those with the fewest access modes the smallest.
pub fn free(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
) -> Option<Arc<PersistentVolume>> {
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    let selector = selector.map(|s| Selector::from_label_selector(Some(s)));
    let free = |v: &&Arc<PersistentVolume>| {
        let unclaimed = v.spec.as_ref().is_some_and(|s| s.claim_ref.is_none());
        let available = v.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Available");
        let labelled = match &selector {
            None => true,
            Some(Ok(selector)) => selector.matches_optional(v.metadata.labels.as_ref()),
            Some(Err(_)) => false,
        };
        unclaimed && available && labelled && mismatch(v, claim).is_none()
    };
    let ways = |v: &PersistentVolume| {
        let modes = v.spec.as_ref().and_then(|s| s.access_modes.as_ref());
        modes.into_iter().flatten().collect::<BTreeSet<_>>().len()
    };
    let best = volumes.iter().filter(free).min_by(|a, b| {
        let by_size = || capacity(a).partial_cmp(&capacity(b)).unwrap_or(Ordering::Equal);
        ways(a).cmp(&ways(b)).then_with(by_size).then_with(|| a.name().cmp(b.name()))
    });
    best.map(Arc::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(name: &str, size: &str, extra: Value) -> Arc<PersistentVolume> {
        let mut spec = json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let object = json!({"metadata": {"name": name, "labels": {"tier": name}}, "spec": spec, "status": {"phase": "Available"}});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn claim(size: &str, extra: Value) -> PersistentVolumeClaim {
        let mut spec =
            json!({"resources": {"requests": {"storage": size}}, "accessModes": ["ReadWriteOnce"]});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(
            json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": spec}),
        )
        .unwrap()
    }

    #[test]
    fn the_smallest_that_suits_is_found() {
        let to = |name: &str, uid: Option<&str>| json!({"claimRef": {"namespace": "ns", "name": name, "uid": uid}});
        let volumes = [
            volume("big", "100Gi", json!({})),
            volume("small", "1Gi", json!({})),
            volume("middle", "10Gi", json!({})),
            volume("fast", "5Gi", json!({"storageClassName": "fast"})),
            volume("block", "5Gi", json!({"volumeMode": "Block"})),
            volume("shared", "2Gi", json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]})),
            volume("gold", "2Gi", json!({"volumeAttributesClassName": "gold"})),
            volume("taken", "5Gi", to("other", Some("o"))),
        ];
        for (claim, expected) in [
            (claim("500Mi", json!({})), Some("small")),
            (claim("2Gi", json!({})), Some("middle")),
            (claim("2Gi", json!({"storageClassName": "fast"})), Some("fast")),
            (claim("2Gi", json!({"volumeMode": "Block"})), Some("block")),
            (claim("2Gi", json!({"accessModes": ["ReadWriteMany"]})), Some("shared")),
            (claim("2Gi", json!({"selector": {"matchLabels": {"tier": "big"}}})), Some("big")),
            (claim("2Gi", json!({"volumeAttributesClassName": "gold"})), Some("gold")),
            (claim("200Gi", json!({})), None),
        ] {
            assert_eq!(free(&claim, &volumes).as_ref().map(|v| v.name()), expected, "{claim:?}");
        }

        let mut more = volumes.to_vec();
        more.push(volume(
            "mine",
            "50Gi",
            json!({"storageClassName": "", "claimRef": {"namespace": "ns", "name": "c"}}),
        ));
        let mine = claim("2Gi", json!({"storageClassName": "other"}));
        assert_eq!(reserved(&mine, &more).unwrap().name(), "mine", "its class does not matter");
        assert!(reserved(&claim("2Gi", json!({"volumeMode": "Block"})), &more).is_none());
        let small = mismatch(&volumes[1], &claim("2Gi", json!({})));
        assert_eq!(small.as_deref(), Some("requested PV is too small"));
        let mut old = claim("1Gi", json!({"storageClassName": "new"}));
        old.metadata.annotations = Some([(CLASS_ANNOTATION.to_owned(), "old".to_owned())].into());
        assert_eq!(class_of(&old), "old");
    }
}
