//! Tests of the whole collector against an in-memory API server.

use std::sync::Mutex;

use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Event as ApiEvent, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, OwnerReference};
use knarr_api::kind::{Kind, ResourceType};
use serde_json::{Value, json};

use super::*;
use crate::testing::World;

const WIDGETS: ResourceType =
    ResourceType { group: "example.com", version: "v1", kind: "Widget", plural: "widgets", namespaced: true };

fn world() -> World {
    World::new(&[ConfigMap::RESOURCE, Secret::RESOURCE, ClusterRole::RESOURCE, ApiEvent::RESOURCE, WIDGETS])
}

fn reference(kind: &str, name: &str, blocks: bool) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        controller: None,
        block_owner_deletion: blocks.then_some(true),
    }
}

/// Makes a ConfigMap with a uid from its name, owned by ConfigMaps: `name`, or `name!` for a blocking reference.
fn map(namespace: &str, name: &str, owners: &[&str]) -> ConfigMap {
    let owners = owners.iter().map(|o| reference("ConfigMap", o.trim_end_matches('!'), o.ends_with('!')));
    let metadata = ObjectMeta {
        name: Some(name.into()),
        namespace: Some(namespace.into()),
        uid: Some(format!("uid-{name}")),
        owner_references: Some(owners.collect()),
        ..ObjectMeta::default()
    };
    ConfigMap { metadata, ..ConfigMap::default() }
}

async fn delete(world: &World, name: &str, policy: &str) {
    let options = DeleteOptions { propagation_policy: Some(policy.into()), ..DeleteOptions::default() };
    world.api.client().delete::<ConfigMap>("a", name, &options).await.unwrap();
}

fn left(world: &World) -> Vec<String> {
    world.api.all::<ConfigMap>().iter().map(|m| m.name().to_owned()).collect()
}

fn owners_of(world: &World, name: &str) -> Vec<String> {
    let map = world.api.get::<ConfigMap>("a", name).unwrap();
    map.metadata.owner_references.into_iter().flatten().map(|o| o.name).collect()
}

