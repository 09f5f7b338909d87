//! Validation of a Job's status: finished Jobs stay finished, and counts are consistent.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1 as api;
use knarr_apimachinery::field::{Error, ErrorList, Path};

use super::indexes;
use super::validation::is_indexed;
use crate::table::rfc3339;
use crate::validate::{self, omitted};

fn condition_is(status: &api::JobStatus, type_: &str, value: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == type_ && c.status == value)
}

fn is(status: &api::JobStatus, type_: &str) -> bool {
    condition_is(status, type_, "True")
}

fn is_finished(status: &api::JobStatus) -> bool {
    is(status, "Complete") || is(status, "Failed")
}

/// Which parts of the status changed; most rules apply only if their part did.
struct Changed {
    finished: bool,
    complete: bool,
    failed: bool,
    failure_target: bool,
    success_criteria: bool,
    completed_indexes: bool,
    failed_indexes: bool,
    active: bool,
    start_time: bool,
    completion_time: bool,
    uncounted: bool,
    ready: bool,
    terminating: bool,
}

impl Changed {
    fn between(new: &api::JobStatus, old: &api::JobStatus) -> Self {
        let condition = |type_| is(new, type_) != is(old, type_);
        let text = |s: &Option<String>| s.clone().unwrap_or_default();
        Self {
            finished: is_finished(new) != is_finished(old),
            complete: condition("Complete"),
            failed: condition("Failed"),
            failure_target: condition("FailureTarget"),
            success_criteria: condition("SuccessCriteriaMet"),
            completed_indexes: text(&new.completed_indexes) != text(&old.completed_indexes),
            failed_indexes: new.failed_indexes != old.failed_indexes,
            active: new.active.unwrap_or(0) != old.active.unwrap_or(0),
            start_time: new.start_time != old.start_time,
            completion_time: new.completion_time != old.completion_time,
            uncounted: new.uncounted_terminated_pods != old.uncounted_terminated_pods,
            ready: new.ready != old.ready,
            terminating: new.terminating != old.terminating,
        }
    }
}

/// Validates the new status; the spec in `new` is the old one.
pub fn update(new: &api::Job, old: &api::Job) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = new.spec.clone().unwrap_or_default();
    let (status, before) = (new.status.clone().unwrap_or_default(), old.status.clone().unwrap_or_default());
    let changed = Changed::between(&status, &before);
    counts(&mut errors, &status);
    uncounted(&mut errors, &status);
    conditions(&mut errors, &status, &changed);
    finished(&mut errors, &spec, &status, &changed);
    completion_indexes(&mut errors, &spec, &status, &changed);
    if changed.finished || changed.terminating {
        positive_when_finished(&mut errors, "terminating", status.terminating, &status);
    }
    if let Some(ready) = status.ready.filter(|r| *r > status.active.unwrap_or(0))
        && (changed.ready || changed.active)
    {
        let problem = "cannot set more ready pods than active";
        errors.push(Error::invalid(&field("ready"), ready, problem));
    }
    criteria(&mut errors, &spec, &status);
    transitions(&mut errors, &spec, &status, &before, &changed);
    errors
}

fn field(name: &str) -> Path {
    Path::new("status").child(name)
}

fn counts(errors: &mut ErrorList, status: &api::JobStatus) {
    for (name, count) in [
        ("active", status.active),
        ("succeeded", status.succeeded),
        ("failed", status.failed),
        ("ready", status.ready),
        ("terminating", status.terminating),
    ] {
        validate::nonnegative(errors, &field(name), i64::from(count.unwrap_or(0)));
    }
}

fn uncounted(errors: &mut ErrorList, status: &api::JobStatus) {
    let Some(pods) = &status.uncounted_terminated_pods else { return };
    let mut seen = BTreeSet::new();
    for (name, uids) in [("succeeded", &pods.succeeded), ("failed", &pods.failed)] {
        for (i, uid) in uids.iter().flatten().enumerate() {
            let path = field("uncountedTerminatedPods").child(name).index(i);
            if uid.is_empty() {
                errors.push(Error::invalid(&path, "", "must not be empty"));
            } else if !seen.insert(uid) {
                errors.push(Error::duplicate(&path, uid.as_str()));
            }
        }
    }
}

