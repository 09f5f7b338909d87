//! CronJob: creates a Job at each time of a schedule.

mod plan;

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Time};
use knarr_api::kind::{Kind, ObjectKey};
use knarr_client::events::EventType;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Event, Informer, Result};

use crate::context::{Context, Descriptor};
use crate::metrics::{self, Metric};
use crate::support::owners::{controller_of, still_owns};
use crate::support::refusals::namespace_is_terminating;
use crate::support::written::{CATCH_UP, Written};
use plan::{Plan, plan, reference};

pub const DESCRIPTOR: Descriptor =
    Descriptor { name: "cronjob-controller", run: |cx| Box::pin(async move { run(cx).await }) };

/// The index of jobs by the uid of their controller.
const BY_CONTROLLER: &str = "controllerUID";

struct Controller {
    cx: Arc<Context>,
    crons: Informer<CronJob>,
    jobs: Informer<Job>,
    queue: Arc<WorkQueue<ObjectKey>>,
    crons_written: Written,
    jobs_written: Written,
}

async fn run(cx: Arc<Context>) {
    let queue = WorkQueue::new(Arc::clone(&cx.clock));
    let crons = cx.informers.informer::<CronJob>();
    let jobs = cx.informers.informer::<Job>();
    jobs.add_index(BY_CONTROLLER, |job| {
        controller_of(&job.metadata).map(|o| o.uid.clone()).into_iter().collect()
    });
    let (on_cron, context) = (Arc::clone(&queue), Arc::clone(&cx));
    crons.add_handler(move |event| match event {
        Event::Updated { old, new } if rescheduling(old, new) => {
            match plan::rescheduled(new, context.clock.now()) {
                Ok(Some(wait)) => on_cron.add_after(new.key(), wait),
                Ok(None) => on_cron.add(new.key()),
                Err((type_, reason, message)) => context.recorder.event(&**new, type_, reason, message),
            }
        }
        _ => on_cron.add(event.object().key()),
    });
    let on_job = Arc::clone(&queue);
    jobs.add_handler(move |event| {
        let job = event.object();
        if let Some(owner) = controller_of(&job.metadata).filter(|o| o.kind == CronJob::RESOURCE.kind) {
            on_job.add(ObjectKey::new(job.namespace(), &owner.name));
        }
    });
    if !(crons.wait_synced().await && jobs.wait_synced().await) {
        return;
    }

    let (stop, workers) = (cx.stop.clone(), cx.workers());
    let controller = Arc::new(Controller {
        cx,
        crons,
        jobs,
        queue: Arc::clone(&queue),
        crons_written: Written::default(),
        jobs_written: Written::default(),
    });
    let reconcile = move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    };
    queue.run(DESCRIPTOR.name, workers, stop, reconcile).await;
}

fn rescheduling(old: &CronJob, new: &CronJob) -> bool {
    old.spec.schedule != new.spec.schedule || old.spec.time_zone != new.spec.time_zone
}

impl Controller {
    async fn reconcile(&self, key: ObjectKey) -> Result<()> {
        let Some(cron) = self.crons.lister().get_key(&key) else {
            self.crons_written.forget(&key);
            self.jobs_written.forget(&key);
            return Ok(());
        };
        let behind = self.crons_written.is_pending(&key, self.crons.observed_version())
            || self.jobs_written.is_pending(&key, self.jobs.observed_version());
        if behind {
            self.queue.add_after(key, CATCH_UP);
            return Ok(());
        }
        let mut jobs = self.jobs.lister().by_index(BY_CONTROLLER, cron.uid());
        self.add_unseen(&cron, &mut jobs).await?;
        let plan = plan(&cron, &jobs, self.cx.clock.now());
        let wake = plan.wake;
        let done = self.carry_out(&cron, plan).await;
        if let Some(wait) = wake {
            // Even after a failure the next scheduled time must not be missed.
            self.queue.add_after(key, wait);
        }
        done
    }

