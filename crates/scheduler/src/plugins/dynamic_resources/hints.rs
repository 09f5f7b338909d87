//! Queueing hints: whether a change of a claim may make a waiting pod fit.

use k8s_openapi::api::resource::v1::ResourceClaim;
use knarr_api::kind::Kind;

use super::devices::Devices;
use super::extended;
use super::names::allocation;
use crate::framework::{Changed, PodInfo};

/// Returns whether this change of a claim may make the pod fit.
pub fn claim_helps(devices: &Devices, pod: &PodInfo, change: &Changed) -> bool {
    let (old, new) = (change.old::<ResourceClaim>(), change.new::<ResourceClaim>());
    let Some(new) = new else {
        return old.is_none_or(|old| allocation(old).is_some() || extended::is_of(old, pod.uid()));
    };
    let Ok(claims) = devices.claims_of(pod.pod()) else { return false };
    if old.is_some_and(|old| allocation(old).is_some() && allocation(new).is_none()) {
        return true;
    }
    claims.iter().any(|claim| claim.uid() == new.uid()) && old.is_none_or(|old| old.status != new.status)
}
