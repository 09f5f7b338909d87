//! An API server's lease and its StorageVersions, against the in-memory API server.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::apiserverinternal::v1alpha1::StorageVersion;
use k8s_openapi::api::coordination::v1::Lease;
use knarr_api::gates::STORAGE_VERSION_API;
use knarr_apimachinery::status::StatusError;
use tokio_util::sync::CancellationToken;

use super::storage_versions::servers;
use super::*;
use crate::storage_version_gc::DESCRIPTOR;
use crate::testing::World;

fn stored(version: &str) -> Vec<StoredAs> {
    vec![StoredAs {
        name: "apps.deployments".to_owned(),
        encoding_version: version.to_owned(),
        decodable_versions: vec!["apps/v1".to_owned(), "apps/v2".to_owned()],
        served_versions: vec![version.to_owned()],
    }]
}

fn start(world: &World, host: &str, version: &str) -> CancellationToken {
    let stop = CancellationToken::new();
    let identity = ApiServerIdentity::of(host);
    tokio::spawn(identity.run(world.api.client(), stored(version), stop.clone()));
    stop
}

fn leases(world: &World) -> Vec<Arc<Lease>> {
    world.api.all::<Lease>().into_iter().map(Arc::new).collect()
}

/// Returns the common version, the condition's status, and the number of servers with an entry.
fn recorded(world: &World) -> Option<(Option<String>, String, usize)> {
    let version = world.api.all::<StorageVersion>().into_iter().next()?;
    let status = version.status.clone().unwrap_or_default();
    let condition = status.conditions.unwrap_or_default()[0].status.clone();
    Some((status.common_encoding_version, condition, servers(&version).len()))
}

#[test]
fn the_name_is_upstreams() {
    // Upstream's rule for a host `node-1` hashes host and program, each after its length; the value was computed
    // independently.
    let identity = ApiServerIdentity::of("node-1");
    assert_eq!(identity.name, "apiserver-lgabes5ywnaqeagh5dny4zlzs4");
    assert_ne!(identity.holder, ApiServerIdentity::of("node-1").holder);
}

#[tokio::test(start_paused = true)]
async fn each_step_is_reported_after_it_is_done() {
    let world = World::new(&[Lease::RESOURCE, StorageVersion::RESOURCE]);
    let done: Arc<Mutex<Vec<Done>>> = Arc::default();
    let (noted, stop) = (Arc::clone(&done), CancellationToken::new());
    let identity = ApiServerIdentity::of("a").telling(move |what| noted.lock().unwrap().push(what));
    world.api.guard(|_, _| Some(StatusError::unavailable("down")));
    tokio::spawn(identity.run(world.api.client(), stored("apps/v1"), stop.clone()));
    world.pass(5.0).await;
    // Reads succeed.
    assert_eq!(*done.lock().unwrap(), [Done::Cleared]);
    world.api.guard(|_, _| None);
    world.pass(5.0).await;
    let done = done.lock().unwrap().clone();
    for what in [Done::Renewed, Done::Cleared, Done::Recorded] {
        assert!(done.contains(&what), "{what:?} in {done:?}");
    }
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_server_keeps_a_lease_and_takes_it_along() {
    let world = World::new(&[Lease::RESOURCE, StorageVersion::RESOURCE]);
    let stop = start(&world, "a", "apps/v1");
    world.pass(1.0).await;
    let first = leases(&world);
    assert!(is_identity(&first[0]) && first.len() == 1);
    world.pass(20.0).await;
    let renewed = leases(&world)[0].spec.clone().unwrap();
    assert!(renewed.renew_time > first[0].spec.as_ref().unwrap().renew_time);
    stop.cancel();
    world.pass(1.0).await;
    assert!(leases(&world).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_heard_of_last_over_an_hour_ago_is_cleared_away() {
    let world = World::new(&[Lease::RESOURCE, StorageVersion::RESOURCE]);
    let _runs = start(&world, "a", "apps/v1");
    let gone = ApiServerIdentity::of("gone");
    world.api.add(&gone.renewed(Lease::default(), world.api.client().clock().now()));
    let mut other = gone.renewed(Lease::default(), Timestamp::UNIX_EPOCH);
    (other.metadata.name, other.metadata.labels) = (Some("other".to_owned()), None);
    world.api.add(&other);
    world.pass(3500.0).await;
    assert_eq!(leases(&world).len(), 3);
    world.pass(3720.0).await;
    let mut left: Vec<_> = leases(&world).iter().map(|l| l.name().to_owned()).collect();
    left.sort();
    assert_eq!(left, [ApiServerIdentity::of("a").name, "other".to_owned()]);
}

#[tokio::test(start_paused = true)]
async fn storage_versions_are_recorded_by_servers_and_removed_with_them() {
    let world = World::new(&[Lease::RESOURCE, StorageVersion::RESOURCE]);
    STORAGE_VERSION_API.set(true);
    world.start(&DESCRIPTOR);
    let a = start(&world, "a", "apps/v1");
    world.pass(1.0).await;
    assert_eq!(recorded(&world), Some((Some("apps/v1".to_owned()), "True".to_owned(), 1)));
    let b = start(&world, "b", "apps/v2");
    world.pass(1.0).await;
    assert_eq!(recorded(&world), Some((None, "False".to_owned(), 2)));
    a.cancel();
    world.pass(1.0).await;
    assert_eq!(recorded(&world), Some((Some("apps/v2".to_owned()), "True".to_owned(), 1)));
    b.cancel();
    world.pass(1.0).await;
    assert_eq!(recorded(&world), None);
}
