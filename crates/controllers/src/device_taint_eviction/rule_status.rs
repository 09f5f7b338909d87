//! The status of a DeviceTaintRule about its evictions.

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub const EVICTION_IN_PROGRESS: &str = "EvictionInProgress";

/// The counts for the rule; for effect None they are what they would be for NoExecute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub pending_pods: usize,
    pub pending_namespaces: usize,
    pub published_devices: usize,
    pub allocated_devices: usize,
    /// The number since the controller started.
    pub evicted_pods: u64,
}

fn count(n: usize, one: &str, several: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {several}") }
}

/// Returns the rule's condition EvictionInProgress.
pub fn known(rule: &DeviceTaintRule) -> Option<&Condition> {
    let conditions = rule.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().find(|c| c.type_ == EVICTION_IN_PROGRESS)
}

/// Returns the condition to write; `None` if the rule has it already.
pub fn condition(rule: &DeviceTaintRule, counts: Counts, now: Timestamp) -> Option<Condition> {
    let (mut reason, mut status, mut message) = (String::new(), "False", String::new());
    let namespaces = |several: &str| count(counts.pending_namespaces, "namespace", several);
    match rule.spec.taint.effect.as_str() {
        "NoExecute" if counts.pending_pods > 0 => {
            reason.push_str("PodsPendingEviction");
            status = "True";
            let pods = count(counts.pending_pods, "pod needs", "pods need");
            message = format!("{pods} to be evicted in {}.", namespaces("different namespaces"));
        }
        "NoExecute" if counts.evicted_pods > 0 => reason.push_str("Completed"),
        "NoExecute" => reason.push_str("NotStarted"),
        "None" => {
            reason.push_str("NoEffect");
            message = format!(
                "{} selected. {} selected. {} would be evicted in {} if the effect was NoExecute. This information \
                 will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
                count(counts.published_devices, "published device", "published devices"),
                count(counts.allocated_devices, "allocated device", "allocated devices"),
                count(counts.pending_pods, "pod", "pods"),
                namespaces("different namespaces"),
            );
        }
        _ => {
            reason.push_str("OtherEffect");
            message.push_str("Eviction only happens for the NoExecute effect.");
        }
    }
    if counts.evicted_pods > 0 {
        let space = if message.is_empty() { "" } else { " " };
        let pods = count(usize::try_from(counts.evicted_pods).unwrap_or(usize::MAX), "pod", "pods");
        message.push_str(&format!("{space}{pods} evicted since starting the controller."));
    }
    let next = Condition {
        type_: EVICTION_IN_PROGRESS.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        observed_generation: rule.metadata.generation,
        last_transition_time: Time(now),
    };
    let same = |old: &Condition| {
        Condition { last_transition_time: next.last_transition_time.clone(), ..old.clone() } == next
    };
    (!known(rule).is_some_and(same)).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(effect: &str) -> DeviceTaintRule {
        serde_json::from_value(json!({"metadata": {"name": "r", "generation": 3},
            "spec": {"taint": {"key": "k", "effect": effect}}}))
        .unwrap()
    }

    #[test]
    fn conditions_report_the_progress() {
        let counts = |pending_pods, pending_namespaces, evicted_pods| Counts {
            pending_pods,
            pending_namespaces,
            evicted_pods,
            published_devices: 1,
            allocated_devices: 2,
        };
        for (effect, counts, expected) in [
            ("NoExecute", counts(0, 0, 0), "False NotStarted "),
            (
                "NoExecute",
                counts(1, 1, 0),
                "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace.",
            ),
            (
                "NoExecute",
                counts(3, 2, 1),
                "True PodsPendingEviction 3 pods need to be evicted in 2 different namespaces. 1 pod evicted since \
                 starting the controller.",
            ),
            ("NoExecute", counts(0, 0, 2), "False Completed 2 pods evicted since starting the controller."),
            (
                "NoSchedule",
                counts(0, 0, 0),
                "False OtherEffect Eviction only happens for the NoExecute effect.",
            ),
            (
                "None",
                counts(1, 1, 0),
                "False NoEffect 1 published device selected. 2 allocated devices selected. 1 pod would be evicted in 1 \
                 namespace if the effect was NoExecute. This information will not be updated again. Recreate the \
                 DeviceTaintRule to trigger an update.",
            ),
        ] {
            let new = condition(&rule(effect), counts, Timestamp::UNIX_EPOCH).unwrap();
            assert_eq!(format!("{} {} {}", new.status, new.reason, new.message), expected);
            let mut shown = rule(effect);
            shown.status = Some(serde_json::from_value(json!({"conditions": [new]})).unwrap());
            assert_eq!(condition(&shown, counts, Timestamp::MAX), None, "the rule has it already");
        }
    }
}