/// Returns the names in the order in which the collector deleted or released them.
fn collected(world: &World) -> Vec<String> {
    let writes = world.api.writes();
    let own = writes.iter().filter(|w| {
        let deletes = w.method == Method::DELETE && !w.body["preconditions"]["uid"].is_null();
        deletes || !w.body["metadata"]["finalizers"].is_null()
    });
    own.map(|w| w.path.rsplit('/').next().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn dependents_follow_their_owner() {
    let world = world();
    for object in
        [map("a", "top", &[]), map("a", "mid", &["top!"]), map("a", "low", &["mid!"]), map("a", "free", &[])]
    {
        world.api.add(&object);
    }
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    assert_eq!(left(&world).len(), 4);
    delete(&world, "top", "Background").await;
    world.pass(1.0).await;
    assert_eq!(left(&world), ["free"]);
    assert_eq!(collected(&world), ["mid", "low"]);
}

#[tokio::test(start_paused = true)]
async fn in_foreground_the_owner_goes_last() {
    let world = world();
    for object in [map("a", "top", &[]), map("a", "mid", &["top!"]), map("a", "low", &["mid!"])] {
        world.api.add(&object);
    }
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    delete(&world, "top", "Foreground").await;
    world.pass(5.0).await;
    assert_eq!(left(&world), [""; 0]);
    let order = collected(&world);
    let last = |name: &str| order.iter().rposition(|n| n == name);
    assert!(last("low") < last("mid") && last("mid") < last("top"), "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn orphans_stay() {
    let world = world();
    world.api.add(&map("a", "top", &[]));
    world.api.add(&map("a", "mid", &["top!"]));
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    delete(&world, "top", "Orphan").await;
    world.pass(1.0).await;
    assert_eq!(left(&world), ["mid"]);
    assert!(owners_of(&world, "mid").is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_living_owner_is_enough_and_dead_references_go() {
    let world = world();
    for object in [map("a", "one", &[]), map("a", "two", &[]), map("a", "both", &["one", "two", "never"])] {
        world.api.add(&object);
    }
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    assert_eq!(owners_of(&world, "both"), ["one", "two"]);
    delete(&world, "one", "Background").await;
    world.pass(1.0).await;
    assert_eq!(owners_of(&world, "both"), ["two"]);
    delete(&world, "two", "Foreground").await;
    world.pass(1.0).await;
    assert_eq!(left(&world), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn owners_in_other_namespaces_do_not_count() {
    let world = world();
    world.api.add(&map("a", "top", &[]));
    world.api.add(&map("b", "stray", &["top"]));
    world.api.add(&map("a", "mid", &["top"]));
    world.start(&DESCRIPTOR);
    world.pass(60.0).await;
    assert_eq!(left(&world), ["mid", "top"]);
    assert_eq!(
        world.events(),
        [
            "stray OwnerRefInvalidNamespace ownerRef [v1/ConfigMap, namespace: b, name: top, uid: uid-top] does not \
          exist in namespace \"b\""
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_objects_with_namespaced_owners_are_left_alone() {
    let world = world();
    let mut role = ClusterRole::default();
    role.metadata.name = Some("role".into());
    role.metadata.owner_references = Some(vec![reference("ConfigMap", "never", true)]);
    world.api.add(&role);
    world.start(&DESCRIPTOR);
    world.pass(600.0).await;
    assert!(world.api.get::<ClusterRole>("", "role").is_some());
    assert!(world.api.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_owner_of_an_unknown_kind_is_waited_for() {
    let world = world();
    let mut secret = Secret::default();
    secret.metadata.name = Some("s".into());
    secret.metadata.namespace = Some("a".into());
    secret.metadata.owner_references = Some(vec![reference("Gadget", "g", true)]);
    world.api.add(&secret);
    world.start(&DESCRIPTOR);
    world.pass(3600.0).await;
    assert!(world.api.get::<Secret>("a", "s").is_some());
    let asked = world.api.requests().iter().filter(|r| r.path == "/apis").count();
    assert!(asked < 60, "discovered {asked} times in an hour");
}

#[tokio::test(start_paused = true)]
async fn kinds_without_strategic_patches_are_merged() {
    let world = world();
    world.api.add(&map("a", "one", &[]));
    let owners = json!([reference("ConfigMap", "one", false), reference("ConfigMap", "never", false)]);
    let widget = json!({"kind": "Widget", "apiVersion": "example.com/v1",
        "metadata": {"name": "w", "ownerReferences": owners}});
    let path = WIDGETS.path(Some("a"), None);
    let body = widget.to_string().into_bytes();
    world.api.client().post_raw(path, body).await.unwrap();
    world.start(&DESCRIPTOR);
    world.pass(1.0).await;
    let path = WIDGETS.path(Some("a"), Some("w"));
    let client = world.api.client();
    let read = || client.call(Method::GET, path.clone(), None, bytes::Bytes::new());
    let live: Value = serde_json::from_slice(&read().await.unwrap()).unwrap();
    assert_eq!(live["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
    delete(&world, "one", "Background").await;
    world.pass(1.0).await;
    assert!(read().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn monitors_end_and_begin_with_their_resource() {
    let definitions = ResourceType {
        group: "apiextensions.k8s.io",
        version: "v1",
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        namespaced: false,
    };
    let always = [ConfigMap::RESOURCE, ApiEvent::RESOURCE, definitions];
    let with_widgets = [&always[..], &[WIDGETS]].concat();
    let world = World::new(&with_widgets);
    let client = world.api.client();
    let changed = async |name: &str| {
        let object = json!({"metadata": {"name": name}}).to_string().into_bytes();
        client.post_raw(definitions.path(None, None), object).await.unwrap();
    };
    let widget = async |name: &str, owner: Value| {
        let mut object =
            json!({"kind": "Widget", "apiVersion": "example.com/v1", "metadata": {"name": name}});
        object["metadata"]["ownerReferences"] = owner;
        let made = client.post_raw(WIDGETS.path(Some("a"), None), object.to_string().into_bytes()).await;
        serde_json::from_slice::<Value>(&made.unwrap()).unwrap()["metadata"]["uid"].clone()
    };
    let uid = widget("owner", Value::Null).await;
    let reference = json!([{"apiVersion": "example.com/v1", "kind": "Widget", "name": "owner", "uid": uid}]);
    widget("owned", reference).await;
    world.start(&DESCRIPTOR);
    world.pass(5.0).await;
    let lists = || world.api.lists_of(&WIDGETS);
    assert_eq!(lists(), 1);

    world.api.serve_resources(&always);
    changed("removed").await;
    world.pass(5.0).await;
    let asked = lists();
    world.pass(7200.0).await;
    assert_eq!(lists(), asked, "a resource that is no longer served is not listed");

    // The resource is served again without one of its objects: the dependents of that object are deleted.
    world.api.remove_untyped(&WIDGETS, "a", "owner");
    world.api.serve_resources(&with_widgets);
    changed("added").await;
    world.pass(10.0).await;
    assert!(lists() > asked);
    let left = client.call(Method::GET, WIDGETS.path(Some("a"), None), None, bytes::Bytes::new()).await;
    let left: Value = serde_json::from_slice(&left.unwrap()).unwrap();
    assert_eq!(left["items"], json!([]));
    let discoveries = world.api.requests().iter().filter(|r| r.path == "/apis").count();
    assert!(discoveries < 40, "{discoveries} discoveries in two hours");
}

/// Makes objects with random owners, including cycles and missing owners. Only the first `known` can have existing
/// owners, because no object can refer to one that is created later.
fn random_objects(random: &mut fastrand::Rng) -> (Vec<ConfigMap>, usize) {
    let count = random.usize(2..14);
    let known = random.usize(..=count);
    let mut objects = Vec::new();
    for i in 0..count {
        let namespace = if random.u8(..8) == 0 { "b" } else { "a" };
        let mut owners: Vec<String> = Vec::new();
        for _ in 0..random.usize(..3) {
            let (owner, blocks) = (random.usize(..=count), random.bool());
            let twice = owners.iter().any(|o| o.trim_end_matches('!') == format!("o{owner}"));
            if !twice && owner != i && (i >= known || owner < known || owner == count) {
                owners.push(format!("o{owner}{}", if blocks { "!" } else { "" }));
            }
        }
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        objects.push(map(namespace, &format!("o{i}"), &owners));
    }
    (objects, known)
}

/// Returns whether an owner keeps its dependent in this namespace alive.
fn keeps(owner: &Value, namespace: &Value) -> bool {
    let waits = |o: &Value| {
        let finalizers = o["metadata"]["finalizers"].as_array();
        finalizers.is_some_and(|all| all.iter().any(|f| f == identity::FOREGROUND))
    };
    let meta = &owner["metadata"];
    meta["namespace"] == *namespace && (meta["deletionTimestamp"].is_null() || !waits(owner))
}

#[test]
fn nothing_with_a_living_owner_goes_and_everything_else_does() {
    for seed in 0..100 {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(check_seed(seed));
    }
}

async fn check_seed(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let world = world();
    let wrong: Arc<Mutex<Vec<String>>> = Arc::default();
    let found = Arc::clone(&wrong);
    world.api.guard(move |request, lookup| {
        let by_collector =
            request.method == Method::DELETE && !request.body["preconditions"]["uid"].is_null();
        let object = lookup(request.body["preconditions"]["uid"].as_str()?).filter(|_| by_collector)?;
        let namespace = &object["metadata"]["namespace"];
        for reference in object["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let owner = lookup(reference["uid"].as_str()?);
            if owner.is_some_and(|o| keeps(&o, namespace)) {
                found.lock().unwrap().push(format!("{} has a living owner", request.path));
            }
        }
        None
    });
    let (objects, known) = random_objects(&mut random);
    objects[..known].iter().for_each(|o| drop(world.api.add(o)));
    world.start(&DESCRIPTOR);
    world.pass(random.f64()).await;
    objects[known..].iter().for_each(|o| drop(world.api.add(o)));
    for _ in 0..random.usize(..4) {
        let name = format!("o{}", random.usize(..objects.len()));
        let policy = ["Background", "Foreground", "Orphan"][random.usize(..3)];
        if world.api.get::<ConfigMap>("a", &name).is_some() {
            delete(&world, &name, policy).await;
        }
        world.pass(random.f64() * 0.01).await;
    }
    world.pass(20_000.0).await;
    assert_eq!(*wrong.lock().unwrap(), [""; 0], "seed {seed}");
    let all = world.api.all::<ConfigMap>();
    for object in &all {
        let references = object.metadata.owner_references.iter().flatten();
        let mut alive =
            references.map(|r| all.iter().any(|o| o.uid() == r.uid && o.namespace() == object.namespace()));
        let owned = object.metadata.owner_references.as_ref().is_some_and(|r| !r.is_empty());
        assert!(!owned || alive.any(|a| a), "seed {seed}: {} has no owner left", object.name());
        assert!(object.metadata.deletion_timestamp.is_none(), "seed {seed}: {} is stuck", object.name());
    }
}
