//! Tests of claims and volumes against nodes, and of binding them before the pod.

use k8s_openapi::api::core::v1::{Node, Pod};
use knarr_client::Informers;
use knarr_client::clock::SystemClock;
use knarr_testing::FakeApi;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cache::Cache;
use crate::framework::work::Work;
use crate::framework::{Build, Catalog};
use crate::plugins::testing::{PodBuilder, labelled, node, object, pod, profile_with, verdicts_of};

const ZONE: &str = "topology.kubernetes.io/zone";
const IMMEDIATE_CLASS: &str = "now";

fn volume(name: &str, size: &str, class: &str, zone: &str) -> PersistentVolume {
    let term = json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]});
    let affinity = json!({"required": {"nodeSelectorTerms": [term]}});
    object(json!({"metadata": {"name": name, "resourceVersion": "1"},
        "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "nodeAffinity": if zone.is_empty() { Value::Null } else { affinity }},
        "status": {"phase": "Available"}}))
}

fn claim(name: &str, class: &str, extra: Value) -> PersistentVolumeClaim {
    let mut whole = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
    for (part, fields) in extra.as_object().unwrap() {
        for (field, value) in fields.as_object().unwrap() {
            whole[part][field] = value.clone();
        }
    }
    object(whole)
}

fn bound(name: &str, to: &str) -> PersistentVolumeClaim {
    let done = json!({"annotations": {"pv.kubernetes.io/bind-completed": "yes"}});
    claim(name, "late", json!({"metadata": done, "spec": {"volumeName": to}}))
}

/// Storage classes: `late` and `zoned` provision once a pod is placed (the latter only in zone a), `manual` does not
/// provision, `tight` publishes its capacity, `now` binds immediately.
fn classes() -> Catalog {
    let catalog = Catalog::default();
    let class = |name: &str, provisioner: &str, mode: &str, extra: Value| {
        let mut whole =
            json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
        whole.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        catalog.put::<StorageClass>(object(whole));
    };
    const LATE: &str = "WaitForFirstConsumer";
    class("late", "x", LATE, json!({}));
    class("manual", "kubernetes.io/no-provisioner", LATE, json!({}));
    let in_a = json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}]);
    class("zoned", "x", LATE, json!({"allowedTopologies": in_a}));
    class("tight", "csi", LATE, json!({}));
    class(IMMEDIATE_CLASS, "x", "Immediate", json!({}));
    catalog.put::<CSIDriver>(object(json!({"metadata": {"name": "csi"}, "spec": {"storageCapacity": true}})));
    for (zone, size) in [("a", "10Gi"), ("b", "100Mi")] {
        catalog.put::<CSIStorageCapacity>(object(json!({"metadata": {"name": zone, "namespace": "ns"},
            "storageClassName": "tight", "capacity": size, "nodeTopology": {"matchLabels": {ZONE: zone}}})));
    }
    catalog
}

fn zones() -> Vec<crate::plugins::testing::NodeBuilder> {
    vec![node("a").label(ZONE, "a"), node("b").label(ZONE, "b")]
}

/// Returns the messages for nodes in zones a and b.
fn say(pod: PodBuilder, fill: impl FnOnce(&Catalog)) -> [String; 2] {
    let catalog = Arc::new(classes());
    fill(&catalog);
    let said = verdicts_of(DESCRIPTOR, &catalog, pod, zones(), vec![]);
    [said[0].message(), said[1].message()]
}

