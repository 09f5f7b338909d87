//! The status of pods: computed by pure functions, written by the status manager.

mod conditions;
mod containers;
mod manager;
mod phase;
mod pod_level;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, HostIP, Pod, PodCondition, PodIP, PodStatus, ResourceRequirements,
};

use crate::api_time::whole_seconds;
pub use conditions::{OWNED, end_readiness, is_ours};
pub use containers::{Messages, end_all};
pub use manager::StatusManager;

use crate::compute_actions::{has_initialized, newest};
use crate::pod::{self, ContainerKind};
use crate::probes::ProbeResults;
use crate::qos;
use crate::runtime::{ContainerStatus, PodRuntimeStatus, SandboxState};

/// Why a container could not be started: the reason and message of its waiting state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// `CrashLoopBackOff`, `ErrImagePull`, `CreateContainerConfigError` …
    pub reason: String,
    pub message: String,
}

/// The inputs from which a pod's status is computed.
pub struct Input<'a> {
    pub pod: &'a Pod,
    /// The last status: the one that the kubelet has computed, or the one in the API.
    pub old: &'a PodStatus,
    pub runtime: &'a PodRuntimeStatus,
    /// Failures by container name.
    pub failures: &'a BTreeMap<String, StartFailure>,
    pub probes: &'a ProbeResults,
    /// Termination messages by container id.
    pub messages: &'a Messages,
    /// The resources that running containers have, by id.
    pub actuated: &'a BTreeMap<String, ResourceRequirements>,
    /// The conditions of a resize in progress or pending.
    pub resize: &'a [PodCondition],
    pub host_ips: &'a [String],
    pub runtime_name: &'a str,
    /// Whether the runtime can make the pod's mounts read-only recursively where a mount asks for it.
    pub recursive_read_only: bool,
    pub kubelet_started: Timestamp,
    /// Whether no container will be started any more.
    pub terminal: bool,
    pub now: Timestamp,
}

impl Input<'_> {
    fn container_id(&self, status: &ContainerStatus) -> String {
        format!("{}://{}", self.runtime_name, status.id)
    }
}

/// The reason and message of a pod that ran past its `activeDeadlineSeconds`.
pub const DEADLINE_EXCEEDED: (&str, &str) =
    ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline");

/// Returns when the pod's `activeDeadlineSeconds` are over.
pub fn deadline(pod: &Pod, old: &PodStatus) -> Option<Timestamp> {
    let seconds = pod::spec(pod).active_deadline_seconds?;
    let start = old.start_time.as_ref()?.0;
    start.checked_add(std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0))).ok()
}

/// Computes the status to publish.
pub fn generate(input: &Input<'_>) -> PodStatus {
    let Input { pod, old, .. } = input;
    let known = |list: &Option<Vec<_>>| list.clone().unwrap_or_default();
    let ephemeral: Vec<Container> = pod::ephemeral_containers(pod).iter().map(pod::common_shape).collect();
    let mut main = containers::statuses(
        input,
        ContainerKind::Main,
        &pod::spec(pod).containers,
        &known(&old.container_statuses),
    );
    let mut init = containers::statuses(
        input,
        ContainerKind::Init,
        pod::init_containers(pod),
        &known(&old.init_container_statuses),
    );
    let mut ephemeral = containers::statuses(
        input,
        ContainerKind::Ephemeral,
        &ephemeral,
        &known(&old.ephemeral_container_statuses),
    );
    containers::limit_messages(&mut [&mut main, &mut init, &mut ephemeral]);

    let all: Vec<_> = init.iter().chain(&main).collect();
    let replaced = |name: &str| newest(input.runtime, name).is_some_and(|s| input.runtime.is_replaced(s));
    let computed = phase::phase(pod, &all, replaced, input.terminal, has_initialized(pod, input.runtime));
    let mut status = PodStatus::default();
    set_phase(&mut status, input, computed);
    let phase = status.phase.clone().unwrap_or_default();
    let old_conditions = merge_conditions(pod, old);
    status.conditions =
        Some(conditions::conditions(pod, &all, &phase, input.runtime, &old_conditions, input.now));
    if !input.terminal && !pod::is_terminal_phase(&phase) {
        status.conditions.get_or_insert_default().extend(input.resize.iter().cloned());
    }
    status.observed_generation = pod.metadata.generation;
    status.qos_class = Some(qos::qos_class(pod).to_owned());
    status.start_time = old.start_time.clone().or_else(|| Some(whole_seconds(input.now)));
    set_addresses(&mut status, input);
    pod_level::fill(&mut status, input);
    status.container_statuses = Some(main);
    status.init_container_statuses = (!init.is_empty()).then_some(init);
    status.ephemeral_container_statuses = (!ephemeral.is_empty()).then_some(ephemeral);
    status
}

/// Returns the conditions of other writers from the API, where they are newer, and the kubelet's own from `old`.
fn merge_conditions(pod: &Pod, old: &PodStatus) -> Vec<PodCondition> {
    let api = pod::status(pod).conditions.iter().flatten().filter(|c| !is_ours(&c.type_));
    let own = old.conditions.iter().flatten().filter(|c| is_ours(&c.type_));
    api.chain(own).cloned().collect()
}

/// Sets the phase: a terminal phase never changes, reason and message belong to the phase, and a passed deadline
/// ends the pod.
fn set_phase(status: &mut PodStatus, input: &Input<'_>, computed: &str) {
    let Input { pod, old, .. } = input;
    let old_phase = old.phase.as_deref().unwrap_or("");
    let phase = if pod::is_terminal_phase(pod::phase(pod)) {
        pod::phase(pod)
    } else if pod::is_terminal_phase(old_phase) {
        old_phase
    } else {
        computed
    };
    status.phase = Some(phase.to_owned());
    if phase == old_phase {
        let api = pod::status(pod);
        status.reason = old.reason.clone().or_else(|| api.reason.clone());
        status.message = old.message.clone().or_else(|| api.message.clone());
    }
    if !pod::is_terminal_phase(phase) && deadline(pod, old).is_some_and(|end| input.now >= end) {
        status.phase = Some("Failed".to_owned());
        status.reason = Some(DEADLINE_EXCEEDED.0.to_owned());
        status.message = Some(DEADLINE_EXCEEDED.1.to_owned());
    }
}

fn set_addresses(status: &mut PodStatus, input: &Input<'_>) {
    let sandbox = input.runtime.sandboxes.first().filter(|s| s.state == SandboxState::Ready);
    let mut ips: Vec<String> = match sandbox {
        Some(sandbox) => sandbox.ips.iter().map(ToString::to_string).collect(),
        None => Vec::new(),
    };
    status.host_ip = input.host_ips.first().cloned();
    status.host_ips = (!input.host_ips.is_empty())
        .then(|| input.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect());
    if ips.is_empty() && pod::is_host_network(input.pod) {
        ips = input.host_ips.to_vec();
    }
    if ips.is_empty() {
        // A pod that has ended keeps its addresses.
        let old = input.old.pod_ips.iter().flatten();
        ips = old.map(|ip| ip.ip.clone()).collect();
        if sandbox.is_none()
            && !input.terminal
            && !pod::is_terminal_phase(status.phase.as_deref().unwrap_or(""))
        {
            ips.clear();
        }
    }
    status.pod_ip = ips.first().cloned();
    status.pod_ips = (!ips.is_empty()).then(|| ips.into_iter().map(|ip| PodIP { ip }).collect());
}
