//! TTL after finished: deletes a Job with its pods `ttlSecondsAfterFinished` after it ended.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Preconditions};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Lister, Result};

use crate::context::{Context, Descriptor};
use crate::job::{COMPLETE, FAILED, condition};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "ttl-after-finished-controller", run: |cx| Box::pin(async move { run(cx).await }) };

async fn run(cx: Arc<Context>) {
    let queue: Arc<WorkQueue<ObjectKey>> = WorkQueue::new(Arc::clone(&cx.clock));
    let jobs = cx.informers.informer::<Job>();
    let on_job = Arc::clone(&queue);
    jobs.add_handler(move |event| {
        if !matches!(event, Event::Deleted(_)) && expires(event.object()).is_some() {
            on_job.add(event.object().key());
        }
    });
    if !jobs.wait_synced().await {
        return;
    }
    let (jobs, stop, again) = (jobs.lister(), cx.stop.clone(), Arc::clone(&queue));
    let workers = cx.workers();
    let reconcile = move |key| {
        let (cx, jobs, again) = (Arc::clone(&cx), jobs.clone(), Arc::clone(&again));
        async move { reconcile(&cx, &jobs, &again, key).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

/// Returns when the Job is to be deleted, if it has ended and has a TTL.
fn expires(job: &Job) -> Option<Timestamp> {
    let seconds = job.spec.as_ref()?.ttl_seconds_after_finished?;
    let done = [COMPLETE, FAILED].into_iter().filter_map(|type_| condition(job, type_));
    let ended = done.into_iter().find(|c| c.status == "True")?.last_transition_time.as_ref()?.0;
    ended.checked_add(SignedDuration::from_secs(seconds.into())).ok()
}

async fn reconcile(
    cx: &Context,
    jobs: &Lister<Job>,
    queue: &WorkQueue<ObjectKey>,
    key: ObjectKey,
) -> Result<()> {
    let known = jobs.get_key(&key).filter(|job| job.metadata.deletion_timestamp.is_none());
    let Some(at) = known.as_ref().and_then(|job| expires(job)) else { return Ok(()) };
    let left: Duration = at.duration_since(cx.clock.now()).try_into().unwrap_or_default();
    if !left.is_zero() {
        queue.add_after(key, left);
        return Ok(());
    }
    // The TTL may have changed since the informer's version.
    let live: Job = match cx.client.get(&key.namespace, &key.name).await {
        Ok(job) => job,
        Err(e) if e.is_not_found() => return Ok(()),
        Err(e) => return Err(e),
    };
    if expires(&live) != Some(at) {
        return Ok(());
    }
    let preconditions = Preconditions {
        uid: live.metadata.uid.clone(),
        resource_version: live.metadata.resource_version.clone(),
    };
    let options = DeleteOptions {
        propagation_policy: Some("Foreground".to_owned()),
        preconditions: Some(preconditions),
        ..DeleteOptions::default()
    };
    match cx.client.delete::<Job>(live.namespace(), live.name(), &options).await {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, at};
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn ended_jobs_go_after_their_time() {
        let world = World::new(&[Job::RESOURCE]);
        let client = world.api.client();
        let job = |name: &str, ttl: Option<i32>, type_: &str| -> Job {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "ns"},
                "spec": {"ttlSecondsAfterFinished": ttl, "template": {}},
                "status": {"conditions": [{"type": type_, "status": "True", "lastTransitionTime": at(0).to_string()}]},
            }))
            .unwrap()
        };
        for job in [job("a", Some(100), COMPLETE), job("b", None, FAILED), job("c", Some(1), "Suspended")] {
            client.create(&job).await.unwrap();
        }
        world.start(&DESCRIPTOR);
        let names = || {
            let all = world.api.all::<Job>().into_iter();
            let staying = all.filter(|j| j.metadata.deletion_timestamp.is_none());
            staying.map(|j| j.name().to_owned()).collect::<Vec<_>>()
        };
        world.pass(99.0).await;
        assert_eq!(names(), ["a", "b", "c"]);
        world.pass(2.0).await;
        assert_eq!(names(), ["b", "c"]);
    }
}
