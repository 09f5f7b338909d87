//! How many disruptions a PodDisruptionBudget allows now: pure functions of the budget, its pods and their
//! controllers' scales.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::kind::Kind;

use crate::support::owners::controller_of;
use crate::support::pod_state::is_ready;

/// An evicted pod that is not being deleted after this long counts as undisturbed again.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// How many pods the budget expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    pub pods: i32,
    pub desired_healthy: i32,
}

/// The result of evaluating the budget.
pub struct Outcome {
    pub status: PodDisruptionBudgetStatus,
    /// Pods that were evicted longer ago than the timeout and are not being deleted.
    pub undeleted: Vec<Arc<Pod>>,
    pub wake: Option<Duration>,
}

/// Returns whether the scales of the pods' controllers are needed.
pub fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    let Some(spec) = &budget.spec else { return false };
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

fn scaled(value: &IntOrString, of: i32) -> i32 {
    match value {
        IntOrString::Int(n) => *n,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            i32::try_from((percent * i64::from(of) + 99).div_euclid(100)).unwrap_or(i32::MAX)
        }
    }
}

/// Computes the expected counts; `scales` are the pod counts that the controllers want, by their uids.
pub fn expected(budget: &PodDisruptionBudget, pods: &[Arc<Pod>], scales: &HashMap<String, i32>) -> Expected {
    let Some(spec) = &budget.spec else { return Expected { pods: 0, desired_healthy: 0 } };
    let uids: BTreeMap<&str, i32> = pods
        .iter()
        .filter_map(|p| controller_of(&p.metadata))
        .filter_map(|o| Some((o.uid.as_str(), *scales.get(&o.uid)?)))
        .collect();
    let wanted: i32 = uids.values().sum();
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(max), _) => {
            let desired_healthy = (wanted - scaled(max, wanted)).max(0);
            Expected { pods: wanted, desired_healthy }
        }
        (None, Some(IntOrString::Int(n))) => Expected { pods: pods.len() as i32, desired_healthy: *n },
        (None, Some(min)) => Expected { pods: wanted, desired_healthy: scaled(min, wanted) },
        // A budget without a requirement allows nothing.
        (None, None) => Expected { pods: 0, desired_healthy: 0 },
    }
}

/// Evaluates the budget against its pods.
pub fn outcome(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    expected: Expected,
    now: Timestamp,
) -> Outcome {
    let before = budget.status.clone().unwrap_or_default();
    let (mut disrupted, mut undeleted, mut wake) = (BTreeMap::new(), Vec::new(), None);
    for pod in pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
        let Some(at) = before.disrupted_pods.as_ref().and_then(|d| d.get(pod.name())) else { continue };
        let end = at.0.checked_add(DELETION_TIMEOUT).unwrap_or(Timestamp::MAX);
        if end < now {
            undeleted.push(Arc::clone(pod));
        } else {
            disrupted.insert(pod.name().to_owned(), at.clone());
            let left: Duration = end.duration_since(now).try_into().unwrap_or_default();
            wake = Some(wake.map_or(left, |w: Duration| w.min(left)));
        }
    }
    let counts = |p: &&Arc<Pod>| p.metadata.deletion_timestamp.is_none() && !disrupted.contains_key(p.name());
    let healthy = pods.iter().filter(counts).filter(|p| is_ready(p)).count() as i32;
    let allowed = if expected.pods > 0 { (healthy - expected.desired_healthy).max(0) } else { 0 };
    let mut status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(expected.desired_healthy),
        expected_pods: Some(expected.pods),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: budget.metadata.generation,
        conditions: before.conditions,
    };
    let generation = budget.metadata.generation;
    let (holds, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    set_condition(&mut status, holds, reason, "", generation, now);
    Outcome { status, undeleted, wake }
}

/// Returns the status of a budget that cannot be evaluated: no disruption is allowed.
pub fn failed(budget: &PodDisruptionBudget, why: &str, now: Timestamp) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    status.disruptions_allowed = Some(0);
    let seen = status.observed_generation;
    set_condition(&mut status, "False", "SyncFailed", why, seen, now);
    status
}

fn set_condition(
    status: &mut PodDisruptionBudgetStatus,
    holds: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter().position(|c| c.type_ == DISRUPTION_ALLOWED);
    let since = known.map(|i| &conditions[i]).filter(|c| c.status == holds);
    let condition = Condition {
        type_: DISRUPTION_ALLOWED.to_owned(),
        status: holds.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: since.map_or(Time(now), |c| c.last_transition_time.clone()),
    };
    match known {
        Some(i) => conditions[i] = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn budget(spec: Value, disrupted: Value) -> PodDisruptionBudget {
        serde_json::from_value(
            json!({"metadata": {"name": "b", "namespace": "ns", "generation": 3}, "spec": spec,
            "status": {"disruptedPods": disrupted, "currentHealthy": 0, "desiredHealthy": 0,
                "disruptionsAllowed": 0, "expectedPods": 0}}),
        )
        .unwrap()
    }

    fn pod(name: &str, ready: bool) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": true}]},
                "status": {"conditions": [{"type": "Ready", "status": status}]}}))
            .unwrap(),
        )
    }

    /// Returns expected pods, desired healthy pods, and allowed disruptions.
    fn numbers(status: &PodDisruptionBudgetStatus) -> (i32, i32, i32) {
        let of = |n: Option<i32>| n.unwrap_or(-1);
        (of(status.expected_pods), of(status.desired_healthy), of(status.disruptions_allowed))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + second).unwrap()
    }

    #[test]
    fn budgets_count_what_is_and_what_should_be() {
        let pods = [pod("a", true), pod("b", true), pod("c", false)];
        let scales = HashMap::from([("rs".to_owned(), 4)]);
        // spec; expected pods, desired healthy, allowed disruptions
        for (spec, expect) in [
            (json!({"minAvailable": 1}), (3, 1, 1)),
            (json!({"minAvailable": "50%"}), (4, 2, 0)),
            (json!({"maxUnavailable": 3}), (4, 1, 1)),
            (json!({"maxUnavailable": "100%"}), (4, 0, 2)),
            (json!({"maxUnavailable": "10%"}), (4, 3, 0)),
        ] {
            let budget = budget(spec.clone(), json!({}));
            let expected = expected(&budget, &pods, &scales);
            let status = outcome(&budget, &pods, expected, at(0)).status;
            assert_eq!(numbers(&status), expect, "{spec}");
            let reason = &status.conditions.unwrap()[0].reason;
            assert_eq!(reason, if expect.2 > 0 { "SufficientPods" } else { "InsufficientPods" });
        }
        let none = budget(json!({"minAvailable": 0}), json!({}));
        assert_eq!(
            outcome(&none, &[], expected(&none, &[], &scales), at(0)).status.disruptions_allowed,
            Some(0)
        );
    }

    #[test]
    fn evicted_pods_count_as_gone_until_they_go_or_stay_too_long() {
        let pods = [pod("a", true), pod("b", true)];
        let budget =
            budget(json!({"minAvailable": 1}), json!({"a": at(0).to_string(), "gone": at(0).to_string()}));
        let expected = expected(&budget, &pods, &HashMap::new());
        let soon = outcome(&budget, &pods, expected, at(20));
        assert_eq!((soon.status.current_healthy, soon.status.disruptions_allowed), (Some(1), Some(0)));
        assert_eq!(soon.wake, Some(Duration::from_secs(100)));
        let late = outcome(&budget, &pods, expected, at(121));
        assert_eq!((late.status.current_healthy, late.undeleted.len()), (Some(2), 1));
        assert_eq!(late.status.disrupted_pods, None);
    }
}