fn conditions(errors: &mut ErrorList, status: &api::JobStatus, changed: &Changed) {
    let complete = is(status, "Complete");
    let path = field("conditions");
    if (changed.complete || changed.failed) && complete && is(status, "Failed") {
        errors.push(omitted(&path, "cannot set Complete=True and Failed=true conditions"));
    }
    if (changed.complete || changed.failure_target) && complete && is(status, "FailureTarget") {
        errors.push(omitted(&path, "cannot set Complete=True and FailureTarget=true conditions"));
    }
    let path = field("completionTime");
    if changed.complete || changed.completion_time {
        match &status.completion_time {
            Some(time) if !complete => {
                let problem = "cannot set completionTime when there is no Complete=True condition";
                errors.push(Error::invalid(&path, rfc3339(time.0), problem));
            }
            None if complete => {
                errors.push(Error::required(&path, "completionTime is required for Complete jobs"));
            }
            _ => {}
        }
    }
    if (changed.start_time || changed.completion_time)
        && let (Some(start), Some(end)) = (&status.start_time, &status.completion_time)
        && end.0 < start.0
    {
        let problem = "must be equal to or after `startTime`";
        errors.push(Error::invalid(&path, rfc3339(end.0), problem));
    }
    let path = field("conditions");
    if (changed.failed || changed.failed_indexes) && is(status, "Failed") && !is(status, "FailureTarget") {
        let problem = "cannot set Failed=True condition without the FailureTarget=true condition";
        errors.push(omitted(&path, problem));
    }
    if (changed.complete || changed.success_criteria) && complete && !is(status, "SuccessCriteriaMet") {
        let problem = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
        errors.push(omitted(&path, problem));
    }
}

fn positive_when_finished(errors: &mut ErrorList, name: &str, count: Option<i32>, status: &api::JobStatus) {
    if let Some(count) = count.filter(|c| *c > 0 && is_finished(status)) {
        let problem = format!("{name}>0 is invalid for finished job");
        errors.push(Error::invalid(&field(name), count, problem));
    }
}

