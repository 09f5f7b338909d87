//! The next actions for a pod: a pure function of its spec, the runtime's state and the probes' results.
//!
//! Source: the behaviour of upstream's kuberuntime `computePodActions`; KEP-753 for sidecars.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::labels;
use crate::pod;
use crate::probes::{ProbeResult, ProbeResults};
use crate::runtime::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState};

/// Why a container is killed; the grace period depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    Unknown,
    /// The container gets its new resources by a restart.
    Resize,
    StartupProbe,
    LivenessProbe,
    FailedPostStartHook,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerToKill {
    pub id: String,
    pub name: String,
    /// The message of the Killing event.
    pub message: String,
    pub reason: KillReason,
    /// Whether another container replaces this one for a resize, however this one ends.
    pub replaced: bool,
}

/// The next actions. Containers are given by their index in the pod's lists, in the order of their start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodActions {
    /// Whether to stop all containers and the sandbox; a new sandbox may follow.
    pub kill_pod: bool,
    pub create_sandbox: bool,
    /// The id of the newest sandbox, or empty.
    pub sandbox_id: String,
    /// The attempt number of the sandbox to use or create.
    pub attempt: u32,
    pub init_containers_to_start: Vec<usize>,
    pub containers_to_start: Vec<usize>,
    pub ephemeral_containers_to_start: Vec<usize>,
    pub containers_to_kill: Vec<ContainerToKill>,
}

impl PodActions {
    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.kill_pod
            && !self.create_sandbox
            && self.init_containers_to_start.is_empty()
            && self.containers_to_start.is_empty()
            && self.ephemeral_containers_to_start.is_empty()
            && self.containers_to_kill.is_empty()
    }

    fn kill(&mut self, status: &ContainerStatus, message: String, reason: KillReason, replaced: bool) {
        let (id, name) = (status.id.clone(), status.name.clone());
        self.containers_to_kill.push(ContainerToKill { id, name, message, reason, replaced });
    }

    /// Removes the start of the container of this name.
    pub fn leave_out(&mut self, pod: &Pod, name: &str) {
        let other = |list: &[Container], at: usize| list.get(at).is_some_and(|c| c.name != name);
        self.init_containers_to_start.retain(|at| other(pod::init_containers(pod), *at));
        self.containers_to_start.retain(|at| other(&pod::spec(pod).containers, *at));
    }
}

/// Whether a new sandbox is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxChange {
    pub changed: bool,
    pub attempt: u32,
    pub sandbox_id: String,
    /// Empty unless a new sandbox is needed; shown in the PodReadyToStartContainers condition.
    pub message: &'static str,
}

/// Decides whether the pod needs a new sandbox.
pub fn sandbox_change(pod: &Pod, runtime: &PodRuntimeStatus) -> SandboxChange {
    let Some(newest) = runtime.sandboxes.first() else {
        let message = "no pod sandbox exists";
        return SandboxChange { changed: true, attempt: 0, sandbox_id: String::new(), message };
    };
    let ready = runtime.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    let message = if ready > 1 {
        "multiple pod sandboxes are ready and need to be reconciled"
    } else if newest.state != SandboxState::Ready {
        "pod sandbox is not ready"
    } else if newest.host_network != pod::is_host_network(pod) {
        "network namespace mode changed and sandbox needs to be recreated"
    } else if !newest.host_network && newest.ips.is_empty() {
        "pod sandbox has no IP address"
    } else {
        ""
    };
    let changed = !message.is_empty();
    SandboxChange {
        changed,
        attempt: newest.attempt + u32::from(changed),
        sandbox_id: newest.id.clone(),
        message,
    }
}

/// Returns the newest container of this name.
pub fn newest<'a>(runtime: &'a PodRuntimeStatus, name: &str) -> Option<&'a ContainerStatus> {
    runtime.containers.iter().find(|c| c.name == name)
}

/// Returns the newest container of this name in the current sandbox.
fn active<'a>(runtime: &'a PodRuntimeStatus, name: &str) -> Option<&'a ContainerStatus> {
    let sandbox = runtime.sandboxes.first()?;
    let ready = sandbox.state == SandboxState::Ready;
    runtime.containers.iter().find(|c| ready && c.name == name && c.sandbox_id == sandbox.id)
}

/// Returns whether a main container was started in the current sandbox: then initialization is complete for good.
pub fn has_initialized(pod: &Pod, runtime: &PodRuntimeStatus) -> bool {
    pod::spec(pod).containers.iter().any(|c| {
        active(runtime, &c.name)
            .is_some_and(|s| matches!(s.state, ContainerState::Running | ContainerState::Exited))
    })
}

