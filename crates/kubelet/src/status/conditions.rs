//! The pod conditions that the kubelet owns.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};

use crate::allocation;
use crate::api_time::whole_seconds;
use crate::compute_actions::sandbox_change;
use crate::pod;
use crate::runtime::PodRuntimeStatus;

/// The types that every pod has, in the order of the status.
pub const OWNED: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Returns whether the kubelet alone writes conditions of this type. Those of a resize are present only during one.
pub fn is_ours(type_: &str) -> bool {
    OWNED.contains(&type_) || allocation::TYPES.contains(&type_)
}

/// A condition without times and generation, which [`finish`] adds.
struct Verdict {
    ok: bool,
    reason: &'static str,
    message: String,
}

impl Verdict {
    const YES: Self = Self { ok: true, reason: "", message: String::new() };

    fn no(reason: &'static str, message: impl Into<String>) -> Self {
        Self { ok: false, reason, message: message.into() }
    }

    fn condition(self, type_: &str) -> PodCondition {
        PodCondition {
            type_: type_.to_owned(),
            status: if self.ok { "True" } else { "False" }.to_owned(),
            reason: (!self.reason.is_empty()).then(|| self.reason.to_owned()),
            message: (!self.message.is_empty()).then_some(self.message),
            ..PodCondition::default()
        }
    }
}

/// Formats names as Go prints a list of strings.
fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn find<'a>(statuses: &[&'a ContainerStatus], name: &str) -> Option<&'a ContainerStatus> {
    statuses.iter().copied().find(|s| s.name == name)
}

fn containers_ready(pod: &Pod, statuses: &[&ContainerStatus], phase: &str) -> Verdict {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
    for container in sidecars.chain(&pod::spec(pod).containers) {
        match find(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return Verdict::no("PodCompleted", "");
    }
    if phase == "Failed" {
        return Verdict::no("PodFailed", "");
    }
    match problems("unready", &unknown, &unready) {
        Some(message) => Verdict::no("ContainersNotReady", message),
        None => Verdict::YES,
    }
}

fn problems(what: &str, unknown: &[&str], lacking: &[&str]) -> Option<String> {
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(format!("containers with unknown status: {}", list(unknown)));
    }
    if !lacking.is_empty() {
        messages.push(format!("containers with {what} status: {}", list(lacking)));
    }
    (!messages.is_empty()).then(|| messages.join(", "))
}

/// Computes the Ready condition. `others` are the conditions of other writers, among them those of readiness
/// gates.
fn ready(pod: &Pod, statuses: &[&ContainerStatus], phase: &str, others: &[PodCondition]) -> Verdict {
    let containers = containers_ready(pod, statuses, phase);
    if !containers.ok {
        return containers;
    }
    let mut messages = Vec::new();
    for gate in pod::spec(pod).readiness_gates.iter().flatten() {
        let type_ = &gate.condition_type;
        match others.iter().find(|c| c.type_ == *type_) {
            None => messages
                .push(format!("corresponding condition of pod readiness gate {type_:?} does not exist.")),
            Some(c) if c.status != "True" => messages.push(format!(
                "the status of pod readiness gate {type_:?} is not \"True\", but {}",
                c.status
            )),
            Some(_) => {}
        }
    }
    if messages.is_empty() {
        Verdict::YES
    } else {
        Verdict::no("ReadinessGatesNotReady", messages.join(", "))
    }
}

fn initialized(pod: &Pod, statuses: &[&ContainerStatus], phase: &str) -> Verdict {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in pod::init_containers(pod) {
        let done = |s: &ContainerStatus| {
            if pod::is_sidecar(container) { s.started == Some(true) } else { s.ready }
        };
        match find(statuses, &container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !done(status) => incomplete.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return Verdict { ok: true, reason: "PodCompleted", message: String::new() };
    }
    let main_started = pod::spec(pod).containers.iter().any(|c| {
        find(statuses, &c.name).is_some_and(|s| {
            let ran = |state: Option<&k8s_openapi::api::core::v1::ContainerState>| {
                state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
            };
            ran(s.state.as_ref()) || ran(s.last_state.as_ref())
        })
    });
    match problems("incomplete", &unknown, &incomplete) {
        Some(message) if !main_started => Verdict::no("ContainersNotInitialized", message),
        _ => Verdict::YES,
    }
}

fn ready_to_start(pod: &Pod, runtime: &PodRuntimeStatus) -> Verdict {
    let change = sandbox_change(pod, runtime);
    if change.changed { Verdict::no("PodSandboxNotReady", change.message) } else { Verdict::YES }
}

/// Returns all conditions of the pod: `others` unchanged, then the kubelet's own. `old` supplies the transition
/// times.
pub fn conditions(
    pod: &Pod,
    statuses: &[&ContainerStatus],
    phase: &str,
    runtime: &PodRuntimeStatus,
    old: &[PodCondition],
    now: Timestamp,
) -> Vec<PodCondition> {
    let mut all: Vec<PodCondition> = old.iter().filter(|c| !is_ours(&c.type_)).cloned().collect();
    let own = [
        ready_to_start(pod, runtime),
        initialized(pod, statuses, phase),
        ready(pod, statuses, phase, &all),
        containers_ready(pod, statuses, phase),
        Verdict::YES,
    ];
    let own =
        own.into_iter().zip(OWNED).map(|(verdict, type_)| finish(pod, verdict.condition(type_), old, now));
    all.extend(own.collect::<Vec<_>>());
    all
}

/// Sets the conditions of an ended pod that was ready to not ready.
pub fn end_readiness(pod: &Pod, conditions: &mut [PodCondition], phase: &str, now: Timestamp) {
    let old = conditions.to_vec();
    let reason = if phase == "Succeeded" { "PodCompleted" } else { "PodFailed" };
    for condition in conditions.iter_mut() {
        if matches!(condition.type_.as_str(), "Ready" | "ContainersReady") && condition.status == "True" {
            *condition = finish(pod, Verdict::no(reason, "").condition(&condition.type_), &old, now);
        }
    }
}

fn finish(pod: &Pod, mut condition: PodCondition, old: &[PodCondition], now: Timestamp) -> PodCondition {
    let same = old.iter().find(|c| c.type_ == condition.type_ && c.status == condition.status);
    condition.last_transition_time =
        same.and_then(|c| c.last_transition_time.clone()).or_else(|| Some(whole_seconds(now)));
    condition.observed_generation = pod.metadata.generation;
    condition
}
