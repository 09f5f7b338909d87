//! Pods with the condition DisruptionTarget that were not deleted: the condition is reset, so that their later
//! failures do not count as disruptions.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Patch, Result};
use serde_json::json;

use crate::context::Context;
use crate::support::pod_disruption;
use crate::support::pod_state::{condition, has_ended};

/// How long a pod with the condition may take until its deletion.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(120);

/// Returns when the pod's condition becomes stale, if the pod has it and is not being deleted.
fn stale_at(pod: &Pod) -> Option<Timestamp> {
    let marked = condition(pod, pod_disruption::TYPE).filter(|c| c.status == "True")?;
    let by_kubelet = marked.reason.as_deref() == Some("TerminationByKubelet");
    let goes = pod.metadata.deletion_timestamp.is_some() || has_ended(pod) || by_kubelet;
    let since = marked.last_transition_time.as_ref().map(|t| t.0).filter(|_| !goes)?;
    since.checked_add(STALE_AFTER).ok()
}

fn left(at: Timestamp, now: Timestamp) -> Duration {
    at.duration_since(now).try_into().unwrap_or_default()
}

/// Resets stale conditions until the context's stop.
pub async fn run(cx: Arc<Context>, pods: Informer<Pod>) {
    let queue: Arc<WorkQueue<ObjectKey>> = WorkQueue::new(Arc::clone(&cx.clock));
    let (on_pod, clock) = (Arc::clone(&queue), Arc::clone(&cx.clock));
    pods.add_handler(move |event| {
        let pod = event.object();
        if let Some(at) = stale_at(pod).filter(|_| !matches!(event, Event::Deleted(_))) {
            on_pod.add_after(pod.key(), left(at, clock.now()));
        }
    });
    let stop = cx.stop.clone();
    let (again, pods) = (Arc::clone(&queue), pods.lister());
    let reconcile = move |key: ObjectKey| {
        let (cx, pods, again) = (Arc::clone(&cx), pods.clone(), Arc::clone(&again));
        async move {
            let Some(pod) = pods.get_key(&key) else { return Ok(()) };
            let now = cx.clock.now();
            match stale_at(&pod) {
                Some(at) if at > now => {
                    again.add_after(key, left(at, now));
                    Ok(())
                }
                Some(_) => take_back(&cx, &pod, now).await,
                None => Ok(()),
            }
        }
    };
    queue.run("stale_pod_disruption", 1, stop, reconcile).await;
}

async fn take_back(cx: &Context, pod: &Pod, now: Timestamp) -> Result<()> {
    let condition = json!({"type": pod_disruption::TYPE, "status": "False", "reason": "", "message": "",
        "lastTransitionTime": now.to_string(), "observedGeneration": pod.metadata.generation});
    let patch = Patch::Strategic(json!({
        "metadata": {"uid": pod.uid(), "resourceVersion": pod.metadata.resource_version},
        "status": {"conditions": [condition]},
    }));
    match cx.client.patch::<Pod>(pod.namespace(), pod.name(), Some("status"), &patch).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}