fn finished(errors: &mut ErrorList, spec: &api::JobSpec, status: &api::JobStatus, changed: &Changed) {
    if changed.finished || changed.active {
        positive_when_finished(errors, "active", status.active, status);
    }
    let never_ran = spec.suspend == Some(true) && spec.completions == Some(0);
    if (changed.finished || changed.start_time)
        && !never_ran
        && status.start_time.is_none()
        && is_finished(status)
    {
        errors.push(Error::required(&field("startTime"), "startTime is required for finished job"));
    }
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let (succeeded, failed) = (uncounted.succeeded.unwrap_or_default(), uncounted.failed.unwrap_or_default());
    let some = !succeeded.is_empty() || !failed.is_empty();
    if (changed.finished || changed.uncounted) && is_finished(status) && some {
        // The message shows upstream's internal Go type.
        let list = |l: &[String]| if l.is_empty() { "null".into() } else { validate::shown(&l).to_string() };
        let text = format!(r#"{{"Succeeded":{},"Failed":{}}}"#, list(&succeeded), list(&failed));
        let path = field("uncountedTerminatedPods");
        errors.push(validate::invalid_text(&path, &text, "must be empty for finished job"));
    }
}

fn completion_indexes(
    errors: &mut ErrorList,
    spec: &api::JobSpec,
    status: &api::JobStatus,
    changed: &Changed,
) {
    let completed = status.completed_indexes.as_deref().unwrap_or("");
    let failed = status.failed_indexes.as_deref();
    let (completed_path, failed_path) = (field("completedIndexes"), field("failedIndexes"));
    if let Some(completions) = spec.completions {
        if changed.completed_indexes
            && let Err(why) = indexes::count(completed, completions)
        {
            let problem = format!("error parsing completedIndexes: {why}");
            errors.push(Error::invalid(&completed_path, completed, problem));
        }
        if changed.failed_indexes
            && let Some(failed) = failed.filter(|_| spec.backoff_limit_per_index.is_some())
            && let Err(why) = indexes::count(failed, completions)
        {
            let problem = format!("error parsing failedIndexes: {why}");
            errors.push(Error::invalid(&failed_path, failed, problem));
        }
    }
    if changed.completed_indexes && !completed.is_empty() && !is_indexed(spec) {
        let problem = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.push(Error::invalid(&completed_path, completed, problem));
    }
    let Some(failed) = failed else { return };
    if changed.failed_indexes && spec.backoff_limit_per_index.is_none() {
        let problem = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errors.push(Error::invalid(&failed_path, failed, problem));
    }
    if (changed.failed_indexes || changed.completed_indexes)
        && let Some(both) = spec.completions.and_then(|c| indexes::overlap(completed, failed, c))
    {
        let problem = format!("failedIndexes and completedIndexes overlap at index: {both}");
        errors.push(Error::invalid(&failed_path, failed, problem));
    }
}

fn criteria(errors: &mut ErrorList, spec: &api::JobSpec, status: &api::JobStatus) {
    let path = field("conditions");
    let met = is(status, "SuccessCriteriaMet");
    if met && is(status, "Failed") {
        errors.push(omitted(&path, "cannot set SuccessCriteriaMet=True and Failed=true conditions"));
    }
    if met && is(status, "FailureTarget") {
        errors.push(omitted(&path, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"));
    }
    if spec.success_policy.is_some() && !met && is(status, "Complete") {
        let problem = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
        errors.push(omitted(&path, problem));
    }
}

/// Refuses changes that revert a final state or decrease a counter.
fn transitions(
    errors: &mut ErrorList,
    spec: &api::JobSpec,
    status: &api::JobStatus,
    before: &api::JobStatus,
    changed: &Changed,
) {
    let path = field("conditions");
    for type_ in ["Failed", "Complete", "FailureTarget"] {
        if is(before, type_) && !is(status, type_) {
            errors.push(omitted(&path, &format!("cannot disable the terminal {type_}=True condition")));
        }
    }
    // Elastic indexed Jobs may shrink.
    let elastic = is_indexed(spec) && spec.completions == spec.parallelism;
    for (name, new, old, may) in [
        ("failed", status.failed, before.failed, false),
        ("succeeded", status.succeeded, before.succeeded, elastic),
    ] {
        if !may && new.unwrap_or(0) < old.unwrap_or(0) {
            let problem = format!("cannot decrease the {name} counter");
            errors.push(Error::invalid(&field(name), new.unwrap_or(0), problem));
        }
    }
    if let (Some(new), Some(old)) = (&status.completion_time, &before.completion_time)
        && new != old
    {
        errors.push(Error::invalid(&field("completionTime"), rfc3339(new.0), validate::IMMUTABLE));
    }
    let resumes = is(before, "Suspended") && condition_is(status, "Suspended", "False");
    if changed.start_time && !resumes && before.start_time.is_some() && spec.suspend != Some(true) {
        let shown = validate::shown(&status.start_time.as_ref().map(|t| rfc3339(t.0)));
        let problem = "field is immutable for unsuspended job once set";
        errors.push(Error::invalid(&field("startTime"), shown, problem));
    }
    let (met, was_met) = (is(status, "SuccessCriteriaMet"), is(before, "SuccessCriteriaMet"));
    if was_met && !met {
        errors.push(omitted(&path, "cannot disable the SuccessCriteriaMet=True condition"));
    }
    if is(before, "Complete") && !was_met && met {
        let problem = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
        errors.push(omitted(&path, problem));
    }
}
