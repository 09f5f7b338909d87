//! A Job's pods: how they are made, and what the controller reads from them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, EnvVar, EnvVarSource, ObjectFieldSelector, Pod,
};
use knarr_api::kind::Kind;
use serde_json::{Value, json};

use crate::support::pod_control::pod_from;

pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const INDEX_IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
const INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
/// The longest prefix of generated names, to which the API server adds a suffix.
const MAX_PREFIX: usize = 58;
/// Longer host names are not valid labels.
const MAX_NAME: usize = 63;

/// The slot that a new pod takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    Any,
    Index { index: i32, failures: i32, ignored: i32 },
}

pub fn spec(job: &Job) -> Option<&JobSpec> {
    job.spec.as_ref()
}

pub fn is_indexed(job: &Job) -> bool {
    spec(job).and_then(|s| s.completion_mode.as_deref()) == Some("Indexed")
}

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER)
}

/// Returns the strategic patch that removes the finalizer.
pub fn untrack_patch(pod: &Pod) -> Value {
    json!({"metadata": {"uid": pod.uid(), "$deleteFromPrimitiveList/finalizers": [FINALIZER]}})
}

fn annotation(pod: &Pod, key: &str) -> Option<i32> {
    pod.metadata.annotations.as_ref()?.get(key)?.parse().ok()
}

/// Returns the pod's completion index.
pub fn index(pod: &Pod) -> Option<i32> {
    annotation(pod, INDEX).filter(|n| *n >= 0)
}

/// Returns how often the pod's index had failed before it: failures counted, and failures ignored by the failure
/// policy.
pub fn index_failures(pod: &Pod) -> (i32, i32) {
    (annotation(pod, INDEX_FAILURES).unwrap_or(0), annotation(pod, INDEX_IGNORED_FAILURES).unwrap_or(0))
}

/// Returns when the last of the pod's containers ended, if all have; otherwise when the pod stopped being ready, when
/// its deletion was requested, or when it was created.
pub fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    let ended = |status: &ContainerStatus| {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        terminated.finished_at.as_ref().map(|t| t.0)
    };
    let all: Option<Vec<Timestamp>> = statuses.into_iter().flatten().map(ended).collect();
    let unready = || {
        let ready = crate::support::pod_state::condition(pod, "Ready").filter(|c| c.status == "False")?;
        ready.last_transition_time.as_ref().map(|t| t.0)
    };
    let meta = &pod.metadata;
    // The deletionTimestamp is the end of the grace period.
    let asked = || {
        let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds.unwrap_or(0));
        meta.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok()
    };
    let last = all.and_then(|all| all.into_iter().max());
    last.or_else(unready).or_else(asked).or_else(|| meta.creation_timestamp.as_ref().map(|t| t.0))
}

/// Makes the pod for a slot.
pub fn new_pod(job: &Job, slot: Slot) -> Pod {
    let mut pod = pod_from(job, spec(job).map(|s| &s.template));
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let Slot::Index { index, failures, ignored } = slot else { return pod };
    let text = index.to_string();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), text.clone());
    if spec(job).is_some_and(|s| s.backoff_limit_per_index.is_some()) {
        annotations.insert(INDEX_FAILURES.to_owned(), failures.to_string());
        if ignored > 0 {
            annotations.insert(INDEX_IGNORED_FAILURES.to_owned(), ignored.to_string());
        }
    }
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), text.clone());
    // The prefix is cut so that the server's suffix does not cut off the index.
    let end = format!("-{text}-");
    let start: String = job.name().chars().take(MAX_PREFIX.saturating_sub(end.len())).collect();
    pod.metadata.generate_name = Some(start + &end);
    let spec = pod.spec.get_or_insert_default();
    let hostname = format!("{}-{text}", job.name());
    if hostname.len() <= MAX_NAME {
        spec.hostname = Some(hostname);
    }
    spec.containers.iter_mut().for_each(set_index_variable);
    spec.init_containers.iter_mut().flatten().for_each(set_index_variable);
    pod
}

/// Sets the index as an environment variable of a container, unless the container sets it itself.
fn set_index_variable(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|e| e.name == INDEX_ENV) {
        return;
    }
    let field = ObjectFieldSelector { field_path: format!("metadata.labels['{INDEX}']"), api_version: None };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    env.push(EnvVar { name: INDEX_ENV.to_owned(), value: None, value_from: Some(source) });
}