/// Returns whether a main container was ever created, in any sandbox.
pub fn any_main_container_created(pod: &Pod, runtime: &PodRuntimeStatus) -> bool {
    pod::spec(pod).containers.iter().any(|c| newest(runtime, &c.name).is_some())
}

/// Returns whether a container that does not run is to be started or restarted.
pub fn should_be_restarted(container: &Container, pod: &Pod, runtime: &PodRuntimeStatus) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    match newest(runtime, &container.name) {
        None => true,
        Some(status) => match status.state {
            ContainerState::Running => false,
            ContainerState::Created => true,
            ContainerState::Exited => {
                runtime.is_replaced(status)
                    || pod::restarts_after(container, pod, status.exit_code.unwrap_or(137))
            }
        },
    }
}

fn definition_changed(container: &Container, status: &ContainerStatus) -> bool {
    let hash = status.annotations.get(labels::CONTAINER_HASH);
    hash.is_some_and(|hash| *hash != labels::container_hash(container))
}

/// Returns the message of the Killing event of a container that is restarted for a resize.
fn resized(name: &str) -> String {
    format!("Container {name} resize requires restart")
}

/// Computes the next actions for a pod.
pub fn compute_actions(pod: &Pod, runtime: &PodRuntimeStatus, probes: &ProbeResults) -> PodActions {
    let change = sandbox_change(pod, runtime);
    let mut actions = PodActions {
        kill_pod: change.changed,
        create_sandbox: change.changed,
        sandbox_id: change.sandbox_id,
        attempt: change.attempt,
        ..PodActions::default()
    };
    if change.changed {
        actions_for_new_sandbox(pod, runtime, &mut actions);
        return actions;
    }
    let ephemeral = pod::ephemeral_containers(pod).iter().enumerate();
    actions.ephemeral_containers_to_start =
        ephemeral.filter(|(_, c)| newest(runtime, &c.name).is_none()).map(|(at, _)| at).collect();
    let initialized = init_container_actions(pod, runtime, probes, &mut actions);
    if actions.kill_pod || !initialized {
        return actions;
    }
    let mut keep = 0;
    for (at, container) in pod::spec(pod).containers.iter().enumerate() {
        keep += usize::from(main_container_actions(pod, at, container, runtime, probes, &mut actions));
    }
    if keep == 0 && actions.containers_to_start.is_empty() {
        actions.kill_pod = true;
        // Sidecars must not keep the pod alive.
        actions.init_containers_to_start.clear();
    }
    actions
}

/// Returns whether the pod has lost its sandbox and gets no other one, so that none of its containers starts again.
pub fn ends_without_sandbox(pod: &Pod, runtime: &PodRuntimeStatus) -> bool {
    let change = sandbox_change(pod, runtime);
    change.changed && is_not_restarted(pod, runtime, change.attempt)
}

/// Returns whether the pod would need this sandbox but is not restarted.
fn is_not_restarted(pod: &Pod, runtime: &PodRuntimeStatus, attempt: u32) -> bool {
    pod::restart_policy(pod) == "Never" && attempt != 0 && !runtime.containers.is_empty()
}

/// Computes the actions with a new sandbox: all containers start from the beginning, except those that have
/// succeeded for good.
fn actions_for_new_sandbox(pod: &Pod, runtime: &PodRuntimeStatus, actions: &mut PodActions) {
    if is_not_restarted(pod, runtime, actions.attempt) {
        actions.create_sandbox = false;
        return;
    }
    let run_once =
        |c: &Container| c.restart_policy.as_deref().unwrap_or(pod::restart_policy(pod)) == "OnFailure";
    let succeeded = |c: &Container| {
        let is_over = |s: &ContainerStatus| {
            s.state == ContainerState::Exited && s.exit_code == Some(0) && !runtime.is_replaced(s)
        };
        newest(runtime, &c.name).is_some_and(is_over)
    };
    let main = pod::spec(pod).containers.iter().enumerate();
    let to_start: Vec<usize> =
        main.filter(|(_, c)| !(run_once(c) && succeeded(c))).map(|(at, _)| at).collect();
    if to_start.is_empty() && any_main_container_created(pod, runtime) {
        actions.create_sandbox = false;
        return;
    }
    if pod::init_containers(pod).is_empty() {
        actions.containers_to_start = to_start;
    } else {
        actions.init_containers_to_start = vec![0];
    }
}

