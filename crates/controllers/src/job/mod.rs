//! Job: runs pods until enough of them have succeeded, and counts each one exactly once.

mod counts;
mod indexes;
mod plan;
mod pods;
mod policies;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::{Kind, ObjectKey};
use knarr_apimachinery::selector::Selector;
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Patch, Result};

use crate::context::{Context, Descriptor};
use crate::support::owners::controller_of;
use crate::support::pod_control::PodControl;
use crate::support::written::{CATCH_UP, Written};
use plan::{Plan, plan};
use pods::{FINALIZER, has_finalizer, spec};

pub use plan::{COMPLETE, FAILED, condition, is_finished};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "job-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// How many finalizers are removed concurrently.
const AT_ONCE: usize = 64;
/// The value of `managedBy` for this controller; Jobs with another value are ignored.
const MANAGER: &str = "kubernetes.io/job-controller";

struct Controller {
    cx: Arc<Context>,
    jobs: Informer<Job>,
    pods: PodControl,
    queue: Arc<WorkQueue<ObjectKey>>,
    /// The newest own status writes: pods that they count must not be counted again from an older status.
    written: Written,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let orphans = WorkQueue::new(Arc::clone(&cx.clock));
    let jobs = cx.informers.informer::<Job>();
    let informer = cx.informers.informer::<Pod>();
    let pods = PodControl::new(Arc::clone(&cx), informer.clone()).adopting_with(FINALIZER);
    let on_job = Arc::clone(&queue);
    jobs.add_handler(move |event| on_job.add(event.object().key()));
    pods.wake::<Job>(&queue, jobs.lister(), selector_of);
    let on_orphan = Arc::clone(&orphans);
    informer.add_handler(move |event| {
        let pod = event.object();
        if !matches!(event, Event::Deleted(_)) && has_finalizer(pod) {
            on_orphan.add(pod.key());
        }
    });
    if !(jobs.wait_synced().await && informer.wait_synced().await) {
        return;
    }

    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let controller = Arc::new(Controller {
        jobs,
        pods,
        queue: Arc::clone(&queue),
        written: Written::default(),
        cx: Arc::clone(&cx),
    });
    let reconcile = {
        let controller = Arc::clone(&controller);
        move |key| {
            let controller = Arc::clone(&controller);
            async move { controller.reconcile(key).await }
        }
    };
    let release = move |key: ObjectKey| {
        let (controller, informer) = (Arc::clone(&controller), informer.clone());
        async move {
            let Some(pod) = informer.lister().get_key(&key) else { return Ok(()) };
            controller.release_orphan(&pod).await
        }
    };
    tokio::join!(
        queue.run(DESCRIPTOR.name, workers, stop.clone(), reconcile),
        orphans.run("job-orphan-pods", 1, stop, release),
    );
}

fn selector_of(job: &Job) -> Option<Selector> {
    let selector = Selector::from_label_selector(spec(job)?.selector.as_ref()).ok()?;
    (!selector.is_everything()).then_some(selector)
}

fn is_ours(job: &Job) -> bool {
    spec(job).and_then(|s| s.managed_by.as_deref()).is_none_or(|by| by == MANAGER)
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        if self.pods.is_pending(&key).await || self.written.is_pending(&key, self.jobs.observed_version()) {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        // The Job is read only after the wait: a Job older than its pods has not counted the pods that were released
        // since.
        let Some(job) = self.jobs.lister().get_key(&key) else {
            self.pods.forget(&key);
            self.written.forget(&key);
            return Ok(());
        };
        let Some(selector) = selector_of(&job).filter(|_| is_ours(&job)) else { return Ok(()) };
        // A finished Job neither adopts nor releases pods.
        let pods = match is_finished(&job) {
            true => self.pods.of(job.uid()),
            false => self.pods.claim(&*job, &selector).await?,
        };
        let began = self.cx.clock.monotonic();
        let plan = plan(&job, &pods, self.cx.clock.now());
        let outcome = self.carry_out(&job, &plan).await;
        let took = self.cx.clock.monotonic().saturating_sub(began);
        counts::synced(&job, counts::action(&plan), &outcome, took);
        if let (Some(wait), Ok(())) = (plan.wake, &outcome) {
            self.queue.add_after(key, wait);
        }
        outcome
    }

    /// Writes the status first, which records ended pods; only then may their finalizers be removed.
    async fn carry_out(&self, job: &Job, plan: &Plan<'_>) -> Result<()> {
        if job.status.as_ref() != Some(&plan.status) {
            let next = Job { status: Some(plan.status.clone()), ..job.clone() };
            match self.cx.client.update_status(&next).await {
                Ok(written) => {
                    self.written.note(&job.key(), &written.metadata);
                    counts::status_written(job, &plan.status);
                }
                Err(e) if e.is_not_found() => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        for (reason, message) in &plan.events {
            self.cx.recorder.event(job, EventType::Normal, reason, message.clone());
        }
        if let Some((reason, message)) = &plan.failure {
            self.cx.recorder.event(job, EventType::Warning, reason, message.clone());
        }
        self.release(job, &plan.untrack).await?;
        self.pods.delete_all(job, plan.delete.iter().map(|pod| &**pod)).await?;
        let new: Vec<Pod> = plan.create.iter().map(|slot| pods::new_pod(job, *slot)).collect();
        self.pods.create_all(job, &new).await.1
    }

    /// Removes the finalizer from these pods.
    async fn release(&self, job: &Job, pods: &[&Pod]) -> Result<()> {
        let all: Vec<_> = pods.iter().filter(|p| has_finalizer(p)).map(|pod| self.untrack(pod)).collect();
        let mut all = stream::iter(all).buffer_unordered(AT_ONCE);
        let mut outcome = Ok(());
        while let Some(one) = all.next().await {
            match one {
                Ok(Some(meta)) => self.pods.note(&job.key(), &meta),
                Ok(None) => {}
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    async fn untrack(
        &self,
        pod: &Pod,
    ) -> Result<Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>> {
        let patch = Patch::Strategic(pods::untrack_patch(pod));
        match self.cx.client.patch::<Pod>(pod.namespace(), pod.name(), None, &patch).await {
            Ok(patched) => Ok(Some(patched.metadata)),
            Err(e) if e.is_not_found() => Ok(None),
            // After a conflict, too, the pod may still have the finalizer, and no event would requeue the Job.
            Err(e) => Err(e),
        }
    }

    /// Removes the finalizer of a pod whose Job is gone or no longer owns it: no Job will count the pod.
    async fn release_orphan(&self, pod: &Pod) -> Result<()> {
        if let Some(owner) = controller_of(&pod.metadata) {
            if owner.kind != Job::RESOURCE.kind || owner.api_version != Job::RESOURCE.api_version() {
                // Another kind of owner uses the same finalizer and removes it itself.
                return Ok(());
            }
            if self.jobs.lister().get(pod.namespace(), &owner.name).is_some_and(|j| j.uid() == owner.uid) {
                return Ok(());
            }
            // The informer may not show the Job yet.
            match self.cx.client.get::<Job>(pod.namespace(), &owner.name).await {
                Ok(job) if job.uid() == owner.uid => return Ok(()),
                Err(e) if !e.is_not_found() => return Err(e),
                _ => {}
            }
        }
        self.untrack(pod).await.map(drop)
    }
}
