//! Resolves the claims that a pod refers to.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use knarr_api::kind::Kind;

/// The name of a claim that a pod refers to.
pub struct Named {
    pub name: String,
    /// The claim was created for the pod, which must be its owner.
    pub own: bool,
}

pub fn pod_claims(pod: &Pod) -> &[PodResourceClaim] {
    pod.spec.as_ref().and_then(|s| s.resource_claims.as_deref()).unwrap_or_default()
}

/// Returns the name of the claim; `None` when it was intentionally not created.
pub fn name_of(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<Named>, String> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some(Named { name: name.clone(), own: false }));
    }
    let whose = || format!("pod \"{}/{}\"", pod.namespace(), pod.name());
    if claim.resource_claim_template_name.is_none() {
        let name = &claim.name;
        return Err(format!(
            "{}, spec.resourceClaim {name:?}: none of the supported fields are set",
            whose()
        ));
    }
    let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_deref()).unwrap_or_default();
    match statuses.iter().find(|s| s.name == claim.name) {
        Some(status) => Ok(status.resource_claim_name.clone().map(|name| Named { name, own: true })),
        None => Err(format!("{}: ResourceClaim not created yet", whose())),
    }
}

pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

pub fn is_reserved_for(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
    reserved.iter().any(|r| r.uid == pod_uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_are_named_or_made() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "1"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "a", "resourceClaimName": "shared"},
                {"name": "b", "resourceClaimTemplateName": "t"},
                {"name": "c", "resourceClaimTemplateName": "t"},
                {"name": "d", "resourceClaimTemplateName": "t"},
                {"name": "e"}]},
            "status": {"resourceClaimStatuses": [
                {"name": "b", "resourceClaimName": "p-b-x"}, {"name": "c"}]}}))
        .unwrap();
        let found: Vec<_> =
            pod_claims(&pod).iter().map(|c| name_of(&pod, c).map(|n| n.map(|n| (n.name, n.own)))).collect();
        assert_eq!(
            found,
            [
                Ok(Some(("shared".into(), false))),
                Ok(Some(("p-b-x".into(), true))),
                Ok(None),
                Err("pod \"ns/p\": ResourceClaim not created yet".into()),
                Err("pod \"ns/p\", spec.resourceClaim \"e\": none of the supported fields are set".into()),
            ]
        );
    }
}
