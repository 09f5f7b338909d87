//! What a ReplicaSet or ReplicationController must do, and its status: pure functions of it and its pods.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Replicas;
use crate::support::pod_state::{deletion_order, is_active, is_available, is_ready, is_terminating};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The pods to create or delete.
#[derive(Debug, PartialEq)]
pub enum Plan<'p> {
    Enough,
    Create(usize),
    /// Delete these pods, in deletion order.
    Delete(Vec<&'p Pod>),
}

/// The status of both kinds. `terminating` is `None` for the kind that has no such field.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    pub replicas: i32,
    pub fully_labeled: i32,
    pub ready: i32,
    pub available: i32,
    pub terminating: Option<i32>,
    pub observed_generation: Option<i64>,
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    pub type_: String,
    pub status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub last_transition_time: Option<Time>,
}

/// Compares the number of active pods with the number wanted.
pub fn plan<'p>(
    wanted: i32,
    pods: &'p [Arc<Pod>],
    now: Timestamp,
    related_on_node: impl Fn(&str) -> usize,
) -> Plan<'p> {
    let wanted = usize::try_from(wanted).unwrap_or(0);
    let mut active: Vec<&Pod> = pods.iter().map(|p| &**p).filter(|p| is_active(p)).collect();
    match active.len().cmp(&wanted) {
        std::cmp::Ordering::Equal => Plan::Enough,
        std::cmp::Ordering::Less => Plan::Create(wanted - active.len()),
        std::cmp::Ordering::Greater => {
            let surplus = active.len() - wanted;
            deletion_order(&mut active, now, related_on_node);
            active.truncate(surplus);
            Plan::Delete(active)
        }
    }
}

/// Computes the status from the pods. `error` is the failure of creating or deleting pods.
pub fn status<K: Replicas>(set: &K, pods: &[Arc<Pod>], error: Option<&str>, now: Timestamp) -> Status {
    let template_labels =
        set.template().and_then(|t| t.metadata.as_ref()?.labels.clone()).unwrap_or_default();
    let active: Vec<&Pod> = pods.iter().map(|p| &**p).filter(|p| is_active(p)).collect();
    let count = |test: &dyn Fn(&Pod) -> bool| active.iter().filter(|p| test(p)).count() as i32;
    let labelled = |pod: &Pod| {
        let labels = pod.metadata.labels.as_ref();
        template_labels.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v))
    };
    let failure = error.map(|message| match (active.len() as i32) < set.wanted() {
        true => ("FailedCreate", message.to_owned()),
        false => ("FailedDelete", format!("unable to delete pods: {message}")),
    });
    let reports_terminating = K::RESOURCE.group == "apps";
    Status {
        replicas: active.len() as i32,
        fully_labeled: count(&labelled),
        ready: count(&|p| is_ready(p)),
        available: count(&|p| is_available(p, set.min_ready_seconds(), now)),
        terminating: reports_terminating.then(|| pods.iter().filter(|p| is_terminating(p)).count() as i32),
        observed_generation: set.meta().generation,
        conditions: conditions(set.status().conditions, failure, now),
    }
}

fn conditions(old: Vec<Condition>, failure: Option<(&str, String)>, now: Timestamp) -> Vec<Condition> {
    let (known, mut conditions): (Vec<_>, Vec<_>) = old.into_iter().partition(|c| c.type_ == REPLICA_FAILURE);
    if let Some((reason, message)) = failure {
        // The first failure stays in the condition until a reconciliation succeeds.
        conditions.push(known.into_iter().next().unwrap_or_else(|| Condition {
            type_: REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        }));
    }
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};
    use k8s_openapi::api::core::v1::{PodStatus, ReplicationController};

    fn set(replicas: i32) -> ReplicaSet {
        let spec = ReplicaSetSpec { replicas: Some(replicas), ..ReplicaSetSpec::default() };
        ReplicaSet { spec, ..ReplicaSet::default() }
    }

    fn pod(phase: &str, deleting: bool) -> Arc<Pod> {
        let status = PodStatus { phase: Some(phase.into()), ..PodStatus::default() };
        let mut pod = Pod { status: Some(status), ..Pod::default() };
        pod.metadata.deletion_timestamp = deleting.then_some(Time(Timestamp::UNIX_EPOCH));
        Arc::new(pod)
    }

    #[test]
    fn only_active_pods_count() {
        let pods = [pod("Running", false), pod("Running", true), pod("Failed", false), pod("Pending", false)];
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(plan(2, &pods, now, |_| 0), Plan::Enough);
        assert_eq!(plan(5, &pods, now, |_| 0), Plan::Create(3));
        let Plan::Delete(gone) = plan(1, &pods, now, |_| 0) else { panic!("one pod too many") };
        assert_eq!(gone, [&*pods[3]], "the pending pod is deleted first");
        let seen = status(&set(2), &pods, None, now);
        assert_eq!((seen.replicas, seen.terminating, seen.ready), (2, Some(1), 0));
        assert_eq!(status(&ReplicationController::default(), &pods, None, now).terminating, None);
    }

    #[test]
    fn a_failure_shows_as_a_condition_and_goes_with_it() {
        let set = set(3);
        let failed = status(&set, &[], Some("quota"), Timestamp::UNIX_EPOCH);
        let condition = &failed.conditions[0];
        assert_eq!(
            (condition.type_.as_str(), condition.reason.as_deref()),
            (REPLICA_FAILURE, Some("FailedCreate"))
        );
        let set = set.with_status(failed.clone());
        assert_eq!(set.status(), failed, "the status reads back as written");
        assert_eq!(status(&set, &[], None, Timestamp::UNIX_EPOCH).conditions, []);
    }
}
