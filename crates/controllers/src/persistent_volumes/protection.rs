//! Protection of claims and volumes in use: a deleted claim keeps its finalizer until no pod uses it, a volume until
//! it is unbound.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, Pod, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Informer, ListOptions, Result};

use crate::context::{Context, Descriptor};
use crate::support::owners::controller_of;
use crate::support::pod_state;

pub const CLAIMS: Descriptor = Descriptor {
    name: "persistentvolumeclaim-protection-controller",
    run: |cx| Box::pin(async move { run_claims(cx).await }),
};
pub const VOLUMES: Descriptor = Descriptor {
    name: "persistentvolume-protection-controller",
    run: |cx| Box::pin(async move { run_volumes(cx).await }),
};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
/// The condition that records since when no pod has used a claim.
const UNUSED: &str = "Unused";
/// The index of pods by `namespace/claim` of the claims they use.
const BY_CLAIM: &str = "persistentVolumeClaim";

/// What to do with the finalizer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Add,
    Remove,
    Leave,
}

pub(super) fn verdict<K: Kind>(object: &K, finalizer: &str, in_use: bool) -> Verdict {
    let has = object.meta().finalizers.iter().flatten().any(|f| f == finalizer);
    match (object.meta().deletion_timestamp.is_some(), has) {
        (true, true) if !in_use => Verdict::Remove,
        (false, false) => Verdict::Add,
        _ => Verdict::Leave,
    }
}

pub(super) async fn carry_out<K: Kind>(
    cx: &Context,
    object: &K,
    finalizer: &str,
    verdict: Verdict,
) -> Result<()> {
    let mut next = object.clone();
    let finalizers = next.meta_mut().finalizers.get_or_insert_default();
    match verdict {
        Verdict::Leave => return Ok(()),
        Verdict::Add => finalizers.push(finalizer.to_owned()),
        Verdict::Remove => finalizers.retain(|f| f != finalizer),
    }
    match cx.client.update(&next).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

/// Returns the claim of a pod's volume, and whether it is an ephemeral volume's claim.
fn claim_of(pod: &Pod, volume: &Volume) -> Option<(String, bool)> {
    if let Some(named) = &volume.persistent_volume_claim {
        return Some((named.claim_name.clone(), false));
    }
    volume.ephemeral.as_ref().map(|_| (format!("{}-{}", pod.name(), volume.name), true))
}

/// Returns the claims that a pod uses, as `namespace/name`.
pub(super) fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let names = volumes.filter_map(|volume| claim_of(pod, volume));
    names.map(|(name, _)| format!("{}/{name}", pod.namespace())).collect()
}

/// Returns whether the pod uses the claim. An ephemeral volume's claim counts only if this pod owns it, and only if
/// `own`.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim, own: bool) -> bool {
    let is_of_pod = || controller_of(&claim.metadata).is_some_and(|owner| owner.uid == pod.uid());
    let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.any(|volume| {
        claim_of(pod, volume)
            .is_some_and(|(name, made)| name == claim.name() && (!made || (own && is_of_pod())))
    })
}

/// Returns whether the pod keeps a deleted claim: only a pod that is bound to a node does, because no other can be
/// started with the claim. A pod whose grace period is over does not keep the claims of its ephemeral volumes, because
/// its removal may wait for their deletion.
fn keeps(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let has_node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty());
    let is_shut_down =
        pod.metadata.deletion_timestamp.is_some() && pod.metadata.deletion_grace_period_seconds == Some(0);
    has_node && uses(pod, claim, !is_shut_down)
}

/// Returns whether the pod counts as a user for the condition `Unused`.
fn counts(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    !pod_state::has_ended(pod) && uses(pod, claim, true)
}

