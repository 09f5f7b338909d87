//! Tests of the namespace controller against an in-memory API server.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event as ApiEvent, NamespaceCondition, NamespaceSpec, PodSpec, Secret,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta};

use super::*;
use crate::testing::World;

fn meta(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: Some("ns".into()), ..ObjectMeta::default() }
}

fn world() -> World {
    let world = World::new(&[
        Namespace::RESOURCE,
        Pod::RESOURCE,
        ConfigMap::RESOURCE,
        Secret::RESOURCE,
        Deployment::RESOURCE,
        ApiEvent::RESOURCE,
    ]);
    let mut namespace = Namespace {
        spec: Some(NamespaceSpec { finalizers: Some(vec![FINALIZER.into()]) }),
        ..Namespace::default()
    };
    namespace.metadata.name = Some("ns".into());
    world.api.add(&namespace);
    world.api.add(&ConfigMap { metadata: meta("c"), ..ConfigMap::default() });
    world.api.add(&Deployment { metadata: meta("d"), ..Deployment::default() });
    let mut elsewhere = ConfigMap { metadata: meta("c"), ..ConfigMap::default() };
    elsewhere.metadata.namespace = Some("other".into());
    world.api.add(&elsewhere);
    world.start(&DESCRIPTOR);
    world
}

async fn delete(world: &World) {
    world.pass(0.1).await;
    world.api.client().delete::<Namespace>("", "ns", &DeleteOptions::default()).await.unwrap();
}

fn condition(world: &World, type_: &str) -> NamespaceCondition {
    let namespace = world.api.get::<Namespace>("", "ns").unwrap();
    let conditions = namespace.status.unwrap().conditions.unwrap();
    conditions.into_iter().find(|c| c.type_ == type_).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_with_its_content() {
    let world = world();
    delete(&world).await;
    world.pass(1.0).await;
    assert!(world.api.get::<ConfigMap>("ns", "c").is_none());
    assert!(world.api.get::<Deployment>("ns", "d").is_none());
    // A write that was in progress when the namespace was deleted.
    world.api.add(&Secret { metadata: meta("late"), ..Secret::default() });
    world.pass(2.0).await;
    assert!(world.api.get::<Namespace>("", "ns").is_none());
    assert!(world.api.all::<Secret>().is_empty());
    assert_eq!(world.api.all::<ConfigMap>().len(), 1, "the other namespace is untouched");
}

#[tokio::test(start_paused = true)]
async fn pods_go_first_and_wake_the_controller() {
    let world = world();
    let spec = PodSpec {
        node_name: Some("n".into()),
        termination_grace_period_seconds: Some(30),
        ..PodSpec::default()
    };
    world.api.add(&Pod { metadata: meta("p"), spec: Some(spec), ..Pod::default() });
    delete(&world).await;
    world.pass(5.0).await;
    assert!(world.api.get::<Pod>("ns", "p").unwrap().metadata.deletion_timestamp.is_some());
    assert!(world.api.get::<ConfigMap>("ns", "c").is_some(), "objects that pods may use are kept");
    let remaining = condition(&world, "NamespaceContentRemaining");
    assert_eq!(
        remaining.message.as_deref(),
        Some("Some resources are remaining: pods. has 1 resource instances")
    );
    world.api.remove::<Pod>("ns", "p");
    world.pass(0.1).await;
    assert!(world.api.get::<Namespace>("", "ns").is_none(), "no timer had to be waited for");
}

#[tokio::test(start_paused = true)]
async fn finalizers_of_the_content_are_waited_for() {
    let world = world();
    world.api.edit::<ConfigMap>("ns", "c", |c| {
        c.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    });
    delete(&world).await;
    world.pass(30.0).await;
    let finalizers = condition(&world, "NamespaceFinalizersRemaining");
    assert_eq!(
        finalizers.message.as_deref(),
        Some(
            "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        )
    );
    assert_eq!(condition(&world, "NamespaceDeletionContentFailure").status, "False");
    let writes = world.api.writes().len();
    assert!(writes < 15, "{writes} writes while waiting");
    world.api.remove::<ConfigMap>("ns", "c");
    world.pass(10.0).await;
    assert!(world.api.get::<Namespace>("", "ns").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_fails_holds_the_namespace() {
    use knarr_apimachinery::status::StatusError;
    let world = world();
    world.api.guard(|request, _| {
        let refused = request.path.ends_with("/configmaps") && request.method == Method::DELETE;
        refused.then(|| StatusError::unavailable("try later"))
    });
    delete(&world).await;
    world.pass(20.0).await;
    assert!(world.api.get::<Deployment>("ns", "d").is_none(), "the other resources are deleted");
    let failure = condition(&world, "NamespaceDeletionContentFailure");
    assert_eq!(
        failure.message.as_deref(),
        Some("Failed to delete all resource types, 1 remaining: try later")
    );
    world.api.guard(|_, _| None);
    world.pass(61.0).await;
    assert!(world.api.get::<Namespace>("", "ns").is_none());
}

#[test]
fn what_follows_a_pass() {
    let secs = Duration::from_secs;
    let well = Findings::default();
    let left = Findings { remaining: [("pods.".to_owned(), 1)].into(), ..Findings::default() };
    let failed = Findings { errors: vec!["no".into()], ..left.clone() };
    assert_eq!(next(&well, secs(0), secs(0)), Next::LetGo);
    assert_eq!(next(&well, secs(0), secs(2)), Next::Wait(secs(2)));
    assert_eq!(next(&left, secs(30), secs(0)), Next::Wait(secs(16)));
    assert_eq!(next(&left, secs(3600), secs(0)), Next::Wait(LONGEST_WAIT));
    assert_eq!(next(&failed, secs(30), secs(0)), Next::Retry("no".into()));
}

use http::Method;