/// Computes the actions for a main container. Returns whether it runs and is left unchanged.
fn main_container_actions(
    pod: &Pod,
    at: usize,
    container: &Container,
    runtime: &PodRuntimeStatus,
    probes: &ProbeResults,
    actions: &mut PodActions,
) -> bool {
    let status = newest(runtime, &container.name).filter(|s| s.state == ContainerState::Running);
    let Some(status) = status else {
        if should_be_restarted(container, pod, runtime) {
            actions.containers_to_start.push(at);
        }
        return false;
    };
    let name = &container.name;
    let mut restart = pod::restarts_after_kill(container, pod);
    let (mut message, reason) = if definition_changed(container, status) {
        restart = true;
        (format!("Container {name} definition changed"), KillReason::Unknown)
    } else if probes.liveness.get(&status.id) == Some(ProbeResult::Failure) {
        (format!("Container {name} failed liveness probe"), KillReason::LivenessProbe)
    } else if probes.startup.get(&status.id) == Some(ProbeResult::Failure) {
        (format!("Container {name} failed startup probe"), KillReason::StartupProbe)
    } else if runtime.is_replaced(status) {
        actions.kill(status, resized(name), KillReason::Resize, true);
        actions.containers_to_start.push(at);
        return false;
    } else {
        return true;
    };
    if restart {
        message.push_str(", will be restarted");
        actions.containers_to_start.push(at);
    }
    actions.kill(status, message, reason, restart && runtime.is_replaced(status));
    false
}

/// Finds the next init container to start, and sidecars to restart. Returns whether all have succeeded (or, for
/// sidecars, started). Iterates backwards, as earlier containers may have been removed from the runtime.
fn init_container_actions(
    pod: &Pod,
    runtime: &PodRuntimeStatus,
    probes: &ProbeResults,
    actions: &mut PodActions,
) -> bool {
    let containers = pod::init_containers(pod);
    if containers.is_empty() {
        return true;
    }
    let mut initialized = has_initialized(pod, runtime);
    // Whether a later init container has run already.
    let mut passed = initialized;
    let last = containers.len() - 1;
    for (at, container) in containers.iter().enumerate().rev() {
        let sidecar = pod::is_sidecar(container);
        let Some(status) = active(runtime, &container.name) else {
            if passed && sidecar {
                actions.init_containers_to_start.push(at);
            }
            continue;
        };
        if passed && !sidecar {
            continue;
        }
        let done = match status.state {
            ContainerState::Created => {
                actions.init_containers_to_start.push(at);
                false
            }
            ContainerState::Running => {
                sidecar && running_sidecar(container, at, status, runtime, probes, actions)
            }
            ContainerState::Exited if sidecar => {
                actions.init_containers_to_start.push(at);
                false
            }
            ContainerState::Exited if status.exit_code == Some(0) => true,
            ContainerState::Exited => {
                if !pod::restarts_after(container, pod, status.exit_code.unwrap_or(137)) {
                    actions.kill_pod = true;
                    actions.init_containers_to_start.clear();
                    return false;
                }
                actions.init_containers_to_start.push(at);
                false
            }
        };
        if done {
            if at == last {
                initialized = true;
            } else if !passed {
                actions.init_containers_to_start.push(at + 1);
            }
        }
        passed = true;
    }
    if !passed {
        actions.init_containers_to_start.push(0);
    }
    actions.init_containers_to_start.sort_unstable();
    actions.init_containers_to_start.dedup();
    initialized
}

/// Computes the actions for a running sidecar. Returns whether it has started, so that later containers may start.
fn running_sidecar(
    container: &Container,
    at: usize,
    status: &ContainerStatus,
    runtime: &PodRuntimeStatus,
    probes: &ProbeResults,
    actions: &mut PodActions,
) -> bool {
    let name = &container.name;
    let mut restart = |message: String, reason| {
        actions.kill(status, message, reason, runtime.is_replaced(status));
        actions.init_containers_to_start.push(at);
    };
    if container.startup_probe.is_some() {
        match probes.startup.get(&status.id) {
            Some(ProbeResult::Success) => {}
            Some(ProbeResult::Failure) => {
                restart(format!("Init container {name} failed startup probe"), KillReason::StartupProbe);
                return false;
            }
            Some(ProbeResult::Unknown) | None => return false,
        }
    }
    if definition_changed(container, status) {
        restart(format!("Init container {name} definition changed"), KillReason::Unknown);
    } else if probes.liveness.get(&status.id) == Some(ProbeResult::Failure) {
        restart(format!("Init container {name} failed liveness probe"), KillReason::LivenessProbe);
    } else if runtime.is_replaced(status) {
        restart(resized(name), KillReason::Resize);
    }
    true
}

#[cfg(test)]
#[path = "compute_actions_tests.rs"]
mod tests;