/// Returns the claim with the right condition `Unused`; `None` if it has it already.
fn with_unused(claim: &PersistentVolumeClaim, used: bool, now: Timestamp) -> Option<PersistentVolumeClaim> {
    let (status, reason, message) = match used {
        true => ("False", "PodUsingPVC", "A pod is currently referencing this PVC"),
        false => ("True", "NoPodsUsingPVC", "No pods are currently referencing this PVC"),
    };
    let mut next = claim.clone();
    let conditions = next.status.get_or_insert_default().conditions.get_or_insert_default();
    let condition = PersistentVolumeClaimCondition {
        type_: UNUSED.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        last_probe_time: None,
    };
    match conditions.iter_mut().find(|c| c.type_ == UNUSED) {
        Some(known) if known.status == status => return None,
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
    Some(next)
}

async fn run_claims(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let claims = cx.informers.informer::<PersistentVolumeClaim>();
    let pods = cx.informers.informer::<Pod>();
    pods.add_index(BY_CLAIM, claims_of);
    let on_claim = Arc::clone(&queue);
    claims.add_handler(move |event| on_claim.add(event.object().key()));
    let on_pod = Arc::clone(&queue);
    pods.add_handler(move |event| {
        for claim in claims_of(event.object()) {
            if let Some((namespace, name)) = claim.split_once('/') {
                on_pod.add(ObjectKey::new(namespace, name));
            }
        }
    });
    if !(claims.wait_synced().await && pods.wait_synced().await) {
        return;
    }
    let stop = cx.stop.clone();
    let reconcile = move |key: ObjectKey| {
        let (cx, claims, pods) = (Arc::clone(&cx), claims.clone(), pods.clone());
        async move { protect_claim(&cx, &claims, &pods, &key).await }
    };
    queue.run(CLAIMS.name, 1, stop, reconcile).await;
}

async fn protect_claim(
    cx: &Context,
    claims: &Informer<PersistentVolumeClaim>,
    pods: &Informer<Pod>,
    key: &ObjectKey,
) -> Result<()> {
    let Some(claim) = claims.lister().get_key(key) else { return Ok(()) };
    let of_claim = pods.lister().by_index(BY_CLAIM, &key.to_string());
    let is_bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    if is_bound && claim.metadata.deletion_timestamp.is_none() {
        let used = of_claim.iter().any(|pod| counts(pod, &claim));
        if let Some(mut next) = with_unused(&claim, used, cx.clock.now()) {
            // The informer may lag behind a new pod: the API server is asked before the claim is reported as unused.
            if !used && live(cx, &claim).await?.iter().any(|pod| counts(pod, &claim)) {
                match with_unused(&claim, true, cx.clock.now()) {
                    Some(used) => next = used,
                    None => return Ok(()),
                }
            }
            return match cx.client.update_status(&next).await {
                // Further changes arrive as events.
                Err(e) if !e.is_not_found() => Err(e),
                _ => Ok(()),
            };
        }
    }
    let in_use = of_claim.iter().any(|pod| keeps(pod, &claim));
    let verdict = verdict(&*claim, CLAIM_FINALIZER, in_use);
    // The informer may lag behind a pod that was just bound: the API server is asked before the finalizer is removed.
    if verdict == Verdict::Remove && live(cx, &claim).await?.iter().any(|pod| keeps(pod, &claim)) {
        return Ok(());
    }
    carry_out(cx, &*claim, CLAIM_FINALIZER, verdict).await
}

/// Lists the pods of the claim's namespace from the API server.
async fn live(cx: &Context, claim: &PersistentVolumeClaim) -> Result<Vec<Arc<Pod>>> {
    Ok(cx.client.list::<Pod>(Some(claim.namespace()), &ListOptions::default()).await?.0)
}

async fn run_volumes(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let volumes = cx.informers.informer::<PersistentVolume>();
    let on_volume = Arc::clone(&queue);
    volumes.add_handler(move |event| on_volume.add(event.object().key()));
    if !volumes.wait_synced().await {
        return;
    }
    let stop = cx.stop.clone();
    let reconcile = move |key: ObjectKey| {
        let (cx, volumes) = (Arc::clone(&cx), volumes.clone());
        async move {
            let Some(volume) = volumes.lister().get_key(&key) else { return Ok(()) };
            let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
            let verdict = verdict(&*volume, VOLUME_FINALIZER, phase == Some("Bound"));
            carry_out(&cx, &*volume, VOLUME_FINALIZER, verdict).await
        }
    };
    queue.run(VOLUMES.name, 1, stop, reconcile).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn a_claim_stays_while_a_pod_uses_it() {
        let world = World::new(&[PersistentVolumeClaim::RESOURCE, Pod::RESOURCE]);
        let client = world.api.client();
        let mut claim = PersistentVolumeClaim::default();
        (claim.metadata.name, claim.metadata.namespace) = (Some("c".into()), Some("ns".into()));
        client.create(&claim).await.unwrap();
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"},
            "spec": {"nodeName": "n", "containers": [],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}))
        .unwrap();
        client.create(&pod).await.unwrap();
        world.start(&CLAIMS);
        world.pass(1.0).await;
        let get = async || client.get::<PersistentVolumeClaim>("ns", "c").await;
        assert_eq!(get().await.unwrap().metadata.finalizers.unwrap(), [CLAIM_FINALIZER]);
        client.delete::<PersistentVolumeClaim>("ns", "c", &DeleteOptions::default()).await.unwrap();
        world.pass(1.0).await;
        assert!(get().await.is_ok());
        world.api.remove::<Pod>("ns", "p");
        world.pass(1.0).await;
        assert!(get().await.is_err());
    }

    #[test]
    fn who_keeps_a_claim_and_who_uses_it() {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "p-v", "namespace": "ns",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "mine", "controller": true}]}}))
        .unwrap();
        let pod = |uid: &str,
                   node: &str,
                   meta: serde_json::Value,
                   volume: serde_json::Value,
                   phase: &str|
         -> Pod {
            let mut pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": uid},
                "spec": {"nodeName": node, "containers": [], "volumes": [volume]}, "status": {"phase": phase}});
            pod["metadata"].as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
            serde_json::from_value(pod).unwrap()
        };
        let (own, named) = (
            || json!({"name": "v", "ephemeral": {}}),
            || json!({"name": "x", "persistentVolumeClaim": {"claimName": "p-v"}}),
        );
        let gone = || json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0});
        for (pod, kept, used) in [
            (pod("mine", "n", json!({}), own(), "Running"), true, true),
            (pod("other", "n", json!({}), own(), "Running"), false, false),
            (pod("mine", "", json!({}), own(), "Pending"), false, true),
            (pod("mine", "n", gone(), own(), "Running"), false, true),
            (pod("mine", "n", gone(), named(), "Running"), true, true),
            (pod("mine", "n", json!({}), named(), "Succeeded"), true, false),
        ] {
            assert_eq!((keeps(&pod, &claim), counts(&pod, &claim)), (kept, used), "{pod:?}");
        }
        let unused = with_unused(&claim, false, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(with_unused(&unused, false, Timestamp::UNIX_EPOCH), None);
        assert!(with_unused(&unused, true, Timestamp::UNIX_EPOCH).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_stays_while_it_is_bound() {
        let world = World::new(&[PersistentVolume::RESOURCE]);
        let client = world.api.client();
        let volume: PersistentVolume = serde_json::from_value(
            json!({"metadata": {"name": "v", "finalizers": [VOLUME_FINALIZER]}, "status": {"phase": "Bound"}}),
        )
        .unwrap();
        client.create(&volume).await.unwrap();
        world.start(&VOLUMES);
        client.delete::<PersistentVolume>("", "v", &DeleteOptions::default()).await.unwrap();
        world.pass(1.0).await;
        let mut live: PersistentVolume = client.get("", "v").await.unwrap();
        live.status.as_mut().unwrap().phase = Some("Released".into());
        client.update_status(&live).await.unwrap();
        world.pass(1.0).await;
        assert!(client.get::<PersistentVolume>("", "v").await.is_err());
    }
}
