//! A Deployment's status: counts from its sets, and the conditions Available, Progressing, ReplicaFailure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::kind::Kind;

use super::sizes::{limits, replicas, wanted};

pub const PROGRESSING: &str = "Progressing";
pub const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";

pub fn find<'s>(status: &'s DeploymentStatus, type_: &str) -> Option<&'s DeploymentCondition> {
    status.conditions.iter().flatten().find(|c| c.type_.as_deref() == Some(type_))
}

/// Sets a condition; one that is the same already is left alone, so that its times are kept.
pub fn set(
    status: &mut DeploymentStatus,
    type_: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let old = find(status, type_).cloned();
    if old.as_ref().is_some_and(|c| c.status.as_deref() == Some(value) && c.reason.as_deref() == Some(reason))
    {
        return;
    }
    let unchanged = old.filter(|c| c.status.as_deref() == Some(value)).and_then(|c| c.last_transition_time);
    remove(status, type_);
    status.conditions.get_or_insert_default().push(DeploymentCondition {
        type_: Some(type_.to_owned()),
        status: Some(value.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(unchanged.unwrap_or(Time(now))),
    });
}

pub fn remove(status: &mut DeploymentStatus, type_: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|c| c.type_.as_deref() != Some(type_));
    }
    status.conditions = status.conditions.take().filter(|c| !c.is_empty());
}

/// Returns the status with the counts and the Available condition.
fn counts(
    deployment: &Deployment,
    sets: &[ReplicaSet],
    newest: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let sum = |f: &dyn Fn(&ReplicaSet) -> i32| sets.iter().map(f).sum::<i32>();
    let of = |f: fn(&k8s_openapi::api::apps::v1::ReplicaSetStatus) -> Option<i32>| {
        sum(&|s| s.status.as_ref().and_then(f).unwrap_or(0))
    };
    let old = deployment.status.clone().unwrap_or_default();
    let available = of(|s| s.available_replicas);
    let nonzero = |n: i32| Some(n).filter(|n| *n > 0);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: nonzero(of(|s| Some(s.replicas))),
        updated_replicas: nonzero(newest.and_then(|s| s.status.as_ref()).map_or(0, |s| s.replicas)),
        ready_replicas: nonzero(of(|s| s.ready_replicas)),
        available_replicas: nonzero(available),
        unavailable_replicas: nonzero(sum(&replicas) - available),
        terminating_replicas: Some(of(|s| s.terminating_replicas)),
        collision_count: old.collision_count,
        conditions: old.conditions,
    };
    if available >= wanted(deployment) - limits(deployment).1 {
        let message = "Deployment has minimum availability.";
        set(&mut status, "Available", "True", "MinimumReplicasAvailable", message, now);
    } else {
        let message = "Deployment does not have minimum availability.";
        set(&mut status, "Available", "False", "MinimumReplicasUnavailable", message, now);
    }
    status
}

/// Returns whether every pod belongs to the newest set and is available.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = wanted(deployment);
    let is = |n: Option<i32>| n.unwrap_or(0) == wanted;
    is(status.updated_replicas)
        && is(status.replicas)
        && is(status.available_replicas)
        && status.observed_generation >= deployment.metadata.generation
}

fn has_moved(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let n = |v: Option<i32>| v.unwrap_or(0);
    let outdated = |s: &DeploymentStatus| n(s.replicas) - n(s.updated_replicas);
    n(new.updated_replicas) > n(old.updated_replicas)
        || outdated(new) < outdated(old)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas)
}

/// Returns progressDeadlineSeconds; `None` if there is no deadline.
pub fn deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment.spec.progress_deadline_seconds?;
    (seconds != i32::MAX).then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Returns how long until the rollout counts as stuck; zero if it does already, `None` if no rollout is in progress.
pub fn time_to_deadline(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let condition = find(status, PROGRESSING)?;
    let deadline = deadline(deployment)?;
    if matches!(condition.reason.as_deref(), Some(NEW_SET_AVAILABLE | TIMED_OUT))
        || is_complete(deployment, status)
    {
        return None;
    }
    let since: Duration =
        now.duration_since(condition.last_update_time.as_ref()?.0).try_into().unwrap_or_default();
    Some(deadline.saturating_sub(since))
}