    /// Adds the active jobs that the informer does not show. After a restart the informer may be older than the last
    /// writes of the previous run, and a running job must not be taken for a deleted one.
    async fn add_unseen(&self, cron: &CronJob, jobs: &mut Vec<Arc<Job>>) -> Result<()> {
        for active in cron.status.iter().flat_map(|s| s.active.iter().flatten()) {
            let uid = active.uid.as_deref().unwrap_or_default();
            let Some(name) = active.name.as_deref().filter(|_| jobs.iter().all(|job| job.uid() != uid))
            else {
                continue;
            };
            match self.cx.client.get::<Job>(cron.namespace(), name).await {
                Ok(job) if job.uid() == uid => jobs.push(Arc::new(job)),
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn carry_out(&self, cron: &CronJob, plan: Plan) -> Result<()> {
        let Plan { mut status, create, replace, expire, events, .. } = plan;
        for (type_, reason, message) in events {
            self.cx.recorder.event(cron, type_, reason, message);
        }
        let mut undeleted = Ok(());
        for (name, stands_in_the_way) in
            replace.iter().map(|name| (name, true)).chain(expire.iter().map(|name| (name, false)))
        {
            match self.delete(cron, name).await {
                Err(error) if stands_in_the_way => return Err(error),
                // An old job that cannot be deleted does not prevent the next one.
                Err(error) => {
                    undeleted = Err(error);
                    continue;
                }
                Ok(()) => {}
            }
            if let Some(active) = &mut status.active {
                active.retain(|r| r.name.as_deref() != Some(name.as_str()));
            }
        }
        if let Some(job) = create {
            let scheduled = job.metadata.creation_timestamp.clone();
            if let Some(started) = self.create(cron, &job).await? {
                status.active.get_or_insert_default().push(reference(&started));
                status.last_schedule_time = scheduled.map(|t| Time(t.0));
            }
        }
        status.active = status.active.take().filter(|list| !list.is_empty());
        if cron.status.clone().unwrap_or_default() == status {
            return undeleted;
        }
        let next = CronJob { status: Some(status), ..cron.clone() };
        match self.cx.client.update_status(&next).await {
            Ok(written) => self.crons_written.note(&cron.key(), &written.metadata),
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(e),
        }
        undeleted
    }

    /// Creates the job; returns `None` if its namespace is being deleted or another owner has a job of that name. A
    /// job whose start could not be recorded before counts as created.
    async fn create(&self, cron: &CronJob, job: &Job) -> Result<Option<Job>> {
        still_owns(&self.cx.client, cron).await?;
        let mut new = job.clone();
        new.metadata.creation_timestamp = None;
        let recorder = &self.cx.recorder;
        match self.cx.client.create(&new).await {
            Ok(created) => {
                self.jobs_written.note(&cron.key(), &created.metadata);
                let (due, made) = (&job.metadata.creation_timestamp, &created.metadata.creation_timestamp);
                if let (Some(due), Some(made)) = (due, made) {
                    let late = made.0.duration_since(due.0).as_secs_f64();
                    metrics::record(Metric::CronJobSkew, &[], late);
                }
                let text = format!("Created job {}", created.name());
                recorder.event(cron, EventType::Normal, "SuccessfulCreate", text);
                Ok(Some(created))
            }
            Err(e) if namespace_is_terminating(&e) => Ok(None),
            Err(e) if e.is_already_exists() => {
                let there: Job = self.cx.client.get(cron.namespace(), new.name()).await?;
                let ours = controller_of(&there.metadata).is_some_and(|o| o.uid == cron.uid());
                // The job of this name belongs to another owner: nothing can be done until the next scheduled time.
                Ok(ours.then_some(there))
            }
            Err(e) => {
                recorder.event(cron, EventType::Warning, "FailedCreate", format!("Error creating job: {e}"));
                Err(e)
            }
        }
    }

    async fn delete(&self, cron: &CronJob, name: &str) -> Result<()> {
        let options =
            DeleteOptions { propagation_policy: Some("Background".to_owned()), ..DeleteOptions::default() };
        let recorder = &self.cx.recorder;
        match self.cx.client.delete::<Job>(cron.namespace(), name, &options).await {
            Ok(()) => {
                recorder.event(cron, EventType::Normal, "SuccessfulDelete", format!("Deleted job {name}"));
                Ok(())
            }
            Err(e) if e.is_not_found() => Ok(()),
            Err(e) => {
                recorder.event(cron, EventType::Warning, "FailedDelete", format!("Deleted job: {e}"));
                Err(e)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::World;
    use knarr_apimachinery::status::StatusError;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn an_old_job_that_cannot_go_keeps_no_new_one_from_its_time() {
        let world = World::new(&[CronJob::RESOURCE, Job::RESOURCE]);
        let client = world.api.client();
        let cron: CronJob = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns"},
            "spec": {"schedule": "*/5 * * * *", "successfulJobsHistoryLimit": 0, "jobTemplate": {"spec": {"template": {}}}},
        }))
        .unwrap();
        client.create(&cron).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(301.0).await;
        let mut old = world.api.all::<Job>().remove(0);
        world.api.guard(|request, _| {
            let refused = request.method == http::Method::DELETE && request.path.contains("/jobs/");
            refused.then(|| StatusError::bad_request("denied by a policy"))
        });
        old.status =
            serde_json::from_value(json!({"conditions": [{"type": "Complete", "status": "True"}]})).unwrap();
        client.update_status(&old).await.unwrap();
        world.pass(300.0).await;
        let names: Vec<String> = world.api.all::<Job>().iter().map(|j| j.name().to_owned()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_schedule_that_is_changed_counts_from_its_next_time() {
        let world = World::new(&[CronJob::RESOURCE, Job::RESOURCE]);
        let client = world.api.client();
        let cron: CronJob = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns"},
            "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": {}}}},
        }))
        .unwrap();
        let mut cron = client.create(&cron).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(1000.0).await;
        "*/5 * * * *".clone_into(&mut cron.spec.schedule);
        client.update(&cron).await.unwrap();
        world.pass(1.0).await;
        assert_eq!(world.api.all::<Job>().len(), 0, "missed times are not caught up");
        world.pass(300.0).await;
        assert_eq!(world.api.all::<Job>().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_start_at_their_times() {
        let world = World::new(&[CronJob::RESOURCE, Job::RESOURCE]);
        let client = world.api.client();
        let cron: CronJob = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "ns"},
            "spec": {"schedule": "*/5 * * * *", "concurrencyPolicy": "Forbid",
                "jobTemplate": {"spec": {"template": {}}}},
        }))
        .unwrap();
        client.create(&cron).await.unwrap();
        world.start(&DESCRIPTOR);
        world.pass(290.0).await;
        assert_eq!(world.api.all::<Job>().len(), 0);
        world.pass(15.0).await;
        assert_eq!(world.api.all::<Job>().len(), 1);
        world.pass(900.0).await;
        assert_eq!(world.api.all::<Job>().len(), 1, "the first one still runs");
        let mut job = world.api.all::<Job>().remove(0);
        job.status =
            serde_json::from_value(json!({"conditions": [{"type": "Complete", "status": "True"}]})).unwrap();
        client.update_status(&job).await.unwrap();
        world.pass(300.0).await;
        assert_eq!(world.api.all::<Job>().len(), 2);
        let status = client.get::<CronJob>("ns", "c").await.unwrap().status.unwrap();
        assert_eq!(status.active.unwrap().len(), 1);
    }
}
