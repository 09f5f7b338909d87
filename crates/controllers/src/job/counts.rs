//! The controller's metrics about Jobs, under upstream's names.

use std::time::Duration;

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use knarr_client::Result;

use super::indexes::Indexes;
use super::plan::{COMPLETE, FAILED, Plan, is_finished};
use super::pods::{is_indexed, spec};
use crate::metrics::{self, Metric};

fn mode(job: &Job) -> &'static str {
    if is_indexed(job) { "Indexed" } else { "NonIndexed" }
}

/// Returns the `action` label: what the reconciliation of a Job did.
pub fn action(plan: &Plan) -> &'static str {
    match (plan.create.is_empty(), plan.delete.is_empty()) {
        (false, _) => "pods_created",
        (true, false) => "pods_deleted",
        (true, true) => "tracking",
    }
}

/// Records a reconciliation of a Job and how long it took.
pub fn synced(job: &Job, action: &str, outcome: &Result<()>, took: Duration) {
    let labels = [mode(job), if outcome.is_ok() { "success" } else { "error" }, action];
    metrics::add(Metric::JobSyncs, &labels, 1.0);
    metrics::record(Metric::JobSyncSeconds, &labels, took.as_secs_f64());
}

/// Records the pods and Jobs that ended between two versions of the status.
pub fn status_written(before: &Job, now: &JobStatus) {
    let mode = mode(before);
    let old = before.status.clone().unwrap_or_default();
    let ended = |count: fn(&JobStatus) -> Option<i32>| {
        f64::from(count(now).unwrap_or(0).saturating_sub(count(&old).unwrap_or(0)).max(0))
    };
    metrics::add(Metric::JobPodsFinished, &[mode, "succeeded"], ended(|s| s.succeeded));
    metrics::add(Metric::JobPodsFinished, &[mode, "failed"], ended(|s| s.failed));
    if is_indexed(before) {
        let limit = spec(before).and_then(|s| s.completions).unwrap_or(i32::MAX);
        let backoff = spec(before).and_then(|s| s.backoff_limit_per_index);
        let scope = if backoff.is_some() { "perIndex" } else { "global" };
        let count = |text: &Option<String>| Indexes::parse(text.as_deref().unwrap_or(""), limit).len();
        for (result, now, old) in [
            ("succeeded", &now.completed_indexes, &old.completed_indexes),
            ("failed", &now.failed_indexes, &old.failed_indexes),
        ] {
            let more = f64::from((count(now) - count(old)).max(0));
            metrics::add(Metric::JobFinishedIndexes, &[result, scope], more);
        }
    }
    let over = now.conditions.iter().flatten().find(|c| matches!(c.type_.as_str(), COMPLETE | FAILED));
    if let Some(over) = over.filter(|c| c.status == "True" && !is_finished(before)) {
        let result = if over.type_ == COMPLETE { "succeeded" } else { "failed" };
        metrics::add(Metric::JobsFinished, &[mode, result, over.reason.as_deref().unwrap_or("")], 1.0);
    }
}
