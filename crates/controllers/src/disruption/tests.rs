//! Budgets over pods of a Deployment, against the in-memory API server.

use k8s_openapi::api::core::v1::Event as ApiEvent;
use knarr_api::kind::ResourceType;
use serde_json::{Value, json};

use super::*;
use crate::testing::World;

const KINDS: &[ResourceType] = &[
    PodDisruptionBudget::RESOURCE,
    Pod::RESOURCE,
    ReplicaSet::RESOURCE,
    Deployment::RESOURCE,
    StatefulSet::RESOURCE,
    ReplicationController::RESOURCE,
    ApiEvent::RESOURCE,
];

fn owned_by(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name, "controller": true}])
}

#[tokio::test(start_paused = true)]
async fn a_budget_follows_its_pods_and_the_scale_of_their_deployment() {
    let world = World::new(KINDS);
    let client = world.api.client();
    let deployment: Deployment = serde_json::from_value(json!({"metadata": {"name": "d", "namespace": "ns"},
        "spec": {"replicas": 3, "selector": {}, "template": {}}}))
    .unwrap();
    let deployment = client.create(&deployment).await.unwrap();
    let mut owner = owned_by("Deployment", "d");
    owner[0]["uid"] = json!(deployment.uid());
    let set: ReplicaSet = serde_json::from_value(json!({
        "metadata": {"name": "rs", "namespace": "ns", "ownerReferences": owner}, "spec": {"replicas": 2, "selector": {}}}))
    .unwrap();
    let set = client.create(&set).await.unwrap();
    for name in ["a", "b", "c"] {
        let mut owner = owned_by("ReplicaSet", "rs");
        owner[0]["uid"] = json!(set.uid());
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "labels": {"app": "x"}, "ownerReferences": owner},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
        .unwrap();
        client.create(&pod).await.unwrap();
    }
    let budget: PodDisruptionBudget =
        serde_json::from_value(json!({"metadata": {"name": "b", "namespace": "ns"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "x"}}}}))
        .unwrap();
    client.create(&budget).await.unwrap();
    world.start(&DESCRIPTOR);
    let status = async || {
        world.pass(1.0).await;
        let status = client.get::<PodDisruptionBudget>("ns", "b").await.unwrap().status.unwrap();
        let numbers = [
            status.expected_pods,
            status.current_healthy,
            status.desired_healthy,
            status.disruptions_allowed,
        ];
        numbers.map(|n| n.unwrap_or(-1))
    };
    assert_eq!(status().await, [3, 3, 2, 1]);
    world.api.remove::<Pod>("ns", "a");
    assert_eq!(status().await, [3, 2, 2, 0]);
    let mut scaled: Deployment = client.get("ns", "d").await.unwrap();
    scaled.spec.replicas = Some(2);
    scaled.metadata.generation = Some(7);
    client.update(&scaled).await.unwrap();
    assert_eq!(status().await, [2, 2, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_stale_disruption_condition_is_reset() {
    let world = World::new(KINDS);
    let client = world.api.client();
    let pod = |name: &str, reason: &str| -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "ns"}, "status": {"conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m",
             "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
        )
        .unwrap()
    };
    client.create(&pod("told", "EvictionByEvictionAPI")).await.unwrap();
    client.create(&pod("ended", "TerminationByKubelet")).await.unwrap();
    world.start(&DESCRIPTOR);
    let holds = async |name: &str| {
        let pod: Pod = client.get("ns", name).await.unwrap();
        pod.status.unwrap().conditions.unwrap().remove(0).status
    };
    world.pass(110.0).await;
    assert_eq!(holds("told").await, "True");
    world.pass(15.0).await;
    assert_eq!((holds("told").await.as_str(), holds("ended").await.as_str()), ("False", "True"));
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_asks_for_nothing_allows_nothing() {
    let budget: PodDisruptionBudget =
        serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": {}})).unwrap();
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
    .unwrap();
    let pods = [Arc::new(pod)];
    let now = crate::testing::at(0);
    let status = outcome(&budget, &pods, expected(&budget, &pods, &Default::default()), now).status;
    assert_eq!(status.disruptions_allowed, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_several_budgets_gets_an_event() {
    let world = World::new(KINDS);
    world.start(&DESCRIPTOR);
    for name in ["a", "b"] {
        let budget: PodDisruptionBudget =
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "x"}}}}))
            .unwrap();
        world.api.add(&budget);
    }
    world.pass(1.0).await;
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "labels": {"app": "x"}}}))
            .unwrap();
    world.api.add(&pod);
    world.pass(1.0).await;
    let event =
        world.events().into_iter().find(|e| e.starts_with("p MultiplePodDisruptionBudgets ")).unwrap();
    assert!(event.contains("Pod \"ns\"/\"p\" matches multiple PodDisruptionBudgets.  Chose \""), "{event}");
}
