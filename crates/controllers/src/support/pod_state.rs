//! Predicates on pods (active, ready, available) and the orders in which pods are deleted.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

/// Returns whether the pod has not ended and is not being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Returns whether the pod's phase is Succeeded or Failed.
pub fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Returns whether the pod is being deleted but has not ended.
pub fn is_terminating(pod: &Pod) -> bool {
    !has_ended(pod) && pod.metadata.deletion_timestamp.is_some()
}

pub fn condition<'p>(pod: &'p Pod, type_: &str) -> Option<&'p PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == type_)
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready").filter(|c| c.status == "True")?.last_transition_time.as_ref().map(|t| t.0)
}

/// Returns whether the pod has been ready for at least `min_ready_seconds`.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_in(pod, min_ready_seconds, now) == Some(Duration::ZERO)
}

/// Returns how long until a ready pod counts as available; `None` if it is not ready.
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    let wanted = Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0));
    if wanted.is_zero() {
        return Some(Duration::ZERO);
    }
    let ready_for: Duration = now.duration_since(ready_since(pod)?).try_into().unwrap_or_default();
    Some(wanted.saturating_sub(ready_for))
}

/// Sorts pods into deletion order: first unassigned, then pending, not ready, lower deletion cost (annotation), more
/// related pods on the same node, ready for a shorter time (in powers of two), restarted more often, younger.
///
/// `related_on_node` returns how many pods of the same owner's family run on a node.
pub fn deletion_order(pods: &mut [&Pod], now: Timestamp, related_on_node: impl Fn(&str) -> usize) {
    let node = |p: &Pod| p.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
    pods.sort_by_cached_key(|pod| {
        let phase_rank = match phase(pod) {
            "Pending" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        let ready_rank = ready_since(pod).map(|since| Reverse(since_rank(since, now)));
        let created = pod.metadata.creation_timestamp.as_ref().map(|t| Reverse(since_rank(t.0, now)));
        let node = node(pod);
        let crowd = if node.is_empty() { 0 } else { related_on_node(&node) };
        (
            !node.is_empty(),
            phase_rank,
            is_ready(pod),
            deletion_cost(pod),
            Reverse(crowd),
            ready_rank.map(|Reverse(rank)| rank),
            Reverse(restarts(pod)),
            created.map(|Reverse(rank)| rank),
            pod.metadata.uid.clone(),
        )
    });
}

/// Returns the base-2 logarithm of the age in nanoseconds, rounded down, so that small differences of age do not
/// decide. `None` if the time is not in the past.
fn since_rank(then: Timestamp, now: Timestamp) -> Option<u32> {
    u128::try_from(now.duration_since(then).as_nanos()).ok()?.checked_ilog2()
}

/// Sorts a Job's pods into deletion order: first unassigned, then pending, not ready, ready for a shorter time,
/// restarted more often, younger.
pub fn active_order(pods: &mut [&Pod]) {
    pods.sort_by_cached_key(|pod| {
        let has_node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty());
        let phase_rank = match phase(pod) {
            "Pending" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
        (
            has_node,
            phase_rank,
            is_ready(pod),
            Reverse(ready_since(pod)),
            Reverse(restarts(pod)),
            Reverse(created),
        )
    });
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get("controller.kubernetes.io/pod-deletion-cost")?.parse().ok()).unwrap_or(0)
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|c| c.restart_count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(uid: &str, node: &str, phase: &str, ready_at: Option<i64>) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        pod.spec = Some(PodSpec { node_name: Some(node.into()), ..PodSpec::default() });
        let ready = ready_at.map(|second| PodCondition {
            type_: "Ready".into(),
            status: "True".into(),
            last_transition_time: Some(Time(at(second))),
            ..PodCondition::default()
        });
        pod.status = Some(PodStatus {
            phase: Some(phase.into()),
            conditions: Some(ready.into_iter().collect()),
            ..PodStatus::default()
        });
        pod
    }

    #[test]
    fn the_least_useful_pod_goes_first() {
        let pods = [
            pod("old", "n1", "Running", Some(0)),
            pod("young", "n1", "Running", Some(990)),
            pod("unready", "n1", "Running", None),
            pod("pending", "n1", "Pending", None),
            pod("unassigned", "", "Pending", None),
        ];
        let mut order: Vec<&Pod> = pods.iter().collect();
        deletion_order(&mut order, at(1000), |_| 1);
        let names: Vec<_> = order.iter().map(|p| p.metadata.uid.as_deref().unwrap()).collect();
        assert_eq!(names, ["unassigned", "pending", "unready", "young", "old"]);
    }

    #[test]
    fn costs_decide_who_goes() {
        let mut pods = [pod("dear", "n", "Running", Some(0)), pod("cheap", "n", "Running", Some(0))];
        for (pod, cost) in pods.iter_mut().zip(["10", "-1"]) {
            let key = "controller.kubernetes.io/pod-deletion-cost".to_owned();
            pod.metadata.annotations = Some([(key, cost.to_owned())].into());
        }
        let free = pod("free", "n", "Running", Some(0));
        let mut order = vec![&pods[0], &free, &pods[1]];
        deletion_order(&mut order, at(1000), |_| 1);
        let names: Vec<_> = order.iter().map(|p| p.metadata.uid.as_deref().unwrap()).collect();
        assert_eq!(names, ["cheap", "free", "dear"]);
    }

    #[test]
    fn availability_counts_from_readiness() {
        let pod = pod("p", "n", "Running", Some(100));
        assert_eq!(available_in(&pod, 0, at(100)), Some(Duration::ZERO));
        assert_eq!(available_in(&pod, 30, at(110)), Some(Duration::from_secs(20)));
        assert!(is_available(&pod, 30, at(130)));
    }
}
