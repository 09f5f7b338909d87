//! Quality of service: a pod's class, and the `oom_score_adj` of its containers.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use crate::pod;
use crate::resources::amount;

pub const GUARANTEED: &str = "Guaranteed";
pub const BURSTABLE: &str = "Burstable";
pub const BEST_EFFORT: &str = "BestEffort";

const GUARANTEED_OOM_SCORE: i64 = -997;
const MAX_OOM_SCORE: i32 = 1000;
const BEST_EFFORT_OOM_SCORE: i64 = 1000;
/// The priority of `system-node-critical`; higher ones count as critical, too.
const NODE_CRITICAL_PRIORITY: i32 = 2_000_001_000;

/// Returns the class. `Guaranteed`: every container has limits of cpu and memory, and equal requests.
/// `BestEffort`: no container has requests or limits. Else `Burstable`. If the pod has pod-level resources, these
/// alone decide.
pub fn qos_class(pod: &Pod) -> &'static str {
    if let Some(resources) = &pod::spec(pod).resources {
        return class_of([resources].into_iter());
    }
    let containers = pod::init_containers(pod).iter().chain(&pod::spec(pod).containers);
    let none = ResourceRequirements::default();
    let all: Vec<&ResourceRequirements> = containers.map(|c| c.resources.as_ref().unwrap_or(&none)).collect();
    class_of(all.into_iter())
}

fn class_of<'a>(resources: impl Iterator<Item = &'a ResourceRequirements>) -> &'static str {
    let (mut any, mut guaranteed) = (false, true);
    for requirements in resources {
        for name in ["cpu", "memory"] {
            let request = amount(requirements.requests.as_ref(), name).filter(|n| *n > 0);
            let limit = amount(requirements.limits.as_ref(), name).filter(|n| *n > 0);
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => BEST_EFFORT,
        (true, true) => GUARANTEED,
        (true, false) => BURSTABLE,
    }
}

fn memory_request(container: &Container) -> i64 {
    amount(container.resources.as_ref().and_then(|r| r.requests.as_ref()), "memory").unwrap_or(0)
}

/// Returns the `oom_score_adj` of a container's processes. The more of the machine's memory is requested, the
/// lower it is.
///
/// `own` is the score of this process: if it could not be lowered to -999, the pods' scores must still be above
/// it.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64, own: i32) -> i32 {
    upstream_oom_score_adj(pod, container, memory_capacity).max(own.saturating_add(1)).min(MAX_OOM_SCORE)
}

/// Returns the score of this process; 0 if it cannot be read.
pub fn own_oom_score_adj() -> i32 {
    let text = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn upstream_oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i32 {
    if pod::spec(pod).priority.is_some_and(|p| p >= NODE_CRITICAL_PRIORITY) {
        return GUARANTEED_OOM_SCORE as i32;
    }
    match qos_class(pod) {
        GUARANTEED => return GUARANTEED_OOM_SCORE as i32,
        BEST_EFFORT => return BEST_EFFORT_OOM_SCORE as i32,
        _ => {}
    }
    let share = |request: i64| 1000 - 1000i64.saturating_mul(request) / memory_capacity.max(1);
    let mut score = share(memory_request(container));
    if pod::is_sidecar(container) {
        // A sidecar is not more likely to be killed than the containers that it serves.
        let least = pod::spec(pod).containers.iter().map(memory_request).min().unwrap_or(0);
        score = score.min(share(least));
    }
    score.clamp(1000 + GUARANTEED_OOM_SCORE, BEST_EFFORT_OOM_SCORE - 1) as i32
}
