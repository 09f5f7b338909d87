//! Protection of VolumeAttributesClasses in use: a deleted class keeps its finalizer until no claim or volume names
//! it.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer};

use super::protection::{carry_out, verdict};
use crate::context::{Context, Descriptor};

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "volumeattributesclass-protection-controller",
    run: |cx| Box::pin(async move { run(cx).await }),
};

const FINALIZER: &str = "kubernetes.io/vac-protection";
/// The index of claims and of volumes by the classes they name.
const BY_CLASS: &str = "volumeAttributesClass";

/// Returns the classes of a claim: wanted, current, and target of a modification.
fn of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let wanted = claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone());
    let status = claim.status.as_ref();
    let current = status.and_then(|s| s.current_volume_attributes_class_name.clone());
    let target =
        status.and_then(|s| s.modify_volume_status.as_ref()?.target_volume_attributes_class_name.clone());
    let names: BTreeSet<String> = [wanted, current, target].into_iter().flatten().collect();
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

fn of_volume(volume: &PersistentVolume) -> Vec<String> {
    let name = volume.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone());
    name.into_iter().filter(|name| !name.is_empty()).collect()
}

/// Queues the classes that an object no longer names.
fn release<K: Kind>(
    informer: &Informer<K>,
    queue: &Arc<WorkQueue<ObjectKey>>,
    classes: fn(&K) -> Vec<String>,
) {
    informer.add_index(BY_CLASS, classes);
    let queue = Arc::clone(queue);
    informer.add_handler(move |event| {
        let (before, now) = match event {
            Event::Added(_) => return,
            Event::Updated { old, new } => (classes(old), classes(new)),
            Event::Deleted(object) => (classes(object), Vec::new()),
        };
        before.iter().filter(|name| !now.contains(name)).for_each(|name| queue.add(ObjectKey::new("", name)));
    });
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let classes = cx.informers.informer::<VolumeAttributesClass>();
    let claims = cx.informers.informer::<PersistentVolumeClaim>();
    let volumes = cx.informers.informer::<PersistentVolume>();
    let on_class = Arc::clone(&queue);
    classes.add_handler(move |event| on_class.add(event.object().key()));
    release(&claims, &queue, of_claim);
    release(&volumes, &queue, of_volume);
    if !(classes.wait_synced().await && claims.wait_synced().await && volumes.wait_synced().await) {
        return;
    }
    let stop = cx.stop.clone();
    let reconcile = move |key: ObjectKey| {
        let (cx, classes, claims, volumes) =
            (Arc::clone(&cx), classes.clone(), claims.clone(), volumes.clone());
        async move {
            let Some(class) = classes.lister().get_key(&key) else { return Ok(()) };
            let in_use = !volumes.lister().by_index(BY_CLASS, class.name()).is_empty()
                || !claims.lister().by_index(BY_CLASS, class.name()).is_empty();
            carry_out(&cx, &*class, FINALIZER, verdict(&*class, FINALIZER, in_use)).await
        }
    };
    queue.run(DESCRIPTOR.name, 1, stop, reconcile).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
    use serde_json::json;

    #[test]
    fn a_claim_names_the_classes_it_wants_has_and_moves_to() {
        let claim = |spec, current, target| -> PersistentVolumeClaim {
            serde_json::from_value(json!({
                "spec": {"volumeAttributesClassName": spec},
                "status": {
                    "currentVolumeAttributesClassName": current,
                    "modifyVolumeStatus": {"status": "Pending", "targetVolumeAttributesClassName": target},
                },
            }))
            .unwrap()
        };
        assert_eq!(of_claim(&claim("c", "a", "b")), ["a", "b", "c"]);
        assert_eq!(of_claim(&claim("a", "a", "")), ["a"]);
        assert!(of_claim(&PersistentVolumeClaim::default()).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_class_stays_while_a_claim_or_a_volume_names_it() {
        let world = World::new(&[
            VolumeAttributesClass::RESOURCE,
            PersistentVolumeClaim::RESOURCE,
            PersistentVolume::RESOURCE,
        ]);
        let client = world.api.client();
        let class: VolumeAttributesClass =
            serde_json::from_value(json!({"metadata": {"name": "fast"}, "driverName": "d"})).unwrap();
        client.create(&class).await.unwrap();
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns"}, "spec": {"volumeAttributesClassName": "fast"}}))
        .unwrap();
        client.create(&claim).await.unwrap();
        let volume: PersistentVolume = serde_json::from_value(
            json!({"metadata": {"name": "v"}, "spec": {"volumeAttributesClassName": "fast"}}),
        )
        .unwrap();
        client.create(&volume).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(1.0).await;
        let get = async || client.get::<VolumeAttributesClass>("", "fast").await;
        assert_eq!(get().await.unwrap().metadata.finalizers.unwrap(), [FINALIZER]);
        client.delete::<VolumeAttributesClass>("", "fast", &DeleteOptions::default()).await.unwrap();
        world.pass(1.0).await;
        assert!(get().await.is_ok());
        world.api.remove::<PersistentVolumeClaim>("ns", "c");
        world.pass(1.0).await;
        assert!(get().await.is_ok(), "a volume still names it");
        world.api.remove::<PersistentVolume>("", "v");
        world.pass(1.0).await;
        assert!(get().await.is_err());
    }
}
