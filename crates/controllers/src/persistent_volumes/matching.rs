//! Which volume fits a claim: pure functions.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;
use knarr_apimachinery::selector::Selector;

const STORAGE: &str = "storage";

pub fn class_of(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.storage_class_name.as_deref()).unwrap_or("")
}

/// Whether a volume's claimRef is this claim: by name, and by uid where it has one.
pub fn refers(reference: &ObjectReference, claim: &PersistentVolumeClaim) -> bool {
    let same = |a: &Option<String>, b: &str| a.as_deref().unwrap_or("") == b;
    same(&reference.namespace, claim.namespace())
        && same(&reference.name, claim.name())
        && reference.uid.as_deref().is_none_or(|uid| uid.is_empty() || uid == claim.uid())
}

pub fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    let amount = volume.spec.as_ref()?.capacity.as_ref()?.get(STORAGE)?;
    Quantity::parse(&amount.0).ok()
}

fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let amount = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(STORAGE)?;
    Quantity::parse(&amount.0).ok()
}

fn mode(mode: Option<&String>) -> &str {
    mode.map_or("Filesystem", String::as_str)
}

/// Why a volume that a claim names, or that names the claim, does not suit it; in upstream's words.
pub fn mismatch(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    let (Some(offer), Some(wish)) = (&volume.spec, &claim.spec) else { return Some("no spec") };
    if let (Some(has), Some(wants)) = (capacity(volume), requested(claim))
        && has < wants
    {
        return Some("requested PV is too small");
    }
    if offer.storage_class_name.as_deref().unwrap_or("") != class_of(claim) {
        return Some("storageClassName does not match");
    }
    if mode(offer.volume_mode.as_ref()) != mode(wish.volume_mode.as_ref()) {
        return Some("incompatible volumeMode");
    }
    let modes = offer.access_modes.as_deref().unwrap_or_default();
    if !wish.access_modes.iter().flatten().all(|m| modes.contains(m)) {
        return Some("incompatible accessMode");
    }
    None
}

/// The smallest free volume that suits the claim; one that names the claim comes first.
pub fn find(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
) -> Option<Arc<PersistentVolume>> {
    let named = |v: &&Arc<PersistentVolume>| {
        let reference = v.spec.as_ref().and_then(|s| s.claim_ref.as_ref());
        v.metadata.deletion_timestamp.is_none()
            && reference.is_some_and(|r| refers(r, claim))
            && mismatch(v, claim).is_none()
    };
    if let Some(volume) = volumes.iter().find(named) {
        return Some(Arc::clone(volume));
    }
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
        v.metadata.deletion_timestamp.is_none()
            && unclaimed
            && available
            && labelled
            && mismatch(v, claim).is_none()
    };
    let suitable = volumes.iter().filter(free).filter(|v| capacity(v).is_some());
    let smallest = suitable.min_by(|a, b| {
        capacity(a)
            .partial_cmp(&capacity(b))
            .unwrap_or(std::cmp::Ordering::Equal)
            .then(a.name().cmp(b.name()))
    });
    smallest.map(Arc::clone)
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
            volume("shared", "20Gi", json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]})),
            volume("taken", "5Gi", to("other", Some("o"))),
        ];
        for (claim, expected) in [
            (claim("500Mi", json!({})), Some("small")),
            (claim("2Gi", json!({})), Some("middle")),
            (claim("2Gi", json!({"storageClassName": "fast"})), Some("fast")),
            (claim("2Gi", json!({"volumeMode": "Block"})), Some("block")),
            (claim("2Gi", json!({"accessModes": ["ReadWriteMany"]})), Some("shared")),
            (claim("2Gi", json!({"selector": {"matchLabels": {"tier": "big"}}})), Some("big")),
            (claim("200Gi", json!({})), None),
        ] {
            assert_eq!(find(&claim, &volumes).as_ref().map(|v| v.name()), expected, "{claim:?}");
        }
        let mut more = volumes.to_vec();
        more.push(volume("mine", "50Gi", to("c", None)));
        assert_eq!(find(&claim("2Gi", json!({})), &more).unwrap().name(), "mine");
        assert_eq!(mismatch(&volumes[1], &claim("2Gi", json!({}))), Some("requested PV is too small"));
    }
}
