//! What a CronJob does next: which time is due, what happens to running jobs, and which old jobs are deleted. Pure.

use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use knarr_api::batch::schedule::Schedule;
use knarr_api::batch::timezone;
use knarr_api::kind::Kind;
use knarr_client::events::EventType;

use crate::job::{COMPLETE, FAILED, condition, is_finished};
use crate::support::owners::controller_reference;

const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// More missed times than these cause a warning event.
const MANY: usize = 100;
/// How long after its scheduled time a job is created, so that small clock differences do not matter.
const SLACK: Duration = Duration::from_millis(100);

/// An event: type, reason, message.
pub type Note = (EventType, &'static str, String);

/// The steps to carry out, and the new status.
#[derive(Debug, Default)]
pub struct Plan {
    pub status: CronJobStatus,
    pub create: Option<Job>,
    /// Names of jobs to delete: those that a new one replaces, and old ones beyond the history limits.
    pub replace: Vec<String>,
    pub expire: Vec<String>,
    pub events: Vec<Note>,
    pub wake: Option<Duration>,
}

/// The latest due time, and the number of times since `earliest`, counted up to a bound.
#[derive(Debug, PartialEq)]
struct Due {
    at: Timestamp,
    missed: usize,
}

/// Plans the next steps; `jobs` are all jobs that the CronJob controls.
pub fn plan(cron: &CronJob, jobs: &[Arc<Job>], now: Timestamp) -> Plan {
    let mut plan = Plan { status: cron.status.clone().unwrap_or_default(), ..Plan::default() };
    follow(cron, jobs, &mut plan);
    plan.expire = expired(cron, jobs);
    if cron.metadata.deletion_timestamp.is_none()
        && let Err(note) = go_on(cron, now, &mut plan)
    {
        plan.events.push(note);
    }
    tidy(plan)
}

/// Plans the due job and when to reconcile next. Returns an error event if no job can be started at all.
fn go_on(cron: &CronJob, now: Timestamp, plan: &mut Plan) -> Result<(), Note> {
    let zone = zone(cron)?;
    if cron.spec.suspend == Some(true) {
        return Ok(());
    }
    let text = &cron.spec.schedule;
    if text.contains("TZ") {
        plan.events.push((EventType::Warning, "UnsupportedSchedule", unsupported(text)));
    }
    let schedule = Schedule::parse(text).map_err(|why| {
        (EventType::Warning, "UnparseableSchedule", format!("unparseable schedule: {text:?} : {why}"))
    })?;
    let earliest = earliest(cron, cron.spec.starting_deadline_seconds, now);
    let due = earliest.and_then(|from| latest(&schedule, &zone, from, now));
    plan.wake = wake(&schedule, &zone, due.as_ref().map(|due| due.at).or(earliest), now);
    if plan.wake.is_none() {
        let text =
            format!("invalid schedule: {text} : time difference between two schedules is less than 1 second");
        return Err((EventType::Warning, "InvalidSchedule", text));
    }
    if let Some(due) = due {
        start(cron, &due, &zone, now, plan);
    }
    Ok(())
}

/// Returns how long until the next time of a CronJob whose schedule or time zone was changed. As upstream, times of
/// the new schedule that have passed are not started. Returns an event as the error if the schedule cannot be parsed.
pub fn rescheduled(cron: &CronJob, now: Timestamp) -> Result<Option<Duration>, Note> {
    let text = &cron.spec.schedule;
    let schedule = Schedule::parse(text).map_err(|_| {
        let text = format!("unparseable schedule for cronjob: {text}");
        (EventType::Warning, "UnParseableCronJobSchedule", text)
    })?;
    let zone = zone(cron).unwrap_or(TimeZone::UTC);
    let earliest = earliest(cron, None, now);
    let due = earliest.and_then(|from| latest(&schedule, &zone, from, now));
    Ok(wake(&schedule, &zone, due.map(|due| due.at).or(earliest), now))
}

/// Returns how long until the next time, counted from the previous time rather than from now: `@every` has its own
/// start.
fn wake(schedule: &Schedule, zone: &TimeZone, before: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    schedule.next(before.unwrap_or(now), zone).map(|at| until(now, at) + SLACK)
}

fn tidy(mut plan: Plan) -> Plan {
    plan.status.active = plan.status.active.take().filter(|list| !list.is_empty());
    plan
}

fn until(now: Timestamp, at: Timestamp) -> Duration {
    at.duration_since(now).try_into().unwrap_or_default()
}

fn zone(cron: &CronJob) -> Result<TimeZone, Note> {
    let name = cron.spec.time_zone.as_deref().unwrap_or("");
    timezone::find(name).ok_or_else(|| {
        let why = timezone::problem(name).unwrap_or_default();
        (EventType::Warning, "UnknownTimeZone", format!("invalid timeZone: {name:?}: {why}"))
    })
}

fn unsupported(schedule: &str) -> String {
    let more = "https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/";
    format!(
        "CRON_TZ or TZ used in schedule {schedule:?} is not officially supported, see {more} for more details"
    )
}

/// Updates the list of running jobs.
fn follow(cron: &CronJob, jobs: &[Arc<Job>], plan: &mut Plan) {
    let active = plan.status.active.get_or_insert_default();
    for job in jobs {
        let place = active.iter().position(|r| r.uid.as_deref() == Some(job.uid()));
        match (place, is_finished(job)) {
            (None, false) => {
                let text = format!("Saw a job that the controller did not create or forgot: {}", job.name());
                plan.events.push((EventType::Warning, "UnexpectedJob", text));
            }
            (Some(i), true) => {
                active.remove(i);
                let how = if condition(job, COMPLETE).is_some() { COMPLETE } else { FAILED };
                let text = format!("Saw completed job: {}, condition: {how}", job.name());
                plan.events.push((EventType::Normal, "SawCompletedJob", text));
            }
            _ => {}
        }
        let ended = job.status.as_ref().and_then(|s| s.completion_time.clone());
        if let (true, Some(time)) = (condition(job, COMPLETE).is_some(), ended)
            && plan.status.last_successful_time.as_ref().is_none_or(|last| last.0 < time.0)
        {
            plan.status.last_successful_time = Some(time);
        }
    }
    let known = |r: &ObjectReference| jobs.iter().any(|j| r.uid.as_deref() == Some(j.uid()));
    for lost in active.iter().filter(|r| !known(r)) {
        let text = format!("Active job went missing: {}", lost.name.as_deref().unwrap_or(cron.name()));
        plan.events.push((EventType::Normal, "MissingJob", text));
    }
    active.retain(known);
}

/// Returns the time after which jobs may be missing.
fn earliest(cron: &CronJob, deadline: Option<i64>, now: Timestamp) -> Option<Timestamp> {
    let last = cron.status.as_ref().and_then(|s| s.last_schedule_time.as_ref()).map(|t| t.0);
    let mut earliest = last.or(cron.metadata.creation_timestamp.as_ref().map(|t| t.0))?;
    if let Some(seconds) = deadline {
        let horizon = now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MIN);
        earliest = earliest.max(horizon);
    }
    Some(earliest)
}

