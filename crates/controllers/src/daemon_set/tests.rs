//! DaemonSets on nodes that are added, removed and changed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Event as ApiEvent, NodeSpec, PodCondition, PodStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Time};
use knarr_client::Client;
use serde_json::json;

use super::*;
use crate::testing::{World, at};

fn set(image: &str, rolling: serde_json::Value) -> DaemonSet {
    serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d", "namespace": "ns"},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "template": {"metadata": {"labels": {"app": "d"}},
                "spec": {"containers": [{"name": "c", "image": image}]}},
        },
    }))
    .unwrap()
}

fn node(name: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node
}

struct Trial {
    world: World,
    client: Client,
}

impl Trial {
    async fn new(nodes: &[&str], set: DaemonSet) -> Self {
        let kinds = [
            DaemonSet::RESOURCE,
            Node::RESOURCE,
            Pod::RESOURCE,
            ControllerRevision::RESOURCE,
            ApiEvent::RESOURCE,
        ];
        let world = World::new(&kinds);
        let client = world.api.client();
        for name in nodes {
            client.create(&node(name)).await.unwrap();
        }
        client.create(&set).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(1.0).await;
        Self { world, client }
    }

    /// Returns the images by node, of pods that are not being deleted.
    fn pods(&self) -> BTreeMap<String, Vec<String>> {
        let mut map: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in self.live() {
            let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
            map.entry(nodes::node_of(&pod).unwrap().to_owned()).or_default().push(image);
        }
        map
    }

    /// Returns the pods that are not being deleted.
    fn live(&self) -> Vec<Pod> {
        let all = self.world.api.all::<Pod>().into_iter();
        all.filter(|p| p.metadata.deletion_timestamp.is_none()).collect()
    }

    /// Removes the deleted pods, binds the others and makes them ready.
    async fn start_pods(&self) {
        for pod in self.world.api.all::<Pod>() {
            if pod.metadata.deletion_timestamp.is_some() {
                self.world.api.remove::<Pod>(pod.namespace(), pod.name());
            }
        }
        self.world.pass(1.0).await;
        for mut pod in self.live() {
            let node = nodes::node_of(&pod).unwrap().to_owned();
            pod.spec.as_mut().unwrap().node_name = Some(node);
            let ready = PodCondition {
                type_: "Ready".into(),
                status: "True".into(),
                last_transition_time: Some(Time(at(0))),
                ..PodCondition::default()
            };
            pod.status = Some(PodStatus {
                phase: Some("Running".into()),
                conditions: Some(vec![ready]),
                ..PodStatus::default()
            });
            self.client.update(&pod).await.unwrap();
        }
        self.world.pass(1.0).await;
    }

    async fn set_image(&self, image: &str) {
        let mut set: DaemonSet = self.client.get("ns", "d").await.unwrap();
        set.spec.template.spec.as_mut().unwrap().containers[0].image = Some(image.to_owned());
        self.client.update(&set).await.unwrap();
        self.world.pass(1.0).await;
    }