#[test]
fn claims_decide_about_nodes() {
    const CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";
    const AFFINITY: &str = "node(s) didn't match PersistentVolume's node affinity";
    const SPACE: &str = "node(s) did not have enough free storage";
    const GONE: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
    let selected =
        |node: &str| json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
    let block = json!({"spec": {"volumeMode": "Block"}});
    let table: Vec<(PersistentVolumeClaim, Vec<PersistentVolume>, [&str; 2])> = vec![
        (bound("c", "v"), vec![volume("v", "1Gi", "late", "a")], ["", AFFINITY]),
        (bound("c", "v"), vec![], [GONE, GONE]),
        (claim("c", "late", json!({})), vec![], ["", ""]),
        (claim("c", "late", selected("b")), vec![], [CONFLICT, ""]),
        (claim("c", "zoned", json!({})), vec![], ["", CONFLICT]),
        (claim("c", "manual", json!({})), vec![volume("v", "2Gi", "manual", "b")], [CONFLICT, ""]),
        (claim("c", "manual", json!({})), vec![volume("v", "2Gi", "late", "b")], [CONFLICT, CONFLICT]),
        (claim("c", "manual", json!({})), vec![volume("v", "1Mi", "manual", "")], [CONFLICT, CONFLICT]),
        (claim("c", "manual", block), vec![volume("v", "2Gi", "manual", "")], [CONFLICT, CONFLICT]),
        (claim("c", "tight", json!({})), vec![], ["", SPACE]),
        (claim("c", IMMEDIATE_CLASS, json!({})), vec![], [super::IMMEDIATE, super::IMMEDIATE]),
        (claim("c", "", json!({})), vec![], [super::IMMEDIATE, super::IMMEDIATE]),
    ];
    for (n, (claim, volumes, expected)) in table.into_iter().enumerate() {
        let said = say(pod("p").claim("c"), |catalog| {
            catalog.put(claim);
            volumes.into_iter().for_each(|v| catalog.put(v));
        });
        assert_eq!(said, expected, "case {n}");
    }
}

#[test]
fn claims_that_cannot_be_used_turn_every_node_down() {
    let ephemeral = || pod("p").volume(json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}));
    let lost = json!({"status": {"phase": "Lost"}, "spec": {"volumeName": "v"}});
    let leaving = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let table = [
        (pod("p").claim("gone"), None, "persistentvolumeclaim \"gone\" not found"),
        (
            pod("p").claim("c"),
            Some(claim("c", "late", lost)),
            "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\"",
        ),
        (
            pod("p").claim("c"),
            Some(claim("c", "late", leaving)),
            "persistentvolumeclaim \"c\" is being deleted",
        ),
        (
            ephemeral(),
            None,
            "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-v0\"",
        ),
        (
            ephemeral(),
            Some(claim("p-v0", "late", json!({}))),
            "PVC default/p-v0 was not created for pod default/p (pod is not owner)",
        ),
    ];
    for (pod, claim, expected) in table {
        let said = say(pod, |catalog| claim.into_iter().for_each(|c| catalog.put(c)));
        assert_eq!(said, [expected, expected]);
    }
}

#[test]
fn two_claims_take_two_volumes_the_smallest_first() {
    let catalog = Arc::new(classes());
    let small = json!({"spec": {"resources": {"requests": {"storage": "1Gi"}}}});
    let large = json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}});
    catalog.put(claim("large", "manual", large));
    catalog.put(claim("small", "manual", small));
    for (name, size) in [("v20", "20Gi"), ("v10", "10Gi"), ("v6", "6Gi")] {
        catalog.put(volume(name, size, "manual", ""));
    }
    let binder = Binder::new(&catalog);
    let claims = binder.pod_claims(&pod("p").claim("large").claim("small").build()).unwrap();
    let found = binder.find(&claims, &node("n").build()).unwrap();
    let pairs: Vec<_> = found.bindings.iter().map(|(v, c)| (c.name(), v.name())).collect();
    assert_eq!(pairs, [("small", "v6"), ("large", "v10")]);
    // A volume that is reserved for another claim is no longer available.
    Decided::of(&found, "n").assume(&binder);
    catalog.put(claim("third", "manual", json!({})));
    let claims = binder.pod_claims(&pod("q").claim("third").build()).unwrap();
    let found = binder.find(&claims, &node("n").build()).unwrap();
    assert_eq!(found.bindings[0].0.name(), "v20");
}

#[test]
fn the_emptier_storage_scores_higher() {
    let catalog = Arc::new(classes());
    catalog.put(claim("c", "tight", json!({"spec": {"resources": {"requests": {"storage": "50Mi"}}}})));
    let mut profile = profile_with(DESCRIPTOR, &Value::Null, &catalog);
    profile.percentage = 100;
    let mut cache = Cache::default();
    zones().into_iter().for_each(|n| cache.set_node(n.into()));
    let shape = PodInfo::new(&pod("p").claim("c").build()).shape;
    let mut work = Work::new(&profile, cache.snapshot(), &shape);
    let totals = |work: &mut Work| {
        let fits: Vec<_> = work.local(cache.snapshot()).iter().collect();
        work.totals(cache.snapshot(), &fits)
    };
    assert_eq!(totals(&mut work), [100, 50]);
    // Scores are computed again when their inputs change.
    catalog.put::<CSIStorageCapacity>(object(json!({"metadata": {"name": "a", "namespace": "ns"},
        "storageClassName": "tight", "capacity": "200Mi", "nodeTopology": {"matchLabels": {ZONE: "a"}}})));
    assert!(work.catch_up(&profile, cache.snapshot(), &shape));
    assert_eq!(totals(&mut work), [75, 50]);
}