/// Returns the latest time in (`earliest`, `now`], in a bounded number of steps however long ago `earliest` is.
fn latest(schedule: &Schedule, zone: &TimeZone, earliest: Timestamp, now: Timestamp) -> Option<Due> {
    let mut at = schedule.next(earliest, zone).filter(|t| *t <= now)?;
    let mut missed = 1;
    while let Some(next) = schedule.next(at, zone).filter(|t| *t <= now) {
        at = next;
        missed += 1;
        if missed > MANY {
            return Some(Due { at: near(schedule, zone, at, now), missed });
        }
    }
    Some(Due { at, missed })
}

/// Returns the latest time in [`known`, `now`], searching backwards from `now` in growing strides.
fn near(schedule: &Schedule, zone: &TimeZone, known: Timestamp, now: Timestamp) -> Timestamp {
    let mut stride = SignedDuration::from_secs(60);
    let found = loop {
        let from = now.checked_sub(stride).unwrap_or(known).max(known);
        match schedule.next(from, zone).filter(|t| *t <= now) {
            Some(first) => break first,
            None if from == known => return known,
            None => stride = stride.saturating_mul(2),
        }
    };
    let steps = std::iter::successors(Some(found), |t| schedule.next(*t, zone).filter(|t| *t <= now));
    // A stride at most twice as long as needed contains only a few times.
    steps.take(10_000).last().unwrap_or(found)
}

fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", cron.name(), at.as_second() / 60)
}

fn start(cron: &CronJob, due: &Due, zone: &TimeZone, now: Timestamp, plan: &mut Plan) {
    if due.missed > MANY {
        let text =
            "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        plan.events.push((EventType::Warning, "TooManyMissedTimes", text.to_owned()));
    }
    let deadline = cron.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    if deadline.is_some_and(|d| due.at.checked_add(d).is_ok_and(|end| end < now)) {
        let text = format!(
            "Missed scheduled time to start a job: {}",
            due.at.strftime("%a, %d %b %Y %H:%M:%S +0000")
        );
        plan.events.push((EventType::Warning, "MissSchedule", text));
        return;
    }
    let name = job_name(cron, due.at);
    let active = plan.status.active.clone().unwrap_or_default();
    let started = plan.status.last_schedule_time.as_ref().is_some_and(|t| t.0 == due.at);
    if started || active.iter().any(|r| r.name.as_deref() == Some(name.as_str())) {
        return;
    }
    match cron.spec.concurrency_policy.as_deref() {
        Some("Forbid") if !active.is_empty() => {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.events.push((EventType::Normal, "JobAlreadyActive", text.to_owned()));
            return;
        }
        Some("Replace") => plan.replace = active.iter().filter_map(|r| r.name.clone()).collect(),
        _ => {}
    }
    plan.create = Some(new_job(cron, due.at, zone));
}

