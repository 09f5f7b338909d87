//! What a Job does next: which ended pods to count, which pods to create and delete, and its status. Pure.
//!
//! A pod is counted once, whatever happens between two writes: its uid (or its index) is written into the status
//! first, then its finalizer is removed, and only when the pod has none is the uid replaced by an increment of a
//! counter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::kind::Kind;

use super::indexes::Indexes;
use super::pods::{Slot, finished_at, has_finalizer, index, index_failures, is_indexed, phase, spec};
use super::policies::{Failure, judge, success};
use crate::support::pod_state::{active_order, has_ended, is_active, is_ready};

pub const COMPLETE: &str = "Complete";
pub const FAILED: &str = "Failed";
const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
const FAILURE_TARGET: &str = "FailureTarget";
const SUSPENDED: &str = "Suspended";
/// The most uids in the status at a time.
const MAX_UNCOUNTED: usize = 500;
/// The most pods created or deleted in one reconciliation.
const BURST: usize = 500;
/// The delay of the next pod after a failure, doubled for each further failure in a row.
const BACK_OFF_FIRST: Duration = Duration::from_secs(10);
const BACK_OFF_LONGEST: Duration = Duration::from_secs(600);

/// The steps to carry out; the status is written first.
#[derive(Debug, Default)]
pub struct Plan<'p> {
    pub status: JobStatus,
    /// Pods whose finalizer is to be removed: counted in this status, or pods of a finished Job.
    pub untrack: Vec<&'p Pod>,
    pub delete: Vec<&'p Pod>,
    pub create: Vec<Slot>,
    /// When to reconcile again if no event arrives before.
    pub wake: Option<Duration>,
    /// Reason and message of events; the failure reasons are warnings.
    pub events: Vec<(&'static str, String)>,
    pub failure: Option<(String, String)>,
}

pub fn condition<'j>(job: &'j Job, type_: &str) -> Option<&'j JobCondition> {
    job.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == type_)
}

fn holds(status: &JobStatus, type_: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == type_ && c.status == "True")
}

/// Returns whether the Job is Complete or Failed.
pub fn is_finished(job: &Job) -> bool {
    job.status.as_ref().is_some_and(|s| holds(s, COMPLETE) || holds(s, FAILED))
}

/// The state of the Job during one reconciliation.
struct Look<'p> {
    job: &'p Job,
    now: Timestamp,
    pods: &'p [Arc<Pod>],
    status: JobStatus,
    active: Vec<&'p Pod>,
    terminating: Vec<&'p Pod>,
    succeeded_indexes: Indexes,
    failed_indexes: Indexes,
    /// The message of a failure that ends the Job by its pod failure policy.
    fatal: Option<String>,
    untrack: Vec<&'p Pod>,
    indexed: bool,
    completions: Option<i32>,
    parallelism: i32,
    /// Terminating pods do not count as failed yet and are not replaced.
    replaces_failed_only: bool,
    /// Failures that count but are not recorded in the status yet.
    held_failures: i32,
}

/// Plans the next steps; `pods` are all the Job's pods, with or without finalizer.
pub fn plan<'p>(job: &'p Job, pods: &'p [Arc<Pod>], now: Timestamp) -> Plan<'p> {
    let mut look = Look::new(job, pods, now);
    if is_finished(job) {
        // Finalizers that are left are removed.
        let untrack = pods.iter().map(|p| &**p).filter(|p| has_finalizer(p)).collect();
        return Plan { status: look.status, untrack, ..Plan::default() };
    }
    let mut plan = Plan::default();
    look.settle_counted(pods);
    look.begin();
    let ending = look.is_ending();
    look.count(pods, ending);
    if let (false, Some((type_, reason, message))) = (ending, look.verdict()) {
        look.set_condition(type_, "True", &reason, &message);
    }
    if look.is_ending() {
        plan.delete = look.active.clone();
        if holds(&look.status, SUCCESS_CRITERIA_MET) {
            // Superfluous pods of a complete Job have not failed.
            look.release_uncounted(&plan.delete);
        }
        // The Job's pods count as ended too, whatever their phase is.
        look.count(pods, true);
    } else {
        look.suspend_or_resume(&mut plan);
        if job.metadata.deletion_timestamp.is_none() {
            look.manage(&mut plan);
        }
    }
    if job.metadata.deletion_timestamp.is_some() {
        // No Job will count these pods, whatever their result.
        let all: Vec<&Pod> = pods.iter().map(|p| &**p).collect();
        look.release_uncounted(&all);
    }
    look.finish(&mut plan);
    look.status.active = Some(look.active.len() as i32).filter(|n| *n > 0);
    look.status.ready = Some(look.active.iter().filter(|p| is_ready(p)).count() as i32);
    look.status.terminating = Some(look.terminating.len() as i32);
    plan.untrack = look.untrack;
    plan.status = look.status;
    plan
}

