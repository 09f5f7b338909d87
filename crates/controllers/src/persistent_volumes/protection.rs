//! Protection of claims and volumes in use: a deleted claim stays until no pod uses it, a volume until it is unbound.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Informer, ListOptions, Result};

use crate::manager::{Context, Descriptor};

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
/// The index of pods by `namespace/claim` of the claims they use.
const BY_CLAIM: &str = "persistentVolumeClaim";

/// What is to become of the finalizer.
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

/// The claims that a pod uses, as `namespace/name`; none before it has a node: it is not started with a claim that is
/// being deleted.
fn claims_of(pod: &Pod) -> Vec<String> {
    let Some(spec) = pod.spec.as_ref().filter(|s| s.node_name.as_deref().is_some_and(|n| !n.is_empty()))
    else {
        return Vec::new();
    };
    let names = spec.volumes.iter().flatten().filter_map(|volume| {
        let claim = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
        claim.or_else(|| volume.ephemeral.is_some().then(|| format!("{}-{}", pod.name(), volume.name)))
    });
    names.map(|name| format!("{}/{name}", pod.namespace())).collect()
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
    claims.wait_synced().await;
    pods.wait_synced().await;
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
    let in_use = !pods.lister().by_index(BY_CLAIM, &key.to_string()).is_empty();
    let verdict = verdict(&*claim, CLAIM_FINALIZER, in_use);
    if verdict == Verdict::Remove {
        // The informer may be behind a pod that was just bound: ask before letting go.
        let (live, _) = cx.client.list::<Pod>(Some(claim.namespace()), &ListOptions::default()).await?;
        if live.iter().any(|pod| claims_of(pod).iter().any(|c| *c == key.to_string())) {
            return Ok(());
        }
    }
    carry_out(cx, &*claim, CLAIM_FINALIZER, verdict).await
}

async fn run_volumes(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let volumes = cx.informers.informer::<PersistentVolume>();
    let on_volume = Arc::clone(&queue);
    volumes.add_handler(move |event| on_volume.add(event.object().key()));
    volumes.wait_synced().await;
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
