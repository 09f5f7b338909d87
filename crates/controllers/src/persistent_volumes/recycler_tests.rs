//! Tests of recycling, against the in-memory API server.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event as ApiEvent, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::super::binder::DESCRIPTOR;
use super::super::volumes::phase;
use super::*;
use crate::testing::World;

fn volume(source: Value) -> PersistentVolume {
    let mut spec = json!({"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Recycle"});
    spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": spec})).unwrap()
}

fn folder() -> PersistentVolume {
    volume(json!({"hostPath": {"path": "/data"}}))
}

#[test]
fn the_pod_has_the_volume_and_time_by_its_size() {
    let settings = RecyclerSettings::default();
    let pod = scrubber(&folder(), &settings).unwrap();
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!((pod.namespace(), pod.name()), ("default", "recycler-for-v"));
    assert_eq!(spec.active_deadline_seconds, Some(150));
    assert_eq!(spec.volumes.as_ref().unwrap()[0].host_path.as_ref().unwrap().path, "/data");
    assert_eq!(volume_of(&pod), Some("v"));

    let of_nfs = volume(json!({"nfs": {"server": "s", "path": "/"}, "capacity": {"storage": "1Ti"}}));
    let template: Pod = serde_json::from_value(
        json!({"metadata": {"namespace": "ns"}, "spec": {"volumes": [{"name": "a"}, {"name": "b"}]}}),
    )
    .unwrap();
    let nfs = Scrubbing { template: Some(Arc::new(template)), ..settings.nfs.clone() };
    let pod = scrubber(&of_nfs, &RecyclerSettings { nfs, ..settings.clone() }).unwrap();
    let spec = pod.spec.as_ref().unwrap();
    let volumes = spec.volumes.as_ref().unwrap();
    assert_eq!((pod.namespace(), volumes[0].name.as_str(), volumes.len()), ("ns", "a", 2));
    assert!(volumes[0].nfs.is_some());
    assert_eq!(spec.active_deadline_seconds, Some(30 * 1024));
    assert_eq!(scrubber(&volume(json!({"local": {"path": "/mnt"}})), &settings), None);
}

/// Makes a world with a volume that was bound to a claim.
async fn released() -> World {
    let world = World::new(&[
        PersistentVolume::RESOURCE,
        PersistentVolumeClaim::RESOURCE,
        StorageClass::RESOURCE,
        Pod::RESOURCE,
        ApiEvent::RESOURCE,
    ]);
    world.start(&DESCRIPTOR);
    let client = world.api.client();
    client.create(&folder()).await.unwrap();
    let claim: PersistentVolumeClaim =
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns"},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}}))
        .unwrap();
    client.create(&claim).await.unwrap();
    world.pass(2.0).await;
    assert_eq!(phase_of(&world).await, "Bound");
    world
}

async fn phase_of(world: &World) -> String {
    phase(&world.api.client().get::<PersistentVolume>("", "v").await.unwrap()).to_owned()
}

fn scrubbers(world: &World) -> Vec<Pod> {
    world.api.all::<Pod>().into_iter().filter(|pod| volume_of(pod).is_some()).collect()
}

async fn ends(world: &World, phase: &str, message: &str) {
    let mut pod = scrubbers(world).pop().unwrap();
    let status = pod.status.get_or_insert_default();
    status.phase = Some(phase.to_owned());
    status.message = Some(message.to_owned());
    world.api.client().update_status(&pod).await.unwrap();
    world.pass(1.0).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_emptied_and_free_again() {
    let world = released().await;
    let user: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"},
        "spec": {"nodeName": "n", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}))
    .unwrap();
    world.api.add(&user);
    world.api.remove::<PersistentVolumeClaim>("ns", "c");
    world.pass(1.0).await;
    assert!(scrubbers(&world).is_empty(), "a pod still uses it");
    assert!(world.events().iter().any(|e| e == "v VolumeFailedRecycle Volume is used by pods: ns/p"));
    world.api.remove::<Pod>("ns", "p");
    world.pass(1.0).await;
    assert_eq!((scrubbers(&world).len(), phase_of(&world).await.as_str()), (1, "Released"));
    ends(&world, "Succeeded", "").await;
    assert_eq!((scrubbers(&world).len(), phase_of(&world).await.as_str()), (0, "Available"));
    let free: PersistentVolume = world.api.client().get("", "v").await.unwrap();
    assert_eq!(free.spec.unwrap().claim_ref, None);
    assert!(world.events().iter().any(|e| e == "v VolumeRecycled Volume recycled"));
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_emptied_is_tried_again_later() {
    let world = released().await;
    // The pod belongs to another client or to an earlier run of the controller.
    let old = scrubber(&folder(), &RecyclerSettings::default()).unwrap();
    world.api.add(&old);
    world.api.remove::<PersistentVolumeClaim>("ns", "c");
    world.pass(1.0).await;
    let message = async || {
        let volume: PersistentVolume = world.api.client().get("", "v").await.unwrap();
        volume.status.unwrap().message.unwrap_or_default()
    };
    assert_eq!(message().await, "Recycle failed: old recycler pod found, will retry later");
    assert!(scrubbers(&world).is_empty());
    world.pass(15.0).await;
    assert_eq!(scrubbers(&world).len(), 1);
    ends(&world, "Failed", "disk on fire").await;
    assert_eq!(message().await, "Recycle failed: failed to recycle volume: disk on fire");
    assert_eq!((scrubbers(&world).len(), phase_of(&world).await.as_str()), (0, "Failed"));
    world.pass(16.0).await;
    world.api.remove::<Pod>("default", "recycler-for-v");
    world.pass(1.0).await;
    assert_eq!(message().await, "Recycle failed: failed to recycle volume: recycler pod was deleted");
    world.pass(16.0).await;
    ends(&world, "Succeeded", "").await;
    assert_eq!(phase_of(&world).await, "Available");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_scrubbed_before_a_live_read_of_the_volume() {
    let world = released().await;
    world.api.guard(|request, _| {
        let asked = request.method == http::Method::GET && request.path.ends_with("/persistentvolumes/v");
        asked.then(|| StatusError::internal("away"))
    });
    world.api.remove::<PersistentVolumeClaim>("ns", "c");
    world.pass(5.0).await;
    assert!(scrubbers(&world).is_empty());
    world.api.guard(|_, _| None);
    world.pass(20.0).await;
    assert_eq!(scrubbers(&world).len(), 1);
}
