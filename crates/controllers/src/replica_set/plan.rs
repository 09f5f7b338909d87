//! What a ReplicaSet has to do, and what its status says: pure functions of the set and its pods.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pod_state::{deletion_order, is_active, is_available, is_ready, is_terminating};

#[derive(Debug, PartialEq)]
pub enum Plan<'p> {
    Enough,
    Create(usize),
    /// These, the most expendable first.
    Delete(Vec<&'p Pod>),
}

/// Compares the active pods with the spec.
pub fn plan<'p>(
    set: &ReplicaSet,
    pods: &'p [Arc<Pod>],
    now: Timestamp,
    related_on_node: impl Fn(&str) -> usize,
) -> Plan<'p> {
    let wanted = set.spec.replicas.unwrap_or(1);
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

/// The status that these pods give. `error` is what went wrong while creating or deleting.
pub fn status(set: &ReplicaSet, pods: &[Arc<Pod>], error: Option<&str>, now: Timestamp) -> ReplicaSetStatus {
    let spec = set.spec.clone();
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let template_labels = spec.template.and_then(|t| t.metadata).and_then(|m| m.labels).unwrap_or_default();
    let active: Vec<&Pod> = pods.iter().map(|p| &**p).filter(|p| is_active(p)).collect();
    let count = |test: &dyn Fn(&Pod) -> bool| active.iter().filter(|p| test(p)).count() as i32;
    let labelled = |pod: &Pod| {
        let labels = pod.metadata.labels.as_ref();
        template_labels.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v))
    };
    let wanted = spec.replicas.unwrap_or(1);
    let failure = error.map(|message| {
        let reason = if (active.len() as i32) < wanted { "FailedCreate" } else { "FailedDelete" };
        (reason, message)
    });
    ReplicaSetStatus {
        replicas: active.len() as i32,
        fully_labeled_replicas: Some(count(&labelled)).filter(|n| *n > 0),
        ready_replicas: Some(count(&|p| is_ready(p))).filter(|n| *n > 0),
        available_replicas: Some(count(&|p| is_available(p, min_ready, now))).filter(|n| *n > 0),
        terminating_replicas: Some(pods.iter().filter(|p| is_terminating(p)).count() as i32),
        observed_generation: set.metadata.generation,
        conditions: conditions(set, failure, now),
    }
}

fn conditions(
    set: &ReplicaSet,
    failure: Option<(&str, &str)>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let old = set.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut conditions: Vec<_> =
        old.iter().filter(|c| c.type_.as_deref() != Some("ReplicaFailure")).cloned().collect();
    if let Some((reason, message)) = failure {
        let same = old
            .iter()
            .find(|c| c.type_.as_deref() == Some("ReplicaFailure") && c.reason.as_deref() == Some(reason));
        conditions.push(same.cloned().unwrap_or_else(|| ReplicaSetCondition {
            type_: Some("ReplicaFailure".to_owned()),
            status: Some("True".to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(Time(now)),
        }));
    }
    (!conditions.is_empty()).then_some(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSetSpec;
    use k8s_openapi::api::core::v1::PodStatus;

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
        assert_eq!(plan(&set(2), &pods, now, |_| 0), Plan::Enough);
        assert_eq!(plan(&set(5), &pods, now, |_| 0), Plan::Create(3));
        let Plan::Delete(gone) = plan(&set(1), &pods, now, |_| 0) else { panic!("one too many") };
        assert_eq!(gone, [&*pods[3]], "the pending one is the more expendable");
        let status = status(&set(2), &pods, None, now);
        assert_eq!((status.replicas, status.terminating_replicas, status.ready_replicas), (2, Some(1), None));
    }

    #[test]
    fn a_failure_shows_as_a_condition_and_goes_with_it() {
        let mut set = set(3);
        let failed = status(&set, &[], Some("quota"), Timestamp::UNIX_EPOCH);
        let condition = &failed.conditions.as_ref().unwrap()[0];
        assert_eq!(
            (condition.type_.as_deref(), condition.reason.as_deref()),
            (Some("ReplicaFailure"), Some("FailedCreate"))
        );
        set.status = Some(failed);
        assert_eq!(status(&set, &[], None, Timestamp::UNIX_EPOCH).conditions, None);
    }
}
