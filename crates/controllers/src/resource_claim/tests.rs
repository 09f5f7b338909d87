//! The controller against the in-memory API server, and its pure parts.

use k8s_openapi::api::core::v1::{Event as ApiEvent, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use knarr_api::kind::Kind;
use serde_json::{Value, json};

use super::pods::name_base;
use super::{DESCRIPTOR, FINALIZER, POD_CLAIM};
use crate::testing::World;

fn world() -> World {
    World::new(&[Pod::RESOURCE, ResourceClaim::RESOURCE, ResourceClaimTemplate::RESOURCE, ApiEvent::RESOURCE])
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(node: Value, phase: &str) -> Pod {
    object(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [], "nodeName": node, "resourceClaims": [
            {"name": "gpu", "resourceClaimTemplateName": "t"}, {"name": "shared", "resourceClaimName": "s"}]},
        "status": {"phase": phase}}))
}

fn template() -> ResourceClaimTemplate {
    object(json!({"metadata": {"name": "t", "namespace": "ns"}, "spec": {
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}}}}))
}

/// Makes an allocated claim that is reserved for these consumers.
fn in_use(name: &str, reserved_for: Value) -> ResourceClaim {
    object(
        json!({"metadata": {"name": name, "namespace": "ns", "finalizers": [FINALIZER, "other"]}, "spec": {},
        "status": {"allocation": {"devices": {}}, "reservedFor": reserved_for}}),
    )
}

fn reserved(name: &str, uid: &str) -> Value {
    json!({"resource": "pods", "name": name, "uid": uid})
}

/// Returns the pods that a claim is reserved for, whether it is allocated, and its finalizers.
fn state(claim: &ResourceClaim) -> (Vec<String>, bool, Vec<String>) {
    let status = claim.status.clone().unwrap_or_default();
    let consumers = status.reserved_for.unwrap_or_default().into_iter().map(|r| r.name).collect();
    (consumers, status.allocation.is_some(), claim.metadata.finalizers.clone().unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_a_claim_from_its_template_once() {
    let world = world();
    let client = world.api.client();
    world.api.add(&pod(json!(null), "Pending"));
    world.start(&DESCRIPTOR);
    world.pass(0.5).await;
    let events = world.events();
    assert!(
        events[0].starts_with(
            "p FailedResourceClaimCreation PodResourceClaim gpu: resource claim template \"t\": "
        ),
        "{events:?}"
    );
    world.api.add(&template());
    world.pass(5.0).await;
    let all = world.api.all::<ResourceClaim>();
    assert_eq!(all.len(), 1);
    let meta = &all[0].metadata;
    assert!(meta.name.as_ref().unwrap().starts_with("p-gpu-"));
    assert_eq!(meta.labels.as_ref().unwrap()["a"], "b");
    let annotations = meta.annotations.as_ref().unwrap();
    assert_eq!((annotations["c"].as_str(), annotations[POD_CLAIM].as_str()), ("d", "gpu"));
    assert_eq!(meta.owner_references.as_ref().unwrap()[0].uid, "u1");
    let recorded =
        client.get::<Pod>("ns", "p").await.unwrap().status.unwrap().resource_claim_statuses.unwrap();
    assert_eq!((recorded[0].name.as_str(), &recorded[0].resource_claim_name), ("gpu", &meta.name));
    // A claim that was deleted by accident is created again.
    world.api.remove::<ResourceClaim>("ns", all[0].name());
    world.pass(5.0).await;
    assert_eq!(world.api.all::<ResourceClaim>().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn devices_are_given_back_when_the_last_pod_is_done() {
    let world = world();
    let client = world.api.client();
    world.api.add(&pod(json!("n"), "Running"));
    let mut last = pod(json!("n"), "Succeeded");
    (last.metadata.name, last.metadata.uid) = (Some("done".into()), Some("u2".into()));
    world.api.add(&last);
    world.api.add(&in_use("s", json!([reserved("p", "u1"), reserved("done", "u2"), reserved("gone", "u3")])));
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    let get = async || client.get::<ResourceClaim>("ns", "s").await.unwrap();
    let both = vec![FINALIZER.to_owned(), "other".to_owned()];
    assert_eq!(state(&get().await), (vec!["p".to_owned()], true, both));
    world.api.remove::<Pod>("ns", "p");
    world.pass(1.0).await;
    assert_eq!(state(&get().await), (vec![], false, vec!["other".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_node_of_its_own_reserves_what_is_allocated() {
    let world = world();
    world.api.add(&template());
    world.api.add(&in_use("s", json!([])));
    world.api.add(&pod(json!("n"), "Pending"));
    world.start(&DESCRIPTOR);
    world.pass(5.0).await;
    let claim = world.api.client().get::<ResourceClaim>("ns", "s").await.unwrap();
    assert_eq!(state(&claim).0, ["p"]);
}

#[tokio::test(start_paused = true)]
async fn claims_of_a_finished_pod_go() {
    let world = world();
    let mut done = pod(json!("n"), "Succeeded");
    done.status.as_mut().unwrap().resource_claim_statuses =
        Some(object(json!([{"name": "gpu", "resourceClaimName": "mine"}])));
    world.api.add(&done);
    let mut mine = in_use("mine", json!([reserved("p", "u1")]));
    mine.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    mine.metadata.owner_references = Some(object(
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1", "controller": true}]),
    ));
    world.api.add(&mine);
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    let left: Vec<_> = world.api.all::<ResourceClaim>().into_iter().map(|c| c.metadata.name).collect();
    assert!(!left.contains(&Some("mine".to_owned())), "{left:?}");
}

#[test]
fn long_names_are_cut_in_both_parts() {
    assert_eq!(name_base("web", "gpu"), "web-gpu-");
    let base = name_base(&"p".repeat(100), &"c".repeat(50));
    assert_eq!((base.matches('p').count(), base.matches('c').count()), (37, 18));
}
