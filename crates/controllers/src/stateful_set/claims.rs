//! The claims of a StatefulSet's pods: created before the pod, with owners according to the retention policy.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_api::kind::Kind;

use super::identity::in_range;
use crate::support::owners::{controller_of, controller_reference};

/// The object that should own a claim; deleting it deletes the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Nobody,
    Set,
    Pod,
}

fn wanted_owner(set: &StatefulSet, ordinal: i32) -> Owner {
    let policy = set.spec.persistent_volume_claim_retention_policy.clone().unwrap_or_default();
    let deletes = |when: Option<String>| when.as_deref() == Some("Delete");
    let condemned = !in_range(set, ordinal);
    match (deletes(policy.when_scaled), deletes(policy.when_deleted)) {
        (true, _) if condemned => Owner::Pod,
        (_, true) => Owner::Set,
        _ => Owner::Nobody,
    }
}

/// Returns the claim's owners under the policy; `None` if they are right already or another controller manages the
/// claim.
pub fn owners(
    set: &StatefulSet,
    ordinal: i32,
    pod: Option<&Pod>,
    claim: &PersistentVolumeClaim,
) -> Option<Vec<OwnerReference>> {
    let ours = |r: &OwnerReference| {
        r.uid == set.uid() || pod.is_some_and(|p| r.uid == p.uid()) || is_own_pod(set, ordinal, r)
    };
    if controller_of(&claim.metadata).is_some_and(|r| !ours(r)) {
        return None;
    }
    let before = claim.metadata.owner_references.clone().unwrap_or_default();
    let mut after: Vec<_> = before.iter().filter(|r| !ours(r)).cloned().collect();
    match (wanted_owner(set, ordinal), pod) {
        (Owner::Set, _) => after.push(controller_reference(set)),
        (Owner::Pod, Some(pod)) => after.push(controller_reference(pod)),
        _ => {}
    }
    (after != before).then_some(after)
}

/// Returns whether the claim will be deleted with an earlier pod of this ordinal, because scaling down deletes
/// claims. A new pod must wait until the claim is gone.
pub fn goes_with_another(
    set: &StatefulSet,
    ordinal: i32,
    pod: Option<&Pod>,
    claim: &PersistentVolumeClaim,
) -> bool {
    let policy = set.spec.persistent_volume_claim_retention_policy.as_ref();
    let deletes = policy.and_then(|p| p.when_scaled.as_deref()) == Some("Delete");
    let mut owners = claim.metadata.owner_references.iter().flatten();
    deletes && owners.any(|r| is_own_pod(set, ordinal, r) && pod.is_none_or(|p| p.uid() != r.uid))
}

/// Returns whether a claim of this name belongs to the set.
pub fn is_of(set: &StatefulSet, name: &str) -> bool {
    let templates = set.spec.volume_claim_templates.iter().flatten();
    templates.filter_map(|t| t.metadata.name.as_deref()).any(|template| {
        let rest = name.strip_prefix(template).and_then(|rest| rest.strip_prefix('-'));
        let rest = rest.and_then(|rest| rest.strip_prefix(set.name())?.strip_prefix('-'));
        rest.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
    })
}

/// Returns whether the reference names a pod of this ordinal.
fn is_own_pod(set: &StatefulSet, ordinal: i32, reference: &OwnerReference) -> bool {
    reference.kind == "Pod" && reference.name == super::identity::pod_name(set, ordinal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_that_goes_with_a_former_pod_is_not_for_a_new_one() {
        let set = |scaled: &str| -> StatefulSet {
            serde_json::from_value(json!({
                "metadata": {"name": "w", "uid": "u1"},
                "spec": {"replicas": 3, "serviceName": "s", "selector": {}, "template": {},
                    "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
                    "persistentVolumeClaimRetentionPolicy": {"whenScaled": scaled}},
            }))
            .unwrap()
        };
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "data-w-2",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "w-2", "uid": "p1"}]}}))
        .unwrap();
        let pod = |uid: &str| Pod {
            metadata: serde_json::from_value(json!({"name": "w-2", "uid": uid})).unwrap(),
            ..Pod::default()
        };
        assert!(goes_with_another(&set("Delete"), 2, None, &claim));
        assert!(goes_with_another(&set("Delete"), 2, Some(&pod("p2")), &claim));
        assert!(!goes_with_another(&set("Delete"), 2, Some(&pod("p1")), &claim));
        assert!(!goes_with_another(&set("Retain"), 2, None, &claim));
        assert!(is_of(&set("Delete"), "data-w-2"));
        for other in ["data-w-x", "data-v-2", "data-w", "logs-w-2", "data-w-2-3"] {
            assert!(!is_of(&set("Delete"), other), "{other}");
        }
    }

    #[test]
    fn the_policy_decides_who_owns_a_claim() {
        let table = [
            ("Retain", "Retain", 0, Owner::Nobody),
            ("Retain", "Retain", 1, Owner::Nobody),
            ("Retain", "Delete", 0, Owner::Set),
            ("Retain", "Delete", 1, Owner::Set),
            ("Delete", "Retain", 0, Owner::Nobody),
            ("Delete", "Retain", 1, Owner::Pod),
            ("Delete", "Delete", 0, Owner::Set),
            ("Delete", "Delete", 1, Owner::Pod),
        ];
        for (scaled, deleted, ordinal, expected) in table {
            let set: StatefulSet = serde_json::from_value(json!({
                "metadata": {"name": "w", "uid": "u1"},
                "spec": {"replicas": 1, "serviceName": "s", "selector": {}, "template": {},
                    "persistentVolumeClaimRetentionPolicy": {"whenScaled": scaled, "whenDeleted": deleted}},
            }))
            .unwrap();
            assert_eq!(wanted_owner(&set, ordinal), expected, "{scaled} {deleted} {ordinal}");
            let mut pod = Pod::default();
            (pod.metadata.uid, pod.metadata.name) = (Some("p1".into()), Some(format!("w-{ordinal}")));
            let mut claim = PersistentVolumeClaim::default();
            let after = owners(&set, ordinal, Some(&pod), &claim);
            assert_eq!(after.is_some(), expected != Owner::Nobody);
            claim.metadata.owner_references = after;
            assert_eq!(owners(&set, ordinal, Some(&pod), &claim), None, "settled");
        }
    }
}