#[test]
fn arguments_are_checked() {
    let build = |args: Value| (DESCRIPTOR.build)(&Build { args: &args, catalog: &Arc::default() }).map(drop);
    assert!(build(json!({"bindTimeoutSeconds": 5})).is_ok());
    assert!(
        build(json!({"bindTimeoutSeconds": -1}))
            .unwrap_err()
            .starts_with("bindTimeoutSeconds: Invalid value: -1")
    );
    let falling = json!([{"utilization": 50, "score": 1}, {"utilization": 10, "score": 2}]);
    assert!(build(json!({"shape": falling})).is_err());
}

#[test]
fn hints_look_at_what_changed() {
    let plugin = VolumeBinding { args: Args::default(), binder: Arc::new(Binder::new(&Arc::default())) };
    let waits = PodInfo::new(&pod("p").claim("c").build());
    let hint =
        |resource, change: Changed| plugin.hint(&waits, ClusterEvent::new(resource, Action::UPDATE), &change);
    let of_claim = |name: &str| {
        let claim = Arc::new(claim(name, "late", json!({})));
        hint(Resource::PersistentVolumeClaim, Changed::of(None, Some(claim)))
    };
    assert!(of_claim("c") && !of_claim("d"));
    let capacity = |size: &str| -> Arc<CSIStorageCapacity> {
        Arc::new(object(json!({"metadata": {"name": "x"}, "storageClassName": "s", "capacity": size})))
    };
    let grew =
        |from, to| hint(Resource::CsiStorageCapacity, Changed::of(Some(capacity(from)), Some(capacity(to))));
    assert!(grew("1Gi", "2Gi") && !grew("2Gi", "1Gi"));
    let class = |zone: &str| -> Arc<StorageClass> {
        let terms = json!([{"matchLabelExpressions": [{"key": ZONE, "values": [zone]}]}]);
        Arc::new(object(json!({"metadata": {"name": "s"}, "provisioner": "x", "allowedTopologies": terms})))
    };
    let moved = |from, to| hint(Resource::StorageClass, Changed::of(Some(class(from)), Some(class(to))));
    assert!(moved("a", "b") && !moved("a", "a"));
}

struct Lab {
    api: Arc<FakeApi>,
    plugin: Arc<VolumeBinding>,
    cache: Cache,
    stop: CancellationToken,
}

/// A cluster with nodes a and b and a pod `p`, seen through informers.
async fn lab(fill: impl FnOnce(&FakeApi)) -> Lab {
    let kinds = [
        PersistentVolumeClaim::RESOURCE,
        PersistentVolume::RESOURCE,
        StorageClass::RESOURCE,
        CSIDriver::RESOURCE,
        CSIStorageCapacity::RESOURCE,
        Node::RESOURCE,
        Pod::RESOURCE,
    ];
    let api = FakeApi::new(Arc::new(SystemClock), &kinds);
    let mut cache = Cache::default();
    for node in zones() {
        let node = node.build();
        api.add(&node);
        cache.set_node(Arc::new(node));
    }
    for (name, provisioner) in [("late", "x"), ("manual", "kubernetes.io/no-provisioner")] {
        let class: StorageClass = object(json!({"metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"}));
        api.add(&class);
    }
    api.add(&pod("p").claim("c").build());
    fill(&api);
    let stop = CancellationToken::new();
    let informers = Arc::new(Informers::new(api.client(), stop.clone()));
    informers.informer::<Node>();
    informers.informer::<Pod>();
    let catalog = Arc::new(Catalog::of_informers(Arc::clone(&informers)));
    for kind in [Catalog::watch::<PersistentVolumeClaim>, Catalog::watch::<PersistentVolume>] {
        kind(&catalog);
    }
    catalog.watch::<StorageClass>();
    catalog.watch::<CSIDriver>();
    catalog.watch::<CSIStorageCapacity>();
    assert!(informers.wait_synced().await);
    let args = Args { bind_timeout_seconds: 2, ..Args::default() };
    let plugin = Arc::new(VolumeBinding { args, binder: Arc::new(Binder::new(&catalog)) });
    Lab { api, plugin, cache, stop }
}

