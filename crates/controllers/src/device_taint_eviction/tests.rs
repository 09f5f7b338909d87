//! The controller against the in-memory API server.

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::{DeviceTaintRule, ResourceClaim, ResourceSlice};
use knarr_api::kind::Kind;
use serde_json::{Value, json};

use super::DESCRIPTOR;
use super::rule_status::known;
use crate::testing::World;

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Makes a pod on a node with device x; its claim tolerates the taint for this many seconds.
fn world(tolerated_seconds: Option<i64>) -> World {
    let kinds = [
        Pod::RESOURCE,
        ResourceClaim::RESOURCE,
        ResourceSlice::RESOURCE,
        DeviceTaintRule::RESOURCE,
        Event::RESOURCE,
    ];
    let world = World::new(&kinds);
    world.api.add::<Pod>(&object(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {
        "containers": [], "nodeName": "n", "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}})));
    let tolerations = tolerated_seconds.map_or(
        json!([]),
        |seconds| json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]),
    );
    world.api.add::<ResourceClaim>(&object(
        json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}, "status": {
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x",
            "tolerations": tolerations}]}}}}),
    ));
    world.api.add::<ResourceSlice>(&object(json!({"metadata": {"name": "s"}, "spec": {"driver": "d", "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "x"}, {"name": "y"}]}})));
    world
}

fn rule(effect: &str) -> DeviceTaintRule {
    object(json!({"metadata": {"name": "broken", "uid": "r", "generation": 1}, "spec": {
        "deviceSelector": {"driver": "d"},
        "taint": {"key": "broken", "effect": effect, "timeAdded": "2026-01-01T00:00:00Z"}}}))
}

fn is_there(world: &World) -> bool {
    world.api.get::<Pod>("ns", "p").is_some_and(|pod| pod.metadata.deletion_timestamp.is_none())
}

fn rule_condition(world: &World) -> String {
    let rule = world.api.get::<DeviceTaintRule>("", "broken").unwrap();
    known(&rule).map_or_else(String::new, |c| format!("{} {} {}", c.status, c.reason, c.message))
}

#[tokio::test(start_paused = true)]
async fn pods_on_tainted_devices_go_when_their_patience_ends() {
    let world = world(Some(30));
    world.start(&DESCRIPTOR);
    world.pass(5.0).await;
    assert!(is_there(&world));
    world.api.add(&rule("NoExecute"));
    world.pass(5.0).await;
    assert_eq!(rule_condition(&world), "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace.");
    assert!(is_there(&world));
    world.pass(15.0).await;
    assert!(is_there(&world));
    world.pass(10.0).await;
    assert!(!is_there(&world));
    assert_eq!(world.events(), ["p DeviceTaintManagerEviction Marking for deletion"]);
    world.pass(30.0).await;
    assert_eq!(rule_condition(&world), "False Completed 1 pod evicted since starting the controller.");
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_is_gone_cancels() {
    let world = world(Some(30));
    world.api.add(&rule("NoExecute"));
    world.start(&DESCRIPTOR);
    world.pass(5.0).await;
    world.api.remove::<DeviceTaintRule>("", "broken");
    world.pass(60.0).await;
    assert!(is_there(&world));
    assert_eq!(world.events(), ["p DeviceTaintManagerEviction Cancelling deletion"]);
}

#[tokio::test(start_paused = true)]
async fn taints_in_slices_count_too() {
    let world = world(None);
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    world.api.edit::<ResourceSlice>("", "s", |slice| {
        let taint = json!([{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:01Z"}]);
        slice.spec.devices.as_mut().unwrap()[0].taints = object(taint);
    });
    world.pass(1.0).await;
    assert!(!is_there(&world));
}

#[tokio::test(start_paused = true)]
async fn a_rule_without_effect_reports_what_it_would_do() {
    let world = world(None);
    world.api.add(&rule("None"));
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    assert!(is_there(&world));
    assert!(
        rule_condition(&world).starts_with(
            "False NoEffect 2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 \
             namespace if the effect was NoExecute."
        ),
        "{}",
        rule_condition(&world)
    );
}
