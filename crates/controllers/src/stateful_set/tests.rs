//! StatefulSets from the first pod to the last, against the in-memory API server.

use k8s_openapi::api::core::v1::{Event as ApiEvent, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_client::Client;
use serde_json::{Value, json};

use super::*;
use crate::testing::{World, at};

struct Trial {
    world: World,
    client: Client,
}

impl Trial {
    async fn new(extra: Value) -> Self {
        let mut spec = json!({
            "replicas": 3, "serviceName": "s", "selector": {"matchLabels": {"app": "w"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
            "template": {"metadata": {"labels": {"app": "w"}},
                "spec": {"containers": [{"name": "c", "image": "v1"}]}},
        });
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let set: StatefulSet =
            serde_json::from_value(json!({"metadata": {"name": "w", "namespace": "ns"}, "spec": spec}))
                .unwrap();
        let kinds = [
            StatefulSet::RESOURCE,
            Pod::RESOURCE,
            ControllerRevision::RESOURCE,
            PersistentVolumeClaim::RESOURCE,
            ApiEvent::RESOURCE,
        ];
        let world = World::new(&kinds);
        let client = world.api.client();
        client.create(&set).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(1.0).await;
        Self { world, client }
    }

    /// Returns the pods as `w-0 v1`.
    fn pods(&self) -> Vec<String> {
        let image = |p: &Pod| p.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        let mut all: Vec<_> =
            self.world.api.all::<Pod>().iter().map(|p| format!("{} {}", p.name(), image(p))).collect();
        all.sort();
        all
    }

    fn claims(&self) -> Vec<String> {
        let mut all: Vec<_> =
            self.world.api.all::<PersistentVolumeClaim>().iter().map(|c| c.name().to_owned()).collect();
        all.sort();
        all
    }

    async fn start_pods(&self) {
        for mut pod in self.world.api.all::<Pod>() {
            let ready = PodCondition {
                type_: "Ready".into(),
                status: "True".into(),
                last_transition_time: Some(Time(at(0))),
                ..PodCondition::default()
            };
            let conditions = Some(vec![ready]);
            let status = PodStatus { phase: Some("Running".into()), conditions, ..PodStatus::default() };
            pod.status = Some(status);
            self.client.update(&pod).await.unwrap();
        }
        self.world.pass(1.0).await;
    }

    async fn change(&self, change: impl Fn(&mut StatefulSet)) {
        let mut set: StatefulSet = self.client.get("ns", "w").await.unwrap();
        change(&mut set);
        self.client.update(&set).await.unwrap();
        self.world.pass(1.0).await;
    }
}

fn set_image(set: &mut StatefulSet, image: &str) {
    set.spec.template.spec.as_mut().unwrap().containers[0].image = Some(image.to_owned());
}

#[tokio::test(start_paused = true)]
async fn pods_come_in_order_and_go_in_reverse_and_their_claims_stay() {
    let trial = Trial::new(json!({})).await;
    assert_eq!(trial.pods(), ["w-0 v1"]);
    trial.start_pods().await;
    assert_eq!(trial.pods(), ["w-0 v1", "w-1 v1"]);
    trial.start_pods().await;
    trial.start_pods().await;
    assert_eq!(trial.pods(), ["w-0 v1", "w-1 v1", "w-2 v1"]);
    let pod: Pod = trial.client.get("ns", "w-2").await.unwrap();
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("w-2"), Some("s")));
    let volume = spec.volumes.as_ref().unwrap()[0].persistent_volume_claim.as_ref().unwrap();
    assert_eq!(volume.claim_name, "data-w-2");
    trial.change(|set| set.spec.replicas = Some(1)).await;
    assert_eq!(trial.pods(), ["w-0 v1"]);
    assert_eq!(trial.claims(), ["data-w-0", "data-w-1", "data-w-2"]);
    let events = trial.world.events();
    assert!(events.contains(&"w SuccessfulCreate Create Pod w-0 in StatefulSet w successful".to_owned()));
    assert!(events.contains(&"w SuccessfulDelete Delete Pod w-2 in StatefulSet w successful".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_update_goes_from_the_highest_ordinal_down_to_the_partition_and_back_by_undo() {
    let trial = Trial::new(json!({"podManagementPolicy": "Parallel"})).await;
    trial.start_pods().await;
    trial
        .change(|set| {
            set_image(set, "v2");
            let rolling = set.spec.update_strategy.as_mut().unwrap().rolling_update.as_mut().unwrap();
            rolling.partition = Some(1);
        })
        .await;
    assert_eq!(trial.pods(), ["w-0 v1", "w-1 v1", "w-2 v2"]);
    for _ in 0..3 {
        trial.start_pods().await;
    }
    assert_eq!(trial.pods(), ["w-0 v1", "w-1 v2", "w-2 v2"]);
    let status = trial.client.get::<StatefulSet>("ns", "w").await.unwrap().status.unwrap();
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(1), Some(2)));
    assert_ne!(status.current_revision, status.update_revision);
    trial
        .change(|set| {
            set.spec.update_strategy.as_mut().unwrap().rolling_update.as_mut().unwrap().partition = Some(0);
        })
        .await;
    for _ in 0..2 {
        trial.start_pods().await;
    }
    let status = trial.client.get::<StatefulSet>("ns", "w").await.unwrap().status.unwrap();
    assert_eq!(status.current_revision, status.update_revision);
    trial.change(|set| set_image(set, "v1")).await;
    let numbers: Vec<_> =
        trial.world.api.all::<ControllerRevision>().iter().filter_map(|r| r.revision).collect();
    assert_eq!((numbers.len(), numbers.iter().max()), (2, Some(&3)), "the first revision now has number 3");
}

#[tokio::test(start_paused = true)]
async fn a_failed_pod_is_recreated_under_its_name() {
    let trial = Trial::new(json!({"replicas": 1})).await;
    let mut pod: Pod = trial.client.get("ns", "w-0").await.unwrap();
    let uid = pod.metadata.uid.clone();
    pod.status = Some(PodStatus { phase: Some("Failed".into()), ..PodStatus::default() });
    trial.client.update(&pod).await.unwrap();
    trial.world.pass(1.0).await;
    let next: Pod = trial.client.get("ns", "w-0").await.unwrap();
    assert_ne!(next.metadata.uid, uid);
    let event = "w SuccessfulDelete Delete Pod w-0 in StatefulSet w successful";
    assert!(trial.world.events().iter().any(|e| e == event), "{:?}", trial.world.events());
}

#[tokio::test(start_paused = true)]
async fn claims_go_with_the_pods_where_the_policy_says_so() {
    let policy = json!({"whenScaled": "Delete", "whenDeleted": "Retain"});
    let extra = json!({"podManagementPolicy": "Parallel", "persistentVolumeClaimRetentionPolicy": policy});
    let trial = Trial::new(extra).await;
    trial.start_pods().await;
    trial.change(|set| set.spec.replicas = Some(2)).await;
    let claim: PersistentVolumeClaim = trial.client.get("ns", "data-w-2").await.unwrap();
    let owners = claim.metadata.owner_references.unwrap();
    assert_eq!((owners[0].kind.as_str(), owners[0].name.as_str()), ("Pod", "w-2"));
    let kept: PersistentVolumeClaim = trial.client.get("ns", "data-w-1").await.unwrap();
    assert_eq!(kept.metadata.owner_references, None);
}

#[tokio::test(start_paused = true)]
async fn a_set_that_goes_leaves_the_owners_of_its_claims_alone() {
    let policy = json!({"whenScaled": "Retain", "whenDeleted": "Delete"});
    let trial = Trial::new(json!({"replicas": 1, "persistentVolumeClaimRetentionPolicy": policy})).await;
    trial.start_pods().await;
    let mut set: StatefulSet = trial.client.get("ns", "w").await.unwrap();
    set.metadata.finalizers = Some(vec!["orphan".to_owned()]);
    trial.client.update(&set).await.unwrap();
    trial.client.delete::<StatefulSet>("ns", "w", &DeleteOptions::default()).await.unwrap();
    let mut claim: PersistentVolumeClaim = trial.client.get("ns", "data-w-0").await.unwrap();
    assert!(claim.metadata.owner_references.take().is_some_and(|owners| owners[0].kind == "StatefulSet"));
    trial.client.update(&claim).await.unwrap();
    trial.world.pass(1.0).await;
    let claim: PersistentVolumeClaim = trial.client.get("ns", "data-w-0").await.unwrap();
    assert_eq!(claim.metadata.owner_references, None, "orphaning removes the owner references");
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_foreign_name_is_released() {
    let trial = Trial::new(json!({"replicas": 1})).await;
    let mut other: Pod = trial.client.get("ns", "w-0").await.unwrap();
    other.metadata.name = Some("w-zero".to_owned());
    other.metadata.resource_version = None;
    trial.client.create(&other).await.unwrap();
    trial.world.pass(1.0).await;
    let other: Pod = trial.client.get("ns", "w-zero").await.unwrap();
    assert!(other.metadata.owner_references.is_none_or(|owners| owners.is_empty()));
}
