//! The controller against an in-memory API server; the test plays the external attacher and the kubelet.

use k8s_openapi::api::core::v1::Event as ApiEvent;
use serde_json::{Value, json};

use super::names::{attachment_name, unique_name};
use super::*;
use crate::testing::World;

fn world() -> World {
    let world = World::new(&[
        Pod::RESOURCE,
        PersistentVolumeClaim::RESOURCE,
        PersistentVolume::RESOURCE,
        CSIDriver::RESOURCE,
        Node::RESOURCE,
        VolumeAttachment::RESOURCE,
        ApiEvent::RESOURCE,
    ]);
    for name in ["a", "b"] {
        add::<Node>(
            &world,
            json!({"metadata": {"name": name, "annotations":
                {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        );
    }
    add::<PersistentVolume>(
        &world,
        json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "ns", "name": "c", "uid": "claim"},
            "csi": {"driver": "d", "volumeHandle": "h"}}}),
    );
    add::<PersistentVolumeClaim>(
        &world,
        json!({"metadata": {"name": "c", "namespace": "ns", "uid": "claim"},
            "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}}),
    );
    world
}

fn add<K: Kind>(world: &World, value: Value) {
    world.api.add::<K>(&K::decode(value.to_string().as_bytes()).unwrap());
}

fn add_pod(world: &World, name: &str, node: &str) {
    add::<Pod>(
        world,
        json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"nodeName": node, "containers": [],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]}}),
    );
}

fn attachment(world: &World, node: &str) -> Option<VolumeAttachment> {
    world.api.get("", &attachment_name("d", "h", node))
}

/// Writes a status as the external attacher does.
fn answer(world: &World, node: &str, status: Value) {
    world.api.edit::<VolumeAttachment>("", &attachment_name("d", "h", node), |a| {
        a.status = serde_json::from_value(status).unwrap();
    });
}

/// Sets whether the kubelet reports the volume as in use.
fn in_use(world: &World, node: &str, used: bool) {
    world.api.edit::<Node>("", node, |n| {
        n.status.as_mut().unwrap().volumes_in_use = used.then(|| vec![unique_name("d", "h")]);
    });
}

fn attached(world: &World, node: &str) -> usize {
    world.api.get::<Node>("", node).unwrap().status.unwrap().volumes_attached.map_or(0, |v| v.len())
}

#[tokio::test(start_paused = true)]
async fn a_volume_follows_its_pod_from_node_to_node() {
    let world = world();
    world.start(&DESCRIPTOR);
    add_pod(&world, "first", "a");
    world.pass(1.0).await;
    let made = attachment(&world, "a").unwrap();
    assert_eq!((made.spec.attacher.as_str(), volume_of(&made)), ("d", Some("v")));
    assert_eq!(attached(&world, "a"), 0);
    answer(&world, "a", json!({"attached": false, "attachError": {"message": "disk on fire"}}));
    world.pass(1.0).await;
    answer(&world, "a", json!({"attached": true}));
    world.pass(1.0).await;
    assert_eq!(attached(&world, "a"), 1);
    in_use(&world, "a", true);

    // Only one node may attach the volume.
    add_pod(&world, "second", "b");
    world.pass(1.0).await;
    assert!(attachment(&world, "b").is_none());
    world.api.remove::<Pod>("ns", "first");
    world.pass(60.0).await;
    assert!(attachment(&world, "a").is_some(), "still mounted");
    assert_eq!(attached(&world, "a"), 1);
    in_use(&world, "a", false);
    world.pass(1.0).await;
    assert!(attachment(&world, "a").is_none());
    assert_eq!(attached(&world, "a"), 0);
    assert!(attachment(&world, "b").is_some());

    let events = world.events();
    for want in [
        "first FailedAttachVolume AttachVolume.Attach failed for volume \"v\" : disk on fire",
        "first SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"v\" ",
        "second FailedAttachVolume Waiting for detach for volume \"v\" Volume is already used by pod(s) first",
    ] {
        assert_eq!(events.iter().filter(|e| *e == want).count(), 1, "{want}: {events:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_gone_lose_their_volumes() {
    let world = world();
    world.start(&DESCRIPTOR);
    add_pod(&world, "p", "a");
    world.pass(1.0).await;
    answer(&world, "a", json!({"attached": true}));
    in_use(&world, "a", true);
    world.pass(1.0).await;
    world.api.edit::<Node>("", "a", |n| {
        n.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].status = "Unknown".into();
    });
    world.api.remove::<Pod>("ns", "p");
    world.pass(359.0).await;
    assert!(attachment(&world, "a").is_some());
    world.pass(10.0).await;
    assert!(attachment(&world, "a").is_none());

    // With the out-of-service taint the volume is detached at once.
    in_use(&world, "a", false);
    add_pod(&world, "p", "a");
    world.pass(1.0).await;
    answer(&world, "a", json!({"attached": true}));
    in_use(&world, "a", true);
    world.pass(1.0).await;
    world.api.edit::<Node>("", "a", |n| {
        let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
        n.spec.get_or_insert_default().taints = Some(vec![serde_json::from_value(taint).unwrap()]);
    });
    world.api.remove::<Pod>("ns", "p");
    world.pass(1.0).await;
    assert!(attachment(&world, "a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_missing_attacher_is_reported() {
    let world = world();
    world.start(&DESCRIPTOR);
    add_pod(&world, "p", "a");
    world.pass(130.0).await;
    let want = "p FailedAttachVolume AttachVolume.Attach failed for volume \"v\" : timed out waiting for \
                external-attacher of d CSI driver to attach volume h";
    assert_eq!(world.events(), [want]);
    // Once a CSIDriver shows that the driver does not attach, the attachment is deleted.
    add::<CSIDriver>(&world, json!({"metadata": {"name": "d"}, "spec": {"attachRequired": false}}));
    world.pass(1.0).await;
    assert!(attachment(&world, "a").is_none());
}