impl Lab {
    /// Reserves and binds on node a; `meanwhile` is what the cluster does in the meantime.
    async fn bind(&self, meanwhile: impl AsyncFnOnce(&FakeApi)) -> Status {
        let waits = PodInfo::new(&self.api.get::<Pod>("default", "p").unwrap());
        let mut state = CycleState::default();
        let status = self.plugin.reserve(&mut state, self.cache.snapshot(), &waits, "a");
        assert!(status.is_success(), "{status:?}");
        let client = self.api.client();
        let (status, ()) =
            tokio::join!(self.plugin.pre_bind(&client, &state, &waits, "a"), meanwhile(&self.api));
        if !status.is_success() {
            self.plugin.unreserve(&mut state, &waits, "a");
        }
        self.stop.cancel();
        status
    }
}

async fn until(api: &FakeApi, done: impl Fn(&FakeApi) -> bool) {
    while !done(api) {
        tokio::task::yield_now().await;
    }
}

fn finish(api: &FakeApi, volume: &str) {
    api.edit::<PersistentVolumeClaim>("default", "c", |claim| {
        let done = labelled(&[("pv.kubernetes.io/bind-completed", "yes")]);
        claim.metadata.annotations.get_or_insert_default().extend(done);
        claim.spec.as_mut().unwrap().volume_name = Some(volume.to_owned());
    });
}

#[tokio::test]
async fn the_claim_names_its_node_and_is_bound_before_the_pod() {
    let lab = lab(|api| drop(api.add(&claim("c", "late", json!({}))))).await;
    let status = lab
        .bind(async |api| {
            let selected = |api: &FakeApi| {
                api.get::<PersistentVolumeClaim>("default", "c").unwrap().metadata.annotations
            };
            until(api, |api| selected(api).is_some()).await;
            assert_eq!(selected(api).unwrap()["volume.kubernetes.io/selected-node"], "a");
            api.add(&volume("v", "1Gi", "late", "a"));
            finish(api, "v");
        })
        .await;
    assert!(status.is_success(), "{status:?}");
}

#[tokio::test]
async fn a_free_volume_is_reserved_for_the_claim() {
    let lab = lab(|api| {
        api.add(&claim("c", "manual", json!({})));
        api.add(&volume("v", "1Gi", "manual", "a"));
    })
    .await;
    let status = lab
        .bind(async |api| {
            let reference =
                |api: &FakeApi| api.get::<PersistentVolume>("", "v").unwrap().spec.unwrap().claim_ref;
            until(api, |api| reference(api).is_some()).await;
            assert_eq!(reference(api).unwrap().name.as_deref(), Some("c"));
            finish(api, "v");
        })
        .await;
    assert!(status.is_success(), "{status:?}");
}

#[tokio::test]
async fn binding_ends_when_it_can_never_be() {
    let late = |api: &FakeApi| drop(api.add(&claim("c", "late", json!({}))));
    let told = |api: &FakeApi| {
        let claim = api.get::<PersistentVolumeClaim>("default", "c").unwrap();
        claim.metadata.annotations.is_some()
    };
    let elsewhere = lab(late).await;
    let status = elsewhere
        .bind(async |api| {
            until(api, told).await;
            api.edit::<PersistentVolumeClaim>("default", "c", |c| {
                c.metadata.annotations = Some(labelled(&[("x", "y")]));
            });
        })
        .await;
    assert_eq!(status.message(), "binding volumes: provisioning failed for PVC \"c\"");
    let unreachable = lab(late).await;
    let status = unreachable
        .bind(async |api| {
            until(api, told).await;
            api.add(&volume("v", "1Gi", "late", "b"));
            finish(api, "v");
        })
        .await;
    assert_eq!(
        status.message(),
        "binding volumes: pv \"v\" node affinity doesn't match node \"a\": no matching NodeSelectorTerms"
    );
    let slow = lab(late).await;
    let status = slow.bind(async |_| ()).await;
    assert_eq!(status.message(), "binding volumes: context deadline exceeded");
}