    async fn status(&self) -> k8s_openapi::api::apps::v1::DaemonSetStatus {
        self.client.get::<DaemonSet>("ns", "d").await.unwrap().status.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn every_node_gets_a_pod_and_new_ones_too() {
    let trial = Trial::new(&["n1", "n2"], set("v1", json!({}))).await;
    assert_eq!(trial.pods().into_keys().collect::<Vec<_>>(), ["n1", "n2"]);
    trial.client.create(&node("n3")).await.unwrap();
    trial.world.pass(1.0).await;
    assert_eq!(trial.pods().len(), 3);
    trial.start_pods().await;
    let status = trial.status().await;
    assert_eq!(
        (status.desired_number_scheduled, status.number_ready, status.number_available),
        (3, 3, Some(3))
    );

    let taint = Taint { key: "mine".into(), effect: "NoExecute".into(), ..Taint::default() };
    let mut tainted: Node = trial.client.get("", "n2").await.unwrap();
    tainted.spec = Some(NodeSpec { taints: Some(vec![taint]), ..NodeSpec::default() });
    trial.client.update(&tainted).await.unwrap();
    trial.world.pass(1.0).await;
    assert_eq!(trial.pods().into_keys().collect::<Vec<_>>(), ["n1", "n3"]);
    assert_eq!(trial.status().await.desired_number_scheduled, 2);
}

#[tokio::test(start_paused = true)]
async fn rolling_in_place_replaces_so_many_at_a_time() {
    let trial = Trial::new(&["n1", "n2", "n3"], set("v1", json!({"maxUnavailable": 1}))).await;
    trial.start_pods().await;
    trial.set_image("v2").await;
    let of = |image: &str| trial.pods().values().flatten().filter(|i| *i == image).count();
    assert_eq!((of("v1"), of("v2")), (2, 0), "the next waits until the replacement is ready");
    for left in [1, 0, 0] {
        trial.start_pods().await;
        assert_eq!(of("v1"), left);
    }
    assert_eq!(trial.status().await.updated_number_scheduled, Some(3));
    let revisions = trial.world.api.all::<ControllerRevision>();
    assert_eq!(revisions.iter().filter_map(|r| r.revision).max(), Some(2));

    // Rolling back: the first revision gets number 3.
    trial.set_image("v1").await;
    let revisions = trial.world.api.all::<ControllerRevision>();
    assert_eq!((revisions.len(), revisions.iter().filter_map(|r| r.revision).max()), (2, Some(3)));
}

#[tokio::test(start_paused = true)]
async fn rolling_with_surge_starts_the_new_pod_first() {
    let rolling = json!({"maxSurge": 1, "maxUnavailable": 0});
    let trial = Trial::new(&["n1", "n2"], set("v1", rolling)).await;
    trial.start_pods().await;
    trial.set_image("v2").await;
    let mut images: Vec<_> = trial.pods().into_values().collect();
    images.sort_by_key(Vec::len);
    assert_eq!(images[0], ["v1"]);
    assert_eq!(images[1].len(), 2, "both templates on one node: {images:?}");
    for _ in 0..3 {
        trial.start_pods().await;
    }
    assert_eq!(trial.pods().into_values().flatten().collect::<Vec<_>>(), ["v2", "v2"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_pod_is_replaced_with_growing_patience() {
    let trial = Trial::new(&["n1"], set("v1", json!({}))).await;
    let fail = async || {
        let mut pod = trial.live().remove(0);
        pod.status = Some(PodStatus { phase: Some("Failed".into()), ..PodStatus::default() });
        trial.client.update(&pod).await.unwrap();
        trial.world.pass(0.2).await;
        pod.metadata.name.unwrap()
    };
    let first = fail().await;
    let second = trial.live().remove(0).metadata.name.unwrap();
    assert_ne!(first, second, "the first failed pod is replaced at once");
    let name = fail().await;
    assert_eq!(trial.live()[0].metadata.name.as_deref(), Some(name.as_str()), "the second waits");
    trial.world.pass(2.0).await;
    assert_ne!(trial.live()[0].metadata.name.as_deref(), Some(name.as_str()));
    assert!(trial.world.events().iter().any(|e| e.contains("FailedDaemonPod Found failed daemon pod ns/")));
    trial.client.delete::<DaemonSet>("ns", "d", &DeleteOptions::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pods_of_no_node_and_ended_ones_block_no_creation() {
    let trial = Trial::new(&["n1"], set("v1", json!({}))).await;
    trial.start_pods().await;
    let bare: Pod = serde_json::from_value(json!({"metadata": {"name": "bare", "namespace": "ns",
        "labels": {"app": "d"}}, "spec": {"containers": []}}))
    .unwrap();
    trial.client.create(&bare).await.unwrap();
    let mut ended = trial.live().into_iter().find(|p| p.metadata.name.as_deref() != Some("bare")).unwrap();
    ended.metadata.finalizers = Some(vec!["example.com/look".to_owned()]);
    let mut ended = trial.client.update(&ended).await.unwrap();
    ended.status = Some(PodStatus { phase: Some("Failed".into()), ..PodStatus::default() });
    trial.client.update_status(&ended).await.unwrap();
    trial.world.pass(2.0).await;
    let mut names: Vec<_> = trial.live().into_iter().filter_map(|p| p.metadata.name).collect();
    names.retain(|name| *name != ended.metadata.name.clone().unwrap());
    assert_eq!(names.len(), 2, "the bare pod and a replacement: {names:?}");
    assert!(names.contains(&"bare".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_surge_leaves_a_pod_that_is_ready_until_the_new_one_is_available() {
    let mut slow = set("v1", json!({"maxSurge": 1, "maxUnavailable": 0}));
    slow.spec.min_ready_seconds = Some(3600);
    let trial = Trial::new(&["n1"], slow).await;
    trial.start_pods().await;
    trial.set_image("v2").await;
    trial.start_pods().await;
    assert_eq!(trial.pods()["n1"].len(), 2, "{:?}", trial.pods());
}

#[tokio::test(start_paused = true)]
async fn revisions_of_other_hands_restart_nothing() {
    let mut kept = set("v1", json!({}));
    kept.metadata.annotations = Some([(GENERATION_ANNOTATION.to_owned(), "1".to_owned())].into());
    let trial = Trial::new(&["n1"], kept).await;
    trial.start_pods().await;
    let mut pod = trial.live().remove(0);
    pod.metadata.labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), "theirs".to_owned());
    trial.client.update(&pod).await.unwrap();
    trial.world.pass(2.0).await;
    assert_eq!(trial.live().remove(0).metadata.uid, pod.metadata.uid);
    assert_eq!(trial.status().await.updated_number_scheduled, Some(1));
}

#[test]
fn a_toleration_for_a_time_is_made_to_last() {
    let mut short = set("v1", json!({}));
    let toleration = json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
        "tolerationSeconds": 60});
    let spec = short.spec.template.spec.get_or_insert_default();
    spec.tolerations = Some(vec![serde_json::from_value(toleration).unwrap()]);
    let tolerations = nodes::pod_of(&short).spec.unwrap().tolerations.unwrap();
    assert!(tolerations.iter().all(|t| t.toleration_seconds.is_none()), "{tolerations:?}");
    assert_eq!(
        tolerations.iter().filter(|t| t.key.as_deref() == Some("node.kubernetes.io/not-ready")).count(),
        1
    );
}
