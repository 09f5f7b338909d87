//! The columns of `kubectl get pods`: readiness, STATUS, restarts, addresses.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus};
use serde_json::Value;

use crate::object::Object;
use crate::resource::{CellContext, Column};
use crate::table::{self, AGE, NAME};

pub const COLUMNS: &[Column] = &[
    NAME,
    Column::new("Ready", "string", "The number of ready containers out of all containers of the pod."),
    Column::new("Status", "string", "The aggregate status of the containers in the pod."),
    Column::new("Restarts", "string", "The number of container restarts, and the time since the last one."),
    AGE,
    Column::wide("IP", "string", "The IP address of the pod."),
    Column::wide("Node", "string", "The node that the pod is bound to."),
    Column::wide("Nominated Node", "string", "The node nominated for the pod by preemption."),
    Column::wide("Readiness Gates", "string", "The number of readiness gates that are met out of all."),
];

pub fn cells(object: &Object, cx: &CellContext) -> Vec<Value> {
    let pod = object.typed::<Pod>().unwrap_or_default();
    let (no_spec, no_status) = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let status = pod.status.as_ref().unwrap_or(&no_status);
    let summary = summarize(&pod, spec, status);
    let ip = status.pod_ips.iter().flatten().next().map_or("", |ip| &ip.ip);
    vec![
        Value::from(object.name()),
        Value::from(format!("{}/{}", summary.ready, summary.total)),
        Value::from(summary.reason),
        Value::from(restarts(summary.restarts, summary.restarted_at, cx.now)),
        table::age(pod.metadata.creation_timestamp.as_ref(), cx),
        table::or_none(ip),
        table::or_none(spec.node_name.as_deref().unwrap_or("")),
        table::or_none(status.nominated_node_name.as_deref().unwrap_or("")),
        Value::from(readiness_gates(spec, status)),
    ]
}

/// Returns `3 (5m ago)`.
fn restarts(count: i32, last: Option<Timestamp>, now: Timestamp) -> String {
    match last {
        Some(_) if count != 0 => format!("{count} ({} ago)", table::since(last, now)),
        _ => count.to_string(),
    }
}

fn readiness_gates(spec: &PodSpec, status: &PodStatus) -> String {
    let gates = spec.readiness_gates.as_deref().unwrap_or_default();
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|gate| is_true(condition(status, &gate.condition_type))).count();
    format!("{open}/{}", gates.len())
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == kind)
}

fn is_true(condition: Option<&PodCondition>) -> bool {
    condition.is_some_and(|c| c.status == "True")
}

#[derive(Default)]
struct Summary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i32,
    restarted_at: Option<Timestamp>,
}

impl Summary {
    fn count_restarts(&mut self, container: &ContainerStatus) {
        self.restarts = self.restarts.saturating_add(container.restart_count);
        self.restarted_at = self.restarted_at.max(last_end(container));
    }
}

/// Returns when the container's previous run ended.
fn last_end(container: &ContainerStatus) -> Option<Timestamp> {
    let ended = container.last_state.as_ref()?.terminated.as_ref()?;
    ended.finished_at.as_ref().map(|t| t.0)
}

/// Returns whether this init container is a sidecar: it runs beside the main containers.
fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn summarize(pod: &Pod, spec: &PodSpec, status: &PodStatus) -> Summary {
    let phase = status.phase.as_deref().unwrap_or("");
    let own_reason = status.reason.as_deref().unwrap_or("");
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let mut summary = Summary {
        total: spec.containers.len() + inits.iter().filter(|c| is_sidecar(c)).count(),
        reason: if own_reason.is_empty() { phase } else { own_reason }.to_owned(),
        ..Summary::default()
    };
    if condition(status, "PodScheduled").is_some_and(|c| c.reason.as_deref() == Some("SchedulingGated")) {
        summary.reason = "SchedulingGated".to_owned();
    }

    let mut sidecars = Summary::default();
    let initializing = look_at_init_containers(inits, status, &mut summary, &mut sidecars);
    if !initializing || is_true(condition(status, "Initialized")) {
        summary.restarts = sidecars.restarts;
        summary.restarted_at = sidecars.restarted_at;
        look_at_containers(status, &mut summary);
    }

    if pod.metadata.deletion_timestamp.is_some() {
        if own_reason == "NodeLost" {
            summary.reason = "Unknown".to_owned();
        } else if !matches!(phase, "Succeeded" | "Failed") {
            summary.reason = "Terminating".to_owned();
        }
    }
    summary
}

/// Finds the first init container that is not done and sets the reason from its state; returns whether there is
/// one.
fn look_at_init_containers(
    inits: &[Container],
    status: &PodStatus,
    summary: &mut Summary,
    sidecars: &mut Summary,
) -> bool {
    for (i, container) in status.init_container_statuses.iter().flatten().enumerate() {
        let sidecar = inits.iter().any(|c| c.name == container.name && is_sidecar(c));
        summary.count_restarts(container);
        if sidecar {
            sidecars.count_restarts(container);
        }
        let state = container.state.clone().unwrap_or_default();
        if state.terminated.as_ref().is_some_and(|t| t.exit_code == 0) {
            continue;
        }
        if sidecar && container.started == Some(true) {
            summary.ready += usize::from(container.ready);
            continue;
        }
        let waiting = state.waiting.as_ref().and_then(|w| w.reason.as_deref()).unwrap_or("");
        summary.reason = match &state.terminated {
            Some(ended) => format!("Init:{}", end_word(ended)),
            None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
            None => format!("Init:{i}/{}", inits.len()),
        };
        return true;
    }
    false
}

fn end_word(ended: &k8s_openapi::api::core::v1::ContainerStateTerminated) -> String {
    match (ended.reason.as_deref().unwrap_or(""), ended.signal.unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", ended.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

/// Sets the reason from the first container that waits or has ended; a running container overrides Completed.
fn look_at_containers(status: &PodStatus, summary: &mut Summary) {
    let mut running = false;
    let mut failure = None;
    for container in status.container_statuses.iter().flatten().rev() {
        summary.count_restarts(container);
        let state = container.state.clone().unwrap_or_default();
        let waiting = state.waiting.as_ref().and_then(|w| w.reason.as_deref()).unwrap_or("");
        if !waiting.is_empty() {
            summary.reason = waiting.to_owned();
        } else if let Some(ended) = &state.terminated {
            summary.reason = end_word(ended);
            if ended.exit_code != 0 {
                failure = Some(summary.reason.clone());
            }
        } else if container.ready && state.running.is_some() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" {
        if running && is_true(condition(status, "Ready")) {
            summary.reason = "Running".to_owned();
        } else if let Some(failure) = failure {
            summary.reason = failure;
        } else if running {
            summary.reason = "NotReady".to_owned();
        }
    }
}
