//! Jobs from start to end, against the in-memory API server.

use k8s_openapi::api::batch::v1::JobStatus;
use k8s_openapi::api::core::v1::{Event as ApiEvent, PodStatus};
use knarr_client::Client;
use serde_json::{Value, json};

use super::*;
use crate::testing::World;

struct Trial {
    world: World,
    client: Client,
}

fn job(extra: Value) -> Job {
    let mut spec = json!({
        "selector": {"matchLabels": {"job-name": "j"}}, "parallelism": 1, "completions": 1, "backoffLimit": 6,
        "completionMode": "NonIndexed", "podReplacementPolicy": "TerminatingOrFailed",
        "template": {"metadata": {"labels": {"job-name": "j"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}},
    });
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::from_value(json!({"metadata": {"name": "j", "namespace": "ns"}, "spec": spec})).unwrap()
}

impl Trial {
    async fn new(extra: Value) -> Self {
        let world = World::new(&[Job::RESOURCE, Pod::RESOURCE, ApiEvent::RESOURCE]);
        let client = world.api.client();
        client.create(&job(extra)).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(0.5).await;
        Self { world, client }
    }

    /// Returns the live pods as `index phase`, sorted.
    fn pods(&self) -> Vec<String> {
        let describe = |p: &Pod| {
            let index = pods::index(p).map_or("-".to_owned(), |n| n.to_string());
            format!("{index} {}", Some(pods::phase(p)).filter(|t| !t.is_empty()).unwrap_or("New"))
        };
        let mut all: Vec<_> = self.world.api.all::<Pod>().iter().map(describe).collect();
        all.sort();
        all
    }

    /// Ends new pods of this index (or any) with this phase.
    async fn end(&self, index: Option<i32>, phase: &str, count: usize) {
        let new = |p: &Pod| pods::phase(p).is_empty() && (index.is_none() || pods::index(p) == index);
        let chosen: Vec<Pod> =
            self.world.api.all::<Pod>().into_iter().filter(|p| new(p)).take(count).collect();
        assert_eq!(chosen.len(), count, "{:?}", self.pods());
        for mut pod in chosen {
            pod.status = Some(PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() });
            self.client.update_status(&pod).await.unwrap();
        }
        self.world.pass(0.5).await;
    }

    async fn status(&self) -> JobStatus {
        self.client.get::<Job>("ns", "j").await.unwrap().status.unwrap_or_default()
    }

    /// Returns the types of true conditions with their reasons.
    async fn conditions(&self) -> Vec<String> {
        let all = self.status().await.conditions.unwrap_or_default();
        let held = all.iter().filter(|c| c.status == "True");
        held.map(|c| format!("{} {}", c.type_, c.reason.as_deref().unwrap_or(""))).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn so_many_at_a_time_until_so_many_have_succeeded() {
    let trial = Trial::new(json!({"parallelism": 2, "completions": 3})).await;
    assert_eq!(trial.pods(), ["- New", "- New"]);
    trial.end(None, "Succeeded", 2).await;
    assert_eq!(trial.pods(), ["- New", "- Succeeded", "- Succeeded"]);
    assert_eq!(trial.status().await.succeeded, Some(2));
    trial.end(None, "Succeeded", 1).await;
    let status = trial.status().await;
    assert_eq!((status.succeeded, status.active, status.failed), (Some(3), None, None));
    assert!(status.completion_time.is_some());
    assert_eq!(
        trial.conditions().await,
        ["SuccessCriteriaMet CompletionsReached", "Complete CompletionsReached"]
    );
    assert!(trial.world.api.all::<Pod>().iter().all(|p| !has_finalizer(p)), "all finalizers are removed");
    assert!(trial.world.events().contains(&"j Completed Job completed".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_somebody_else_manages_is_left_alone() {
    let trial = Trial::new(json!({"managedBy": "example.com/other"})).await;
    trial.world.pass(30.0).await;
    assert_eq!((trial.pods(), trial.status().await), (vec![], JobStatus::default()));
    let trial = Trial::new(json!({"managedBy": "kubernetes.io/job-controller"})).await;
    assert_eq!(trial.pods(), ["- New"]);
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_and_end_the_job() {
    let trial = Trial::new(json!({"backoffLimit": 1})).await;
    trial.end(None, "Failed", 1).await;
    assert_eq!(trial.pods(), ["- Failed"], "the next one waits");
    trial.world.pass(11.0).await;
    assert_eq!(trial.pods(), ["- Failed", "- New"]);
    trial.end(None, "Failed", 1).await;
    trial.world.pass(30.0).await;
    assert_eq!(trial.status().await.failed, Some(2));
    assert_eq!(
        trial.conditions().await,
        ["FailureTarget BackoffLimitExceeded", "Failed BackoffLimitExceeded"]
    );
    let event = "j BackoffLimitExceeded Job has reached the specified backoff limit";
    assert!(trial.world.events().contains(&event.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn every_index_succeeds_once() {
    let trial = Trial::new(json!({"completionMode": "Indexed", "parallelism": 2, "completions": 4})).await;
    assert_eq!(trial.pods(), ["0 New", "1 New"]);
    let pod = trial.world.api.all::<Pod>().remove(0);
    let env = pod.spec.as_ref().unwrap().containers[0].env.as_ref().unwrap();
    assert_eq!(env[0].name, "JOB_COMPLETION_INDEX");
    trial.end(Some(1), "Succeeded", 1).await;
    assert_eq!(trial.pods(), ["0 New", "1 Succeeded", "2 New"]);
    trial.end(Some(0), "Failed", 1).await;
    trial.world.pass(11.0).await;
    assert_eq!(trial.pods(), ["0 Failed", "0 New", "1 Succeeded", "2 New"]);
    for index in [0, 2, 3] {
        trial.end(Some(index), "Succeeded", 1).await;
    }
    let status = trial.status().await;
    assert_eq!((status.succeeded, status.completed_indexes.as_deref()), (Some(4), Some("0-3")));
    assert_eq!(status.failed, Some(1));
    assert!(condition(&trial.client.get::<Job>("ns", "j").await.unwrap(), COMPLETE).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_index_has_a_limit_of_its_own() {
    let extra = json!({"completionMode": "Indexed", "parallelism": 2, "completions": 2,
        "backoffLimit": i32::MAX, "backoffLimitPerIndex": 0});
    let trial = Trial::new(extra).await;
    trial.end(Some(0), "Failed", 1).await;
    assert_eq!(trial.status().await.failed_indexes.as_deref(), Some("0"));
    trial.end(Some(1), "Succeeded", 1).await;
    assert_eq!(trial.conditions().await, ["FailureTarget FailedIndexes", "Failed FailedIndexes"]);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_has_no_pods_and_a_late_one_ends() {
    let trial = Trial::new(json!({"suspend": true, "activeDeadlineSeconds": 60})).await;
    assert_eq!(trial.pods(), [""; 0]);
    assert_eq!(trial.conditions().await, ["Suspended JobSuspended"]);
    assert_eq!(trial.status().await.start_time, None);
    let mut resumed: Job = trial.client.get("ns", "j").await.unwrap();
    resumed.spec.as_mut().unwrap().suspend = Some(false);
    trial.client.update(&resumed).await.unwrap();
    trial.world.pass(1.0).await;
    assert_eq!(trial.pods(), ["- New"]);
    trial.world.pass(61.0).await;
    assert_eq!(trial.conditions().await, ["FailureTarget DeadlineExceeded", "Failed DeadlineExceeded"]);
    assert_eq!(trial.pods(), [""; 0], "its pods are deleted");
    assert_eq!(trial.status().await.failed, Some(1));
}

/// Runs a Job with `backoffLimit` 0 whose pods are deleted while they run.
#[tokio::test(start_paused = true)]
async fn pods_that_are_taken_away_have_not_failed() {
    let trial = Trial::new(json!({"backoffLimit": 0, "parallelism": 3, "completions": 9})).await;
    let change = async |extra: Value| {
        let patch = Patch::Merge(json!({"spec": extra}));
        trial.client.patch::<Job>("ns", "j", None, &patch).await.unwrap();
        trial.world.pass(1.0).await;
    };
    change(json!({"parallelism": 1})).await;
    assert_eq!(trial.pods(), ["- New"]);
    change(json!({"suspend": true})).await;
    let status = trial.status().await;
    assert_eq!((status.failed, status.start_time), (None, None));
    change(json!({"suspend": false, "parallelism": 2})).await;
    assert_eq!(trial.pods(), ["- New", "- New"], "at once: nothing has failed");
    assert_eq!(trial.conditions().await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_the_end_of_a_job_takes_away() {
    let indexed = |extra: Value| {
        let mut spec = json!({"completionMode": "Indexed", "parallelism": 4, "completions": 4});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    };
    let policy = json!({"rules": [{"succeededIndexes": "0"}]});
    let trial = Trial::new(indexed(json!({"successPolicy": policy}))).await;
    trial.end(Some(0), "Succeeded", 1).await;
    trial.world.pass(1.0).await;
    assert_eq!(trial.status().await.failed, None, "superfluous pods have not failed");
    assert_eq!(trial.pods(), ["0 Succeeded"]);

    let limits = json!({"backoffLimit": i32::MAX, "backoffLimitPerIndex": 0, "maxFailedIndexes": 0});
    let trial = Trial::new(indexed(limits)).await;
    trial.end(Some(2), "Failed", 1).await;
    trial.world.pass(1.0).await;
    let status = trial.status().await;
    assert_eq!((status.failed, status.failed_indexes.as_deref()), (Some(4), Some("2")));
}

#[tokio::test(start_paused = true)]
async fn policies_decide_early() {
    let policy = json!({"rules": [{"succeededIndexes": "0"}]});
    let trial = Trial::new(json!({"completionMode": "Indexed", "parallelism": 3, "completions": 3,
        "successPolicy": policy}))
    .await;
    trial.end(Some(0), "Succeeded", 1).await;
    trial.world.pass(1.0).await;
    assert_eq!(trial.conditions().await, ["SuccessCriteriaMet SuccessPolicy", "Complete SuccessPolicy"]);

    let policy =
        json!({"rules": [{"action": "FailJob", "onPodConditions": [{"type": "Bad", "status": "True"}]}]});
    let trial = Trial::new(json!({"podFailurePolicy": policy})).await;
    let mut pod = trial.world.api.all::<Pod>().remove(0);
    pod.status =
        serde_json::from_value(json!({"phase": "Failed", "conditions": [{"type": "Bad", "status": "True"}]}))
            .unwrap();
    trial.client.update_status(&pod).await.unwrap();
    trial.world.pass(1.0).await;
    assert_eq!(trial.conditions().await, ["FailureTarget PodFailurePolicy", "Failed PodFailurePolicy"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_its_job_loses_its_finalizer() {
    let trial = Trial::new(json!({})).await;
    let mut stray = trial.world.api.all::<Pod>().remove(0);
    stray.metadata.name = Some("stray".into());
    stray.metadata.resource_version = None;
    stray.metadata.owner_references.as_mut().unwrap()[0].uid = "gone".into();
    trial.client.create(&stray).await.unwrap();
    trial.world.pass(1.0).await;
    assert!(!has_finalizer(&trial.client.get::<Pod>("ns", "stray").await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_smaller_indexed_job_gives_up_the_indexes_that_it_no_longer_has() {
    let trial = Trial::new(json!({"completionMode": "Indexed", "parallelism": 5, "completions": 5})).await;
    let patch = Patch::Merge(json!({"spec": {"parallelism": 3, "completions": 3}}));
    trial.client.patch::<Job>("ns", "j", None, &patch).await.unwrap();
    trial.world.pass(1.0).await;
    assert_eq!(trial.pods(), ["0 New", "1 New", "2 New"]);
    assert_eq!(trial.status().await.failed, None);
    let mut twin = trial.world.api.all::<Pod>().into_iter().find(|p| pods::index(p) == Some(1)).unwrap();
    twin.metadata.name = Some("twin".to_owned());
    twin.metadata.resource_version = None;
    trial.client.create(&twin).await.unwrap();
    trial.world.pass(1.0).await;
    assert_eq!(trial.pods(), ["0 New", "1 New", "2 New"], "one of each");
}

#[tokio::test(start_paused = true)]
async fn an_index_remembers_its_failures_when_its_pods_are_taken_away() {
    let limits = json!({"completionMode": "Indexed", "parallelism": 1, "completions": 1,
        "backoffLimit": i32::MAX, "backoffLimitPerIndex": 1});
    let trial = Trial::new(limits).await;
    for failed in [1, 2] {
        let pod = trial.world.api.all::<Pod>().into_iter().find(|p| p.metadata.deletion_timestamp.is_none());
        let pod = pod.unwrap();
        assert_eq!(pods::index_failures(&pod).0, failed - 1);
        trial.client.delete::<Pod>("ns", pod.name(), &Default::default()).await.unwrap();
        trial.world.pass(30.0).await;
    }
    let status = trial.status().await;
    assert_eq!((status.failed, status.failed_indexes.as_deref()), (Some(2), Some("0")));
    assert_eq!(trial.pods(), [""; 0], "all finalizers are removed in the end");
}

#[tokio::test(start_paused = true)]
async fn an_adopted_pod_counts_and_a_finished_job_adopts_none() {
    let world = World::new(&[Job::RESOURCE, Pod::RESOURCE, ApiEvent::RESOURCE]);
    let client = world.api.client();
    let orphan = async |name: &str| {
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "labels": {"job-name": "j"}},
            "spec": {"containers": []}});
        client.create(&serde_json::from_value::<Pod>(pod).unwrap()).await.unwrap();
    };
    orphan("first").await;
    client.create(&job(json!({}))).await.unwrap();
    world.start(&DESCRIPTOR);
    world.pass(0.5).await;
    assert!(has_finalizer(&client.get::<Pod>("ns", "first").await.unwrap()));
    let trial = Trial { client: world.api.client(), world };
    trial.end(None, "Succeeded", 1).await;
    let status = trial.status().await;
    assert_eq!(
        (status.succeeded, status.completion_time.is_some()),
        (Some(1), true),
        "no other pod was created"
    );
    orphan("later").await;
    trial.world.pass(1.0).await;
    let later: Pod = trial.client.get("ns", "later").await.unwrap();
    assert_eq!(later.metadata.owner_references, None);
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_of_others_pods_is_theirs() {
    let trial = Trial::new(json!({})).await;
    let mut theirs = trial.world.api.all::<Pod>().remove(0);
    theirs.metadata.name = Some("theirs".into());
    (theirs.metadata.resource_version, theirs.metadata.uid) = (None, None);
    theirs.metadata.owner_references.as_mut().unwrap()[0].api_version = "example.com/v1".into();
    trial.client.create(&theirs).await.unwrap();
    trial.world.pass(1.0).await;
    assert!(has_finalizer(&trial.client.get::<Pod>("ns", "theirs").await.unwrap()));
}
