//! Generic ephemeral volumes: creates each one's claim from the pod's template. The pod owns the claim, which is
//! deleted with it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::status::StatusError;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Error, Event, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::support::owners::still_owns;
use crate::support::refusals::namespace_is_terminating;

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "ephemeral-volume-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The index of pods by `namespace/name` of the claims that their ephemeral volumes need.
const BY_CLAIM: &str = "ephemeral-claims";

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<ObjectKey>> = WorkQueue::new(Arc::clone(&cx.clock));
    let pods = cx.informers.informer::<Pod>();
    let claims = cx.informers.informer::<PersistentVolumeClaim>();
    pods.add_index(BY_CLAIM, |pod| {
        ephemeral(pod).map(|v| format!("{}/{}", pod.namespace(), claim_name(pod, v))).collect()
    });
    let on_pod = Arc::clone(&queue);
    pods.add_handler(move |event| {
        if let Event::Added(pod) = event
            && ephemeral(pod).next().is_some()
        {
            on_pod.add(pod.key());
        }
    });
    let (on_claim, of_claim) = (Arc::clone(&queue), pods.lister());
    claims.add_handler(move |event| {
        if let Event::Deleted(claim) = event {
            let key = format!("{}/{}", claim.namespace(), claim.name());
            of_claim.by_index(BY_CLAIM, &key).iter().for_each(|pod| on_claim.add(pod.key()));
        }
    });
    if !(pods.wait_synced().await && claims.wait_synced().await) {
        return;
    }
    let (pods, claims, stop) = (pods.lister(), claims.lister(), cx.stop.clone());
    let workers = cx.workers();
    let reconcile = move |key: ObjectKey| {
        let (cx, pods, claims) = (Arc::clone(&cx), pods.clone(), claims.clone());
        async move { reconcile(&cx, &pods, &claims, &key).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

fn ephemeral(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_ref());
    volumes.into_iter().flatten().filter(|v| v.ephemeral.is_some())
}

fn claim_name(pod: &Pod, volume: &Volume) -> String {
    format!("{}-{}", pod.name(), volume.name)
}

async fn reconcile(
    cx: &Context,
    pods: &Lister<Pod>,
    claims: &Lister<PersistentVolumeClaim>,
    key: &ObjectKey,
) -> Result<()> {
    let Some(pod) = pods.get_key(key).filter(|p| p.metadata.deletion_timestamp.is_none()) else {
        return Ok(());
    };
    for volume in ephemeral(&pod) {
        let name = claim_name(&pod, volume);
        let made = match claims.get(pod.namespace(), &name) {
            Some(claim) if is_of(&claim, &pod) => Ok(()),
            Some(_) => Err(failure(format!(
                "PVC {0}/{name} was not created for pod {0}/{1} (pod is not owner)",
                pod.namespace(),
                pod.name()
            ))),
            None => create(cx, &pod, volume, name).await,
        };
        if let Err(error) = made {
            let text = format!("ephemeral volume {}: {error}", volume.name);
            cx.recorder.event(&*pod, EventType::Warning, "FailedBinding", text);
            return Err(error);
        }
    }
    Ok(())
}

/// Makes the error that carries the text of the pod's event; the key is retried.
fn failure(text: String) -> Error {
    Error::Status(StatusError::new(500, "", text))
}

fn is_of(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners.filter(|o| o.controller == Some(true)).any(|o| o.uid == pod.uid())
}

async fn create(cx: &Context, pod: &Pod, volume: &Volume, name: String) -> Result<()> {
    let template = volume.ephemeral.as_ref().and_then(|e| e.volume_claim_template.clone());
    let Some(template) = template else { return Ok(()) };
    let from = template.metadata.unwrap_or_default();
    let metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: pod.metadata.namespace.clone(),
        annotations: from.annotations,
        labels: from.labels,
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    };
    let claim = PersistentVolumeClaim { metadata, spec: Some(template.spec), status: None };
    still_owns(&cx.client, pod).await?;
    match cx.client.create(&claim).await {
        Err(error) if namespace_is_terminating(&error) => Ok(()),
        Err(error) => Err(failure(format!("create PVC {name}: {error}"))),
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::World;
    use k8s_openapi::api::core::v1::Event as ApiEvent;

    #[tokio::test(start_paused = true)]
    async fn a_pod_gets_its_claims_and_keeps_off_others() {
        let world = World::new(&[Pod::RESOURCE, PersistentVolumeClaim::RESOURCE, ApiEvent::RESOURCE]);
        let template = json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
            "spec": {"containers": [], "volumes": [
                {"name": "data", "ephemeral": {"volumeClaimTemplate": template}},
                {"name": "tmp", "emptyDir": {}}]}}))
            .unwrap();
        world.api.add(&pod);
        world.start(&DESCRIPTOR);
        world.pass(1.0).await;
        let claim = || world.api.get::<PersistentVolumeClaim>("ns", "web-data");
        let made = claim().unwrap();
        assert_eq!(made.metadata.labels.unwrap()["a"], "b");
        assert_eq!(made.metadata.owner_references.unwrap()[0].uid, "u1");
        assert_eq!(world.api.all::<PersistentVolumeClaim>().len(), 1);
        world.api.remove::<PersistentVolumeClaim>("ns", "web-data");
        world.pass(1.0).await;
        assert!(claim().is_some(), "created again");
        world.api.remove::<PersistentVolumeClaim>("ns", "web-data");
        world.api.remove::<Pod>("ns", "web");
        world.pass(1.0).await;
        let other: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "web-data", "namespace": "ns"}, "spec": {}}))
                .unwrap();
        world.api.add(&other);
        world
            .api
            .add(&Pod { metadata: ObjectMeta { uid: Some("u2".into()), ..pod.metadata.clone() }, ..pod });
        world.pass(1.0).await;
        let want = "web FailedBinding ephemeral volume data: PVC ns/web-data was not created for pod ns/web (pod is not owner)";
        assert!(world.events().iter().any(|e| e.starts_with(want)), "{:?}", world.events());
    }
}
