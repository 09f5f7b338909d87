//! The controller against the in-memory API server.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::storagemigration::v1::StorageVersionMigration;
use knarr_api::kind::Kind;
use serde_json::{Value, json};

use super::DESCRIPTOR;
use super::status::{FAILED, RUNNING, SUCCEEDED, is};
use crate::testing::World;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn world(plural: &str) -> World {
    let world = World::new(&[ConfigMap::RESOURCE, StorageVersionMigration::RESOURCE]);
    for name in ["a", "b"] {
        world.api.add::<ConfigMap>(&object(json!({"metadata": {"name": name, "namespace": "ns"}})));
    }
    world.api.add::<StorageVersionMigration>(&object(json!({"metadata": {"name": "m", "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"resource": {"group": "", "resource": plural}}})));
    world
}

fn migration(world: &World) -> StorageVersionMigration {
    world.api.get::<StorageVersionMigration>("", "m").unwrap()
}

#[tokio::test(start_paused = true)]
async fn all_objects_are_written_anew() {
    let world = world("configmaps");
    world.start(&DESCRIPTOR);
    world.pass(10.0).await;
    let ended = migration(&world);
    assert!(is(&ended, SUCCEEDED) && !is(&ended, RUNNING), "{ended:?}");
    let patched: Vec<_> =
        world.api.writes().into_iter().map(|r| r.path).filter(|path| path.contains("configmaps")).collect();
    assert_eq!(patched, ["/api/v1/namespaces/ns/configmaps/a", "/api/v1/namespaces/ns/configmaps/b"]);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_not_served_fails_after_a_minute() {
    let world = world("things");
    world.start(&DESCRIPTOR);
    world.pass(30.0).await;
    assert!(is(&migration(&world), RUNNING) && !is(&migration(&world), FAILED));
    world.pass(60.0).await;
    assert!(is(&migration(&world), FAILED));
}
