//! Tests of ReplicaSets among other objects of their namespace.

use http::Method;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Event as ApiEvent;
use knarr_apimachinery::status::StatusError;
use knarr_client::{Client, Patch};
use serde_json::{Value, json};

use super::*;
use crate::testing::World;

fn set(replicas: i32) -> ReplicaSet {
    serde_json::from_value(
        json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {"replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
        "spec": {"containers": []}}}}),
    )
    .unwrap()
}

async fn pod(client: &Client, name: &str, phase: &str) -> Pod {
    let pod = json!({"metadata": {"name": name, "namespace": "ns", "labels": {"app": "web"}},
        "spec": {"containers": []}, "status": {"phase": phase}});
    client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap()
}

fn world() -> (World, Client) {
    let world = World::new(&[ReplicaSet::RESOURCE, Pod::RESOURCE, ApiEvent::RESOURCE]);
    let client = world.api.client();
    (world, client)
}

fn owned(world: &World) -> Vec<String> {
    let all = world.api.all::<Pod>();
    let mut names: Vec<_> =
        all.iter().filter(|p| controller_of(&p.metadata).is_some()).map(|p| p.name().to_owned()).collect();
    names.sort();
    names
}

async fn spec(client: &Client, spec: Value) {
    client.patch::<ReplicaSet>("ns", "web", None, &Patch::Merge(json!({"spec": spec}))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pods_that_have_ended_are_left_alone() {
    let (world, client) = world();
    pod(&client, "done", "Succeeded").await;
    pod(&client, "alive", "Running").await;
    client.create(&set(1)).await.unwrap();
    world.start(&REPLICA_SET);
    world.pass(1.0).await;
    assert_eq!(owned(&world), ["alive"]);
}

#[tokio::test(start_paused = true)]
async fn who_may_not_adopt_creates_nothing() {
    let (world, client) = world();
    pod(&client, "orphan", "Running").await;
    client.create(&set(1)).await.unwrap();
    // The informer shows the set, but the API server answers that it does not exist.
    world.api.guard(|request, _| {
        let asks = request.method == Method::GET && request.path.ends_with("/replicasets/web");
        asks.then(|| StatusError::new(404, "NotFound", "replicasets.apps \"web\" not found"))
    });
    world.start(&REPLICA_SET);
    world.pass(5.0).await;
    assert_eq!(world.api.all::<Pod>().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refused_deletion_is_recorded_and_retried() {
    let (world, client) = world();
    client.create(&set(2)).await.unwrap();
    world.start(&REPLICA_SET);
    world.pass(1.0).await;
    world.api.guard(|request, _| {
        (request.method == Method::DELETE).then(|| StatusError::new(409, "Conflict", "not today"))
    });
    spec(&client, json!({"replicas": 1})).await;
    world.pass(1.0).await;
    assert!(world.events().iter().any(|e| e.starts_with("web FailedDelete Error deleting: not today")));
    let status = client.get::<ReplicaSet>("ns", "web").await.unwrap().status.unwrap();
    let failure = status.conditions.unwrap().remove(0);
    assert_eq!(failure.message.as_deref(), Some("unable to delete pods: not today"));
    world.api.guard(|_, _| None);
    world.pass(120.0).await;
    assert_eq!(owned(&world).len(), 1);
}