/// Returns the whole next status. `rolling_out` is false if only the counts are to be updated (paused, scaled).
pub fn next(
    deployment: &Deployment,
    sets: &[ReplicaSet],
    newest: Option<&ReplicaSet>,
    rolling_out: bool,
    now: Timestamp,
) -> DeploymentStatus {
    let old = deployment.status.clone().unwrap_or_default();
    let mut status = counts(deployment, sets, newest, now);
    if !rolling_out {
        return status;
    }
    if deadline(deployment).is_none() {
        remove(&mut status, PROGRESSING);
    }
    let finished = status.replicas == status.updated_replicas
        && find(&old, PROGRESSING).is_some_and(|c| c.reason.as_deref() == Some(NEW_SET_AVAILABLE));
    if deadline(deployment).is_some() && !finished {
        progress(deployment, &old, &mut status, newest, now);
    }
    let failure = newest.into_iter().chain(sets).find_map(failure_of);
    match failure {
        Some((reason, message)) => set(&mut status, "ReplicaFailure", "True", &reason, &message, now),
        None => remove(&mut status, "ReplicaFailure"),
    }
    status
}

fn progress(
    deployment: &Deployment,
    old: &DeploymentStatus,
    status: &mut DeploymentStatus,
    newest: Option<&ReplicaSet>,
    now: Timestamp,
) {
    let subject = match newest {
        Some(set) => format!("ReplicaSet \"{}\"", set.name()),
        None => format!("Deployment \"{}\"", deployment.name()),
    };
    if is_complete(deployment, status) {
        let message = format!("{subject} has successfully progressed.");
        set(status, PROGRESSING, "True", NEW_SET_AVAILABLE, &message, now);
    } else if has_moved(old, status) {
        // A new update time restarts the deadline; the transition time is kept while the rollout progresses.
        let since = find(status, PROGRESSING)
            .filter(|c| c.status.as_deref() == Some("True"))
            .and_then(|c| c.last_transition_time.clone());
        remove(status, PROGRESSING);
        set(status, PROGRESSING, "True", "ReplicaSetUpdated", &format!("{subject} is progressing."), now);
        let conditions = status.conditions.iter_mut().flatten();
        if let (Some(condition), Some(since)) =
            (conditions.into_iter().find(|c| c.type_.as_deref() == Some(PROGRESSING)), since)
        {
            condition.last_transition_time = Some(since);
        }
    } else if time_to_deadline(deployment, status, now) == Some(Duration::ZERO) {
        let message = format!("{subject} has timed out progressing.");
        set(status, PROGRESSING, "False", TIMED_OUT, &message, now);
    }
}

fn failure_of(set: &ReplicaSet) -> Option<(String, String)> {
    let conditions = set.status.as_ref()?.conditions.as_ref()?;
    let failure = conditions
        .iter()
        .find(|c| c.type_.as_deref() == Some("ReplicaFailure") && c.status.as_deref() == Some("True"))?;
    Some((failure.reason.clone().unwrap_or_default(), failure.message.clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::testing::{deployment, set as rs};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn with_deadline(mut d: Deployment, seconds: i32) -> Deployment {
        d.spec.progress_deadline_seconds = Some(seconds);
        d
    }

    fn reason(status: &DeploymentStatus, type_: &str) -> String {
        find(status, type_).and_then(|c| c.reason.clone()).unwrap_or_default()
    }

    #[test]
    fn a_rollout_goes_from_progressing_to_available() {
        let mut d = with_deadline(deployment(2).rolling(1, 0).build(), 600);
        let half = [rs("new", 2).available(1).build()];
        d.status = Some(next(&d, &half, half.first(), true, at(10)));
        let status = d.status.as_ref().unwrap();
        assert_eq!(reason(status, PROGRESSING), "ReplicaSetUpdated");
        assert_eq!(reason(status, "Available"), "MinimumReplicasUnavailable");
        assert_eq!((status.available_replicas, status.unavailable_replicas), (Some(1), Some(1)));
        let whole = [rs("new", 2).available(2).build()];
        let done = next(&d, &whole, whole.first(), true, at(20));
        assert_eq!(reason(&done, PROGRESSING), NEW_SET_AVAILABLE);
        assert_eq!(
            find(&done, PROGRESSING).unwrap().message.as_deref(),
            Some("ReplicaSet \"new\" has successfully progressed.")
        );
        assert_eq!(find(&done, PROGRESSING).unwrap().last_transition_time, Some(Time(at(10))));
    }

    #[test]
    fn a_rollout_without_progress_times_out() {
        let mut d = with_deadline(deployment(2).build(), 60);
        let stuck = [rs("new", 2).available(0).build()];
        d.status = Some(next(&d, &stuck, stuck.first(), true, at(0)));
        assert_eq!(time_to_deadline(&d, d.status.as_ref().unwrap(), at(20)), Some(Duration::from_secs(40)));
        let late = next(&d, &stuck, stuck.first(), true, at(61));
        assert_eq!(reason(&late, PROGRESSING), TIMED_OUT);
        assert_eq!(time_to_deadline(&d, &late, at(70)), None);
    }
}
