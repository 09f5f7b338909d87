//! The node's conditions: pressure and readiness, with upstream's texts.
//!
//! Source: `k8s.io/kubernetes/pkg/kubelet/nodestatus`.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The texts of a pressure condition in both states.
pub struct PressureWords {
    pub type_: &'static str,
    pub bad: Words,
    pub good: Words,
}

/// The reason and message of a condition, and the reason of the event when it changes.
pub struct Words {
    pub reason: &'static str,
    pub message: &'static str,
    pub event: &'static str,
}

pub const MEMORY: PressureWords = PressureWords {
    type_: "MemoryPressure",
    bad: Words {
        reason: "KubeletHasInsufficientMemory",
        message: "kubelet has insufficient memory available",
        event: "NodeHasInsufficientMemory",
    },
    good: Words {
        reason: "KubeletHasSufficientMemory",
        message: "kubelet has sufficient memory available",
        event: "NodeHasSufficientMemory",
    },
};

pub const DISK: PressureWords = PressureWords {
    type_: "DiskPressure",
    bad: Words {
        reason: "KubeletHasDiskPressure",
        message: "kubelet has disk pressure",
        event: "NodeHasDiskPressure",
    },
    good: Words {
        reason: "KubeletHasNoDiskPressure",
        message: "kubelet has no disk pressure",
        event: "NodeHasNoDiskPressure",
    },
};

pub const PIDS: PressureWords = PressureWords {
    type_: "PIDPressure",
    bad: Words {
        reason: "KubeletHasInsufficientPID",
        message: "kubelet has insufficient PID available",
        event: "NodeHasInsufficientPID",
    },
    good: Words {
        reason: "KubeletHasSufficientPID",
        message: "kubelet has sufficient PID available",
        event: "NodeHasSufficientPID",
    },
};

/// Updates the condition in the list; returns the reason of the event to emit if its status has changed.
pub fn set_pressure(
    conditions: &mut Vec<NodeCondition>,
    words: &PressureWords,
    pressure: bool,
    now: Timestamp,
) -> Option<&'static str> {
    let (status, chosen) = if pressure { ("True", &words.bad) } else { ("False", &words.good) };
    let condition = entry(conditions, words.type_, now);
    condition.last_heartbeat_time = Some(Time(now));
    if condition.status == status {
        return None;
    }
    condition.status = status.to_owned();
    condition.reason = Some(chosen.reason.to_owned());
    condition.message = Some(chosen.message.to_owned());
    condition.last_transition_time = Some(Time(now));
    Some(chosen.event)
}

/// Updates the Ready condition in the same way: `why_not` lists what is missing.
pub fn set_ready(
    conditions: &mut Vec<NodeCondition>,
    why_not: &[String],
    now: Timestamp,
) -> Option<&'static str> {
    let (status, reason, message, event) = match why_not {
        [] => ("True", "KubeletReady", "kubelet is posting ready status".to_owned(), "NodeReady"),
        [one] => ("False", "KubeletNotReady", one.clone(), "NodeNotReady"),
        several => ("False", "KubeletNotReady", format!("[{}]", several.join(", ")), "NodeNotReady"),
    };
    let condition = entry(conditions, "Ready", now);
    let before = std::mem::replace(&mut condition.status, status.to_owned());
    condition.last_heartbeat_time = Some(Time(now));
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message);
    if before == status {
        return None;
    }
    condition.last_transition_time = Some(Time(now));
    // As upstream, a new node emits no event for its first condition.
    (before != UNKNOWN_YET).then_some(event)
}

/// The status of a condition that was not in the list before.
const UNKNOWN_YET: &str = "";

fn entry<'a>(conditions: &'a mut Vec<NodeCondition>, type_: &str, now: Timestamp) -> &'a mut NodeCondition {
    let at = conditions.iter().position(|c| c.type_ == type_).unwrap_or_else(|| {
        conditions.push(NodeCondition {
            type_: type_.to_owned(),
            status: UNKNOWN_YET.to_owned(),
            last_transition_time: Some(Time(now)),
            ..NodeCondition::default()
        });
        conditions.len() - 1
    });
    &mut conditions[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pressure_turns_and_keeps_its_time() {
        let mut list = Vec::new();
        assert_eq!(set_pressure(&mut list, &MEMORY, false, at(1)), Some("NodeHasSufficientMemory"));
        assert_eq!(set_pressure(&mut list, &MEMORY, false, at(2)), None);
        assert_eq!(list[0].last_transition_time, Some(Time(at(1))));
        assert_eq!(list[0].last_heartbeat_time, Some(Time(at(2))));
        assert_eq!(set_pressure(&mut list, &MEMORY, true, at(3)), Some("NodeHasInsufficientMemory"));
        assert_eq!(list[0].reason.as_deref(), Some("KubeletHasInsufficientMemory"));
        assert_eq!((list.len(), list[0].status.as_str()), (1, "True"));
    }

    #[test]
    fn readiness() {
        let mut list = Vec::new();
        assert_eq!(set_ready(&mut list, &["a".into(), "b".into()], at(1)), None);
        assert_eq!(list[0].message.as_deref(), Some("[a, b]"));
        assert_eq!(set_ready(&mut list, &["b".into()], at(2)), None);
        assert_eq!(
            (list[0].message.as_deref(), &list[0].last_transition_time),
            (Some("b"), &Some(Time(at(1))))
        );
        assert_eq!(set_ready(&mut list, &[], at(3)), Some("NodeReady"));
        assert_eq!(list[0].message.as_deref(), Some("kubelet is posting ready status"));
        // The node lifecycle controller has marked the node as unreachable.
        list[0].status = "Unknown".into();
        assert_eq!(set_ready(&mut list, &[], at(4)), Some("NodeReady"));
        assert_eq!(set_ready(&mut list, &["c".into()], at(5)), Some("NodeNotReady"));
    }
}