impl<'p> Look<'p> {
    fn new(job: &'p Job, pods: &'p [Arc<Pod>], now: Timestamp) -> Self {
        let spec = spec(job).cloned().unwrap_or_default();
        let status = job.status.clone().unwrap_or_default();
        let indexed = is_indexed(job);
        let limit = spec.completions.unwrap_or(i32::MAX);
        let parse = |text: &Option<String>| Indexes::parse(text.as_deref().unwrap_or(""), limit);
        let all = || pods.iter().map(|p| &**p);
        let ended = |p: &&Pod| has_ended(p);
        Self {
            job,
            now,
            pods,
            active: all().filter(|p| is_active(p)).collect(),
            terminating: all().filter(|p| !ended(p) && p.metadata.deletion_timestamp.is_some()).collect(),
            succeeded_indexes: parse(&status.completed_indexes),
            failed_indexes: parse(&status.failed_indexes),
            fatal: None,
            untrack: Vec::new(),
            indexed,
            completions: spec.completions,
            parallelism: spec.parallelism.unwrap_or(1),
            replaces_failed_only: spec.pod_replacement_policy.as_deref() == Some("Failed"),
            held_failures: 0,
            status,
        }
    }

    fn suspended(&self) -> bool {
        spec(self.job).and_then(|s| s.suspend) == Some(true)
    }

    fn per_index(&self) -> Option<i32> {
        spec(self.job).and_then(|s| s.backoff_limit_per_index)
    }

    fn is_ending(&self) -> bool {
        holds(&self.status, SUCCESS_CRITERIA_MET) || holds(&self.status, FAILURE_TARGET)
    }

    /// Replaces uids whose pods have no finalizer any more by increments of the counters.
    fn settle_counted(&mut self, pods: &[Arc<Pod>]) {
        let tracked: BTreeSet<&str> = pods.iter().filter(|p| has_finalizer(p)).map(|p| p.uid()).collect();
        let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
        let settle = |uids: &mut Option<Vec<String>>| {
            let before = uids.as_ref().map_or(0, Vec::len);
            if let Some(list) = uids {
                list.retain(|uid| tracked.contains(uid.as_str()));
            }
            *uids = uids.take().filter(|list| !list.is_empty());
            (before - uids.as_ref().map_or(0, Vec::len)) as i32
        };
        let (succeeded, failed) = (settle(&mut uncounted.succeeded), settle(&mut uncounted.failed));
        add(&mut self.status.succeeded, succeeded);
        add(&mut self.status.failed, failed);
    }

    /// Sets when the Job started or resumed after a suspension; its deadline counts from then.
    fn begin(&mut self) {
        let resumes = holds(&self.status, SUSPENDED) && !self.is_ending();
        if !self.suspended() && (self.status.start_time.is_none() || resumes) {
            self.status.start_time = Some(Time(self.now));
        }
    }

    /// Sets the condition that shows whether an unfinished Job is suspended.
    fn suspend_or_resume(&mut self, plan: &mut Plan<'_>) {
        match (holds(&self.status, SUSPENDED), self.suspended()) {
            (false, true) => {
                self.status.start_time = None;
                self.set_condition(SUSPENDED, "True", "JobSuspended", "Job suspended");
                plan.events.push(("Suspended", "Job suspended".to_owned()));
            }
            (true, false) => {
                self.set_condition(SUSPENDED, "False", "JobResumed", "Job resumed");
                plan.events.push(("Resumed", "Job resumed".to_owned()));
            }
            _ => {}
        }
    }