fn new_job(cron: &CronJob, at: Timestamp, zone: &TimeZone) -> Job {
    let template = cron.spec.job_template.clone();
    let meta = template.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    let scheduled = at.to_zoned(zone.clone());
    let offset =
        if scheduled.offset().seconds() == 0 { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    annotations.insert(SCHEDULED.to_owned(), scheduled.strftime(offset).to_string());
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(cron, at)),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(cron)]),
            creation_timestamp: Some(Time(at)),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

/// Returns a reference to a started job for the status.
pub fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        api_version: Some(Job::RESOURCE.api_version()),
        kind: Some(Job::RESOURCE.kind.to_owned()),
        name: job.metadata.name.clone(),
        namespace: job.metadata.namespace.clone(),
        uid: job.metadata.uid.clone(),
        resource_version: job.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

/// Returns the finished jobs beyond the history limits, oldest first.
fn expired(cron: &CronJob, jobs: &[Arc<Job>]) -> Vec<String> {
    let over = |type_: &str, limit: Option<i32>| {
        let Some(limit) = limit else { return Vec::new() };
        let mut done: Vec<&Arc<Job>> =
            jobs.iter().filter(|j| condition(j, type_).is_some_and(|c| c.status == "True")).collect();
        let started = |j: &Arc<Job>| j.status.as_ref().and_then(|s| s.start_time.as_ref()).map(|t| t.0);
        // Jobs that never started are sorted last.
        let age = |j: &Arc<Job>| (started(j).is_none(), started(j));
        done.sort_by(|a, b| (age(a), a.name()).cmp(&(age(b), b.name())));
        let surplus = done.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        done.into_iter().take(surplus).map(|j| j.name().to_owned()).collect()
    };
    let mut names = over(COMPLETE, cron.spec.successful_jobs_history_limit);
    names.extend(over(FAILED, cron.spec.failed_jobs_history_limit));
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn cron(extra: Value) -> CronJob {
        let mut spec = json!({"schedule": "0 * * * *", "jobTemplate": {"metadata": {}, "spec": {"template": {}}},
            "concurrencyPolicy": "Allow", "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u",
            "creationTimestamp": "2026-01-01T00:30:00Z"}, "spec": spec}))
        .unwrap()
    }

    fn job(name: &str, state: Option<&str>, started: &str) -> Arc<Job> {
        let conditions: Vec<_> = state.iter().map(|t| json!({"type": t, "status": "True"})).collect();
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
            "status": {"startTime": started, "completionTime": started, "conditions": conditions}}))
            .unwrap(),
        )
    }

    fn with_active(mut cron: CronJob, jobs: &[&Arc<Job>]) -> CronJob {
        let active = jobs.iter().map(|j| reference(j)).collect();
        cron.status = Some(CronJobStatus { active: Some(active), ..CronJobStatus::default() });
        cron
    }

    fn reasons(plan: &Plan) -> Vec<&str> {
        plan.events.iter().map(|(_, reason, _)| *reason).collect()
    }

    #[test]
    fn a_job_is_due_at_its_time_and_once() {
        let mut cron = cron(json!({}));
        let early = plan(&cron, &[], at("2026-01-01T00:59:00Z"));
        assert!(early.create.is_none());
        assert_eq!(early.wake, Some(Duration::from_secs(60) + SLACK));
        let due = plan(&cron, &[], at("2026-01-01T01:00:00Z"));
        let job = due.create.unwrap();
        assert_eq!(job.metadata.name.as_deref(), Some("c-29453820"));
        assert_eq!(job.metadata.annotations.unwrap()[SCHEDULED], "2026-01-01T01:00:00Z");
        cron.status = Some(CronJobStatus {
            last_schedule_time: Some(Time(at("2026-01-01T01:00:00Z"))),
            ..Default::default()
        });
        assert!(plan(&cron, &[], at("2026-01-01T01:30:00Z")).create.is_none());
        assert!(plan(&cron, &[], at("2026-01-01T02:00:01Z")).create.is_some());
    }

    #[test]
    fn intervals_count_from_the_time_before() {
        let mut cron = cron(json!({"schedule": "@every 1h"}));
        let wake = |cron: &CronJob| plan(cron, &[], at("2026-01-01T02:30:00Z")).wake.unwrap() - SLACK;
        cron.status = Some(CronJobStatus {
            last_schedule_time: Some(Time(at("2026-01-01T01:50:00Z"))),
            ..Default::default()
        });
        assert_eq!(wake(&cron), Duration::from_secs(20 * 60));
    }

    #[test]
    fn zones_count() {
        let cron = cron(json!({"schedule": "30 9 * * *", "timeZone": "Asia/Kolkata"}));
        let due = plan(&cron, &[], at("2026-01-01T04:00:00Z")).create.unwrap();
        assert_eq!(due.metadata.annotations.unwrap()[SCHEDULED], "2026-01-01T09:30:00+05:30");
        let winter = super::tests::cron(json!({"timeZone": "Europe/London"}));
        let due = plan(&winter, &[], at("2026-01-01T01:00:00Z")).create.unwrap();
        assert_eq!(due.metadata.annotations.unwrap()[SCHEDULED], "2026-01-01T01:00:00Z");
        let wrong = super::tests::cron(json!({"timeZone": "No/Where", "suspend": true}));
        assert_eq!(reasons(&plan(&wrong, &[], at("2026-01-02T04:00:00Z"))), ["UnknownTimeZone"]);
    }

    #[test]
    fn schedules_that_cannot_be_kept_get_events() {
        let now = at("2026-01-01T01:00:00Z");
        for (schedule, reason, started) in [
            ("TZ=Asia/Kolkata 30 6 * * *", "UnsupportedSchedule", true),
            ("59 23 31 2 *", "InvalidSchedule", false),
            ("every day", "UnparseableSchedule", false),
        ] {
            let plan = plan(&cron(json!({"schedule": schedule})), &[], now);
            assert_eq!((reasons(&plan), plan.create.is_some()), (vec![reason], started), "{schedule}");
        }
    }

    #[test]
    fn a_new_schedule_starts_nothing_that_would_have_been_due() {
        let changed = cron(json!({"schedule": "0 1 * * *"}));
        let wait = rescheduled(&changed, at("2026-01-01T03:00:00Z")).unwrap().unwrap();
        assert_eq!(wait - SLACK, Duration::from_secs(22 * 3600));
        let (_, reason, _) =
            rescheduled(&cron(json!({"schedule": "x"})), at("2026-01-01T03:00:00Z")).unwrap_err();
        assert_eq!(reason, "UnParseableCronJobSchedule");
    }

    #[test]
    fn running_jobs_are_joined_kept_out_or_replaced() {
        let running = job("c-1", None, "2026-01-01T00:31:00Z");
        let now = at("2026-01-01T01:00:30Z");
        for (policy, created, replaced) in [("Allow", true, 0), ("Forbid", false, 0), ("Replace", true, 1)] {
            let cron = with_active(cron(json!({"concurrencyPolicy": policy})), &[&running]);
            let plan = plan(&cron, std::slice::from_ref(&running), now);
            assert_eq!((plan.create.is_some(), plan.replace.len()), (created, replaced), "{policy}");
        }
    }

    #[test]
    fn late_starts_and_many_missed_ones() {
        let now = at("2026-01-01T02:00:40Z");
        let strict = plan(&cron(json!({"startingDeadlineSeconds": 10})), &[], now);
        assert!(strict.create.is_none());
        let patient = plan(&cron(json!({"startingDeadlineSeconds": 60})), &[], now);
        assert!(patient.create.is_some());
        let long = plan(&cron(json!({"schedule": "* * * * *"})), &[], at("2026-03-01T00:00:20Z"));
        assert_eq!(reasons(&long), ["TooManyMissedTimes"]);
        let job = long.create.unwrap();
        assert_eq!(job.metadata.annotations.unwrap()[SCHEDULED], "2026-03-01T00:00:00Z");
        assert!(plan(&cron(json!({"suspend": true})), &[], now).create.is_none());
    }

    #[test]
    fn ended_jobs_leave_the_list_and_old_ones_the_cluster() {
        let jobs: Vec<_> = (1..6)
            .map(|n| job(&format!("c-{n}"), Some(COMPLETE), &format!("2026-01-01T00:3{n}:00Z")))
            .chain([
                job("c-7", Some(FAILED), "2026-01-01T00:20:00Z"),
                job("c-8", Some(FAILED), "2026-01-01T00:21:00Z"),
            ])
            .collect();
        let lost = job("c-9", None, "2026-01-01T00:22:00Z");
        let cron = with_active(cron(json!({})), &[&jobs[4], &lost]);
        let plan = plan(&cron, &jobs, at("2026-01-01T00:45:00Z"));
        assert_eq!(plan.status.active, None);
        assert_eq!(plan.status.last_successful_time, Some(Time(at("2026-01-01T00:35:00Z"))));
        assert_eq!(reasons(&plan), ["SawCompletedJob", "MissingJob"]);
        assert_eq!(plan.expire, ["c-1", "c-2", "c-7"]);
    }
}
