//! Deployments against the in-memory API server.

use http::Method;
use k8s_openapi::api::core::v1::Event as ApiEvent;
use knarr_apimachinery::status::StatusError;
use serde_json::json;

use super::*;
use crate::testing::World;

fn named(name: &str) -> Deployment {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"replicas": 1,
        "progressDeadlineSeconds": 600, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}}}))
    .unwrap()
}

async fn world(deployment: &Deployment) -> World {
    let world = World::new(&[Deployment::RESOURCE, ReplicaSet::RESOURCE, Pod::RESOURCE, ApiEvent::RESOURCE]);
    world.api.client().create(deployment).await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn a_set_that_cannot_be_created_is_reported() {
    let world = world(&named("web")).await;
    world.api.guard(|request, _| {
        let makes = request.method == Method::POST && request.path.ends_with("/replicasets");
        makes.then(|| StatusError::new(403, "Forbidden", "exceeded quota"))
    });
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    let status = world.api.client().get::<Deployment>("ns", "web").await.unwrap().status.unwrap();
    let all = status.conditions.unwrap_or_default();
    let progressing = all.into_iter().find(|c| c.type_.as_deref() == Some(status::PROGRESSING)).unwrap();
    assert_eq!(
        (progressing.status.as_deref(), progressing.reason.as_deref()),
        (Some("False"), Some(UNCREATED))
    );
    let text = progressing.message.unwrap();
    assert!(
        text.starts_with("Failed to create new replica set \"web-") && text.ends_with("exceeded quota"),
        "{text}"
    );
    assert!(world.events().iter().any(|e| e.starts_with("web ReplicaSetCreateError Failed to create")));
}

#[tokio::test(start_paused = true)]
async fn long_names_are_cut() {
    let world = world(&named(&"a".repeat(253))).await;
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    assert_eq!(world.api.all::<ReplicaSet>().remove(0).name().len(), 253);
}