    /// Returns whether a pod has failed: its phase is Failed, or it is deleted before it ended.
    fn has_failed(&self, pod: &Pod) -> bool {
        match phase(pod) {
            "Failed" => true,
            "Succeeded" => false,
            _ => !self.replaces_failed_only && pod.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Marks pods that are deleted without having failed: their finalizers are removed first.
    fn release_uncounted(&mut self, pods: &[&'p Pod]) {
        for pod in pods.iter().filter(|p| has_finalizer(p)) {
            if !self.untrack.iter().any(|p| p.uid() == pod.uid()) {
                self.untrack.push(pod);
            }
        }
    }

    /// Records ended pods in the status and marks them for release. With `all`, the Job is over and every pod counts
    /// as ended.
    fn count(&mut self, pods: &'p [Arc<Pod>], all: bool) {
        let tracked = || pods.iter().map(|p| &**p).filter(|p| has_finalizer(p));
        for pod in tracked().filter(|p| !all || p.metadata.deletion_timestamp.is_none()) {
            self.judge(pod);
        }
        let held = if all { BTreeSet::new() } else { self.held(tracked()) };
        for pod in tracked() {
            if self.untrack.iter().any(|p| p.uid() == pod.uid()) || held.contains(pod.uid()) {
                continue;
            }
            if self.is_noted(pod) || self.note(pod, all) {
                self.untrack.push(pod);
            }
        }
        if self.indexed {
            self.status.succeeded = Some(self.succeeded_indexes.len()).filter(|n| *n > 0);
            self.status.completed_indexes =
                Some(self.succeeded_indexes.to_string()).filter(|text| !text.is_empty());
        }
        if self.indexed && self.per_index().is_some() {
            self.status.failed_indexes = Some(self.failed_indexes.to_string());
        }
    }

    /// Returns whether the status lists the pod already.
    fn is_noted(&self, pod: &Pod) -> bool {
        let uncounted = self.status.uncounted_terminated_pods.as_ref();
        let lists = uncounted.into_iter().flat_map(|u| [&u.succeeded, &u.failed]);
        lists.flatten().flatten().any(|uid| uid == pod.uid())
    }

    /// Returns the completion index of a pod, if the Job still has that index.
    fn valid_index(&self, pod: &Pod) -> Option<i32> {
        index(pod).filter(|n| self.completions.is_none_or(|c| *n < c))
    }

    /// Decides what a failed pod means for its index and for the Job.
    fn judge(&mut self, pod: &Pod) {
        if !self.has_failed(pod) || self.is_noted(pod) {
            return;
        }
        let failure = judge(self.job, pod);
        if let Failure::FailsJob(message) = &failure {
            self.fatal.get_or_insert_with(|| message.clone());
        }
        if let (Some(n), Some(limit)) = (self.valid_index(pod).filter(|_| self.indexed), self.per_index()) {
            let (failures, _) = index_failures(pod);
            let spent = failure != Failure::Ignored && failures >= limit;
            if (spent || failure == Failure::FailsIndex) && !self.succeeded_indexes.contains(n) {
                self.failed_indexes = self.failed_indexes.with([n]);
            }
        }
    }

    /// Returns the last failed pods of indexes that will be retried. They are kept until their replacements exist,
    /// which record how often the index has failed.
    fn held(&mut self, tracked: impl Iterator<Item = &'p Pod>) -> BTreeSet<String> {
        self.held_failures = 0;
        if !self.indexed || self.per_index().is_none() {
            return BTreeSet::new();
        }
        let busy: BTreeSet<i32> = self.active.iter().filter_map(|p| index(p)).collect();
        let mut last: BTreeMap<i32, &Pod> = BTreeMap::new();
        for pod in tracked.filter(|pod| self.has_failed(pod) && !self.is_noted(pod)) {
            let Some(n) = self.valid_index(pod) else { continue };
            if busy.contains(&n) || self.succeeded_indexes.contains(n) || self.failed_indexes.contains(n) {
                continue;
            }
            let order = |pod: &Pod| {
                let (failures, ignored) = index_failures(pod);
                (failures + ignored, finished_at(pod))
            };
            let known = last.entry(n).or_insert(pod);
            if order(pod) >= order(known) {
                *known = pod;
            }
        }
        let counted = last.values().filter(|pod| judge(self.job, pod) != Failure::Ignored).count();
        self.held_failures = counted as i32;
        last.into_values().map(|pod| pod.uid().to_owned()).collect()
    }

    /// Records one ended pod; returns whether it may be released.
    fn note(&mut self, pod: &'p Pod, all: bool) -> bool {
        let valid = self.valid_index(pod);
        let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
        let count = |list: &Option<Vec<String>>| list.as_ref().map_or(0, Vec::len);
        if count(&uncounted.succeeded) + count(&uncounted.failed) >= MAX_UNCOUNTED {
            return false;
        }
        if phase(pod) == "Succeeded" {
            match (self.indexed, valid) {
                (false, _) => uncounted.succeeded.get_or_insert_default().push(pod.uid().to_owned()),
                (true, Some(n)) => self.succeeded_indexes = self.succeeded_indexes.with([n]),
                (true, None) => {}
            }
            return true;
        }
        let deleted = pod.metadata.deletion_timestamp.is_some();
        if !self.has_failed(pod) && (!all || !deleted) {
            return false;
        }
        if all && phase(pod) != "Failed" && holds(&self.status, SUCCESS_CRITERIA_MET) {
            return true;
        }
        if (!self.indexed || valid.is_some()) && judge(self.job, pod) != Failure::Ignored {
            let uncounted = self.status.uncounted_terminated_pods.get_or_insert_default();
            uncounted.failed.get_or_insert_default().push(pod.uid().to_owned());
        }
        true
    }

    fn uncounted(&self, of: fn(&UncountedTerminatedPods) -> &Option<Vec<String>>) -> i32 {
        self.status
            .uncounted_terminated_pods
            .as_ref()
            .map_or(0, |u| of(u).as_ref().map_or(0, Vec::len) as i32)
    }

    fn succeeded(&self) -> i32 {
        if self.indexed {
            return self.succeeded_indexes.len();
        }
        self.status.succeeded.unwrap_or(0) + self.uncounted(|u| &u.succeeded)
    }

    fn failed(&self) -> i32 {
        self.status.failed.unwrap_or(0) + self.uncounted(|u| &u.failed) + self.held_failures
    }

    /// Decides whether the Job ends now: the interim condition type, its reason and message.
    fn verdict(&mut self) -> Option<(&'static str, String, String)> {
        let spec = spec(self.job)?.clone();
        let fail =
            |reason: &str, message: &str| Some((FAILURE_TARGET, reason.to_owned(), message.to_owned()));
        if let Some(message) = &self.fatal {
            return fail("PodFailurePolicy", message);
        }
        let limit = spec.backoff_limit.unwrap_or(6);
        if self.failed() > limit || self.restarts_exceed(limit) {
            return fail("BackoffLimitExceeded", "Job has reached the specified backoff limit");
        }
        if self.past_deadline(spec.active_deadline_seconds) {
            return fail("DeadlineExceeded", "Job was active longer than specified deadline");
        }
        if self.indexed && self.per_index().is_some() {
            if spec.max_failed_indexes.is_some_and(|max| self.failed_indexes.len() > max) {
                let text = "Job has exceeded the specified maximal number of failed indexes";
                return fail("MaxFailedIndexesExceeded", text);
            }
            let over = self.failed_indexes.len() + self.succeeded_indexes.len();
            if !self.failed_indexes.is_empty() && Some(over) >= self.completions {
                return fail("FailedIndexes", "Job has failed indexes");
            }
        }
        if let Some(message) = success(self.job, &self.succeeded_indexes) {
            return Some((SUCCESS_CRITERIA_MET, "SuccessPolicy".to_owned(), message));
        }
        let done = match self.completions {
            // A work queue is complete once one pod has succeeded and the others have ended.
            None => self.succeeded() > 0 && self.active.is_empty(),
            Some(completions) => self.succeeded() >= completions,
        };
        let text = "Reached expected number of succeeded pods";
        done.then(|| (SUCCESS_CRITERIA_MET, "CompletionsReached".to_owned(), text.to_owned()))
    }

    /// Returns whether container restarts, which count as failures with restartPolicy OnFailure, exceed the limit.
    fn restarts_exceed(&self, limit: i32) -> bool {
        let template = spec(self.job).and_then(|s| s.template.spec.as_ref());
        if template.and_then(|t| t.restart_policy.as_deref()) != Some("OnFailure") {
            return false;
        }
        let running = self.pods.iter().filter(|p| matches!(phase(p), "Running" | "Pending"));
        let restarts = running.map(|pod| {
            let status = pod.status.clone().unwrap_or_default();
            let all = status.init_container_statuses.into_iter().chain(status.container_statuses).flatten();
            all.map(|c| c.restart_count).sum::<i32>()
        });
        let restarts: i32 = restarts.sum();
        if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    fn past_deadline(&self, seconds: Option<i64>) -> bool {
        self.deadline_in(seconds).is_some_and(|left| left.is_zero())
    }

    fn deadline_in(&self, seconds: Option<i64>) -> Option<Duration> {
        let (start, allowed) = (self.status.start_time.as_ref()?, seconds?);
        if self.suspended() {
            return None;
        }
        let passed: Duration = self.now.duration_since(start.0).try_into().unwrap_or_default();
        Some(Duration::from_secs(u64::try_from(allowed).unwrap_or(0)).saturating_sub(passed))
    }

    /// Creates missing pods and deletes superfluous ones.
    fn manage(&mut self, plan: &mut Plan<'p>) {
        let deadline = self.deadline_in(spec(self.job).and_then(|s| s.active_deadline_seconds));
        plan.wake = deadline;
        if self.suspended() {
            plan.delete = self.active.clone();
            self.release_uncounted(&plan.delete);
            return;
        }
        let busy = self.active.len() as i32;
        let wanted = match self.completions {
            None if self.succeeded() > 0 => busy,
            None => self.parallelism,
            Some(completions) => {
                (completions - self.succeeded() - self.failed_indexes.len()).min(self.parallelism)
            }
        }
        .max(0);
        let superfluous = self.superfluous(usize::try_from(busy - wanted).unwrap_or(0));
        if !superfluous.is_empty() {
            self.release_uncounted(&superfluous);
            plan.delete = superfluous;
            return;
        }
        // A terminating pod keeps its slot if only failed pods are replaced.
        let held = if self.replaces_failed_only { self.terminating.len() as i32 } else { 0 };
        let missing = (wanted - busy - held).clamp(0, BURST as i32) as usize;
        if missing == 0 {
            return;
        }
        if (!self.indexed || self.per_index().is_none())
            && let Some(wait) = self.back_off()
        {
            plan.wake = Some(plan.wake.map_or(wait, |w| w.min(wait)));
            return;
        }
        plan.create =
            if self.indexed { self.pending_indexes(missing, plan) } else { vec![Slot::Any; missing] };
    }

    /// Returns at least `at_least` active pods to delete. Of an indexed Job, these include pods without a valid index
    /// and all but one pod of each index.
    fn superfluous(&self, at_least: usize) -> Vec<&'p Pod> {
        let mut order = self.active.clone();
        active_order(&mut order);
        let (mut go, mut stay) = (Vec::new(), Vec::new());
        let mut taken = BTreeSet::new();
        // The last pod in this order is the one to keep longest.
        for pod in order.into_iter().rev() {
            let keeps = !self.indexed || self.valid_index(pod).is_some_and(|n| taken.insert(n));
            if keeps { stay.push(pod) } else { go.push(pod) }
        }
        let more = at_least.saturating_sub(go.len());
        go.extend(stay.into_iter().rev().take(more));
        go
    }

    /// Returns how long the next pod must wait after failures in a row.
    fn back_off(&self) -> Option<Duration> {
        let mut ended: Vec<(Timestamp, bool)> =
            self.ended().filter_map(|p| Some((finished_at(p)?, phase(p) == "Succeeded"))).collect();
        ended.sort_unstable();
        let failures = ended.iter().rev().take_while(|(_, succeeded)| !succeeded).count();
        let last = ended.last().filter(|(_, succeeded)| !succeeded)?.0;
        self.wait_after(failures, last)
    }

    fn wait_after(&self, failures: usize, last: Timestamp) -> Option<Duration> {
        let doubled = u32::try_from(failures.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        let delay = (BACK_OFF_FIRST * 2_u32.pow(doubled)).min(BACK_OFF_LONGEST);
        let passed: Duration = self.now.duration_since(last).try_into().unwrap_or_default();
        Some(delay.saturating_sub(passed)).filter(|left| !left.is_zero())
    }

    fn ended(&self) -> impl Iterator<Item = &'p Pod> {
        // Pods that were released uncounted have neither failed nor succeeded.
        let counts = |p: &&Pod| has_finalizer(p) || p.metadata.deletion_timestamp.is_none();
        let ended = |p: &&Pod| phase(p) == "Succeeded" || self.has_failed(p);
        self.pods.iter().map(|p| &**p).filter(counts).filter(ended)
    }

    /// Returns the lowest indexes that no pod works on.
    fn pending_indexes(&self, missing: usize, plan: &mut Plan<'_>) -> Vec<Slot> {
        let ending: &[&Pod] = if self.replaces_failed_only { &self.terminating } else { &[] };
        let busy: BTreeSet<i32> = self.active.iter().chain(ending).filter_map(|p| index(p)).collect();
        // The newest failed pod of an index records how often the index has failed.
        let mut history: BTreeMap<i32, &Pod> = BTreeMap::new();
        for pod in self.ended().filter(|p| phase(p) != "Succeeded") {
            let Some(n) = index(pod) else { continue };
            let place = history.entry(n).or_insert(pod);
            if index_failures(pod) > index_failures(place) {
                *place = pod;
            }
        }
        let mut slots = Vec::new();
        for n in 0..self.completions.unwrap_or(0) {
            if slots.len() == missing {
                break;
            }
            if busy.contains(&n) || self.succeeded_indexes.contains(n) || self.failed_indexes.contains(n) {
                continue;
            }
            let (mut failures, mut ignored) = (0, 0);
            if let (Some(pod), Some(_)) = (history.get(&n), self.per_index()) {
                (failures, ignored) = index_failures(pod);
                if judge(self.job, pod) == Failure::Ignored {
                    ignored += 1
                } else {
                    failures += 1
                }
                let last = finished_at(pod).unwrap_or(self.now);
                if let Some(wait) = self.wait_after((failures + ignored) as usize, last) {
                    plan.wake = Some(plan.wake.map_or(wait, |w| w.min(wait)));
                    continue;
                }
            }
            slots.push(Slot::Index { index: n, failures, ignored });
        }
        slots
    }

    /// Sets Complete or Failed once all pods have ended and are counted.
    fn finish(&mut self, plan: &mut Plan<'_>) {
        let all_ended = self.active.is_empty() && self.terminating.is_empty();
        let counted = self.uncounted(|u| &u.succeeded) + self.uncounted(|u| &u.failed) == 0;
        if !all_ended || !counted || !self.untrack.is_empty() {
            return;
        }
        let target = |type_: &str| {
            let mut all = self.status.conditions.iter().flatten();
            all.find(|c| c.type_ == type_ && c.status == "True").cloned()
        };
        if let Some(failure) = target(FAILURE_TARGET) {
            let (reason, message) = (failure.reason.unwrap_or_default(), failure.message.unwrap_or_default());
            self.set_condition(FAILED, "True", &reason, &message);
            plan.failure = Some((reason, message));
        } else if let Some(success) = target(SUCCESS_CRITERIA_MET) {
            let (reason, message) = (success.reason.unwrap_or_default(), success.message.unwrap_or_default());
            self.set_condition(COMPLETE, "True", &reason, &message);
            self.status.completion_time = Some(Time(self.now));
            if self.completions.is_some_and(|completions| self.succeeded() > completions) {
                let text = "Too many succeeded pods running after completion count reached";
                plan.failure = Some(("TooManySucceededPods".to_owned(), text.to_owned()));
            }
            plan.events.push(("Completed", "Job completed".to_owned()));
        }
    }

    fn set_condition(&mut self, type_: &str, status: &str, reason: &str, message: &str) {
        let conditions = self.status.conditions.get_or_insert_default();
        let condition = JobCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(Time(self.now)),
            last_transition_time: Some(Time(self.now)),
        };
        match conditions.iter_mut().find(|c| c.type_ == type_) {
            Some(known) if known.status == status => {}
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
    }
}

fn add(count: &mut Option<i32>, more: i32) {
    if more > 0 {
        *count = Some(count.unwrap_or(0) + more);
    }
}
