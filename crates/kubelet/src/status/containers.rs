//! The API's container statuses, computed from the runtime's state and from earlier statuses.
//!
//! Source: the behaviour of upstream's `convertToAPIContainerStatuses` and of its probe manager.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus as ApiStatus, ContainerUser, LinuxContainerUser, Pod,
    ResourceRequirements, VolumeMountStatus,
};

use super::{Input, StartFailure};
use crate::api_time::whole_seconds;
use crate::compute_actions::{any_main_container_created, newest, should_be_restarted};
use crate::container_config::mounts::recursive_read_only;
use crate::pod::{self, ContainerKind};
use crate::probes::ProbeResult;
use crate::runtime::{ContainerState, ContainerStatus};

const LOST: &str = "ContainerStatusUnknown";
const LOST_EXIT_CODE: i32 = 137;
/// The limit of all messages of a pod's containers together, in bytes.
const MAX_MESSAGES: usize = 12 << 10;

/// Returns the statuses of `containers`: init containers in the pod's order, others by name.
pub fn statuses(
    input: &Input<'_>,
    kind: ContainerKind,
    containers: &[Container],
    old: &[ApiStatus],
) -> Vec<ApiStatus> {
    let mut all: Vec<ApiStatus> = containers
        .iter()
        .map(|container| {
            let old = old.iter().find(|s| s.name == container.name);
            let mut status = status(input, kind, container, old);
            probed(input, kind, container, old, &mut status);
            status
        })
        .collect();
    if kind != ContainerKind::Init {
        all.sort_by(|a, b| a.name.cmp(&b.name));
    }
    all
}

fn status(
    input: &Input<'_>,
    kind: ContainerKind,
    container: &Container,
    old: Option<&ApiStatus>,
) -> ApiStatus {
    let mut seen = input.runtime.containers.iter().filter(|s| s.name == container.name);
    let (current, previous) = (seen.next(), seen.next());
    let mut status = match current {
        Some(current) => from_runtime(input, container, current, previous, old),
        None => without_runtime(input, container, old),
    };
    if kind == ContainerKind::Init {
        if current.is_some_and(|s| s.state == ContainerState::Exited && s.exit_code == Some(0)) {
            return status;
        }
        let waiting = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
        if current.is_none()
            && waiting
            && !pod::is_sidecar(container)
            && any_main_container_created(input.pod, input.runtime)
        {
            let message = "Unable to get init container status from container runtime and pod has been \
                           initialized, treat it as exited normally";
            status.state = Some(ended(0, "Completed", message));
            return status;
        }
    }
    if should_be_restarted(container, input.pod, input.runtime)
        && let Some(failure) = input.failures.get(&container.name)
    {
        wait_because(&mut status, failure);
    }
    status
}

fn wait_because(status: &mut ApiStatus, failure: &StartFailure) {
    if status.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(&failure.reason, &failure.message));
}

fn waiting(reason: &str, message: &str) -> ApiState {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ApiState {
        waiting: Some(ContainerStateWaiting { reason: text(reason), message: text(message) }),
        ..ApiState::default()
    }
}

fn ended(exit_code: i32, reason: &str, message: &str) -> ApiState {
    let terminated = ContainerStateTerminated {
        exit_code,
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..ContainerStateTerminated::default()
    };
    ApiState { terminated: Some(terminated), ..ApiState::default() }
}

fn default_waiting(pod: &Pod) -> ApiState {
    let init = !pod::init_containers(pod).is_empty();
    waiting(if init { "PodInitializing" } else { "ContainerCreating" }, "")
}

/// Returns the status of a container that the runtime does not have: not created yet, or lost.
fn without_runtime(input: &Input<'_>, container: &Container, old: Option<&ApiStatus>) -> ApiStatus {
    let pod = input.pod;
    let mut status = ApiStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(default_waiting(pod)),
        last_state: Some(ApiState::default()),
        volume_mounts: volume_mounts(container, input.recursive_read_only),
        ..ApiStatus::default()
    };
    let Some(old) = old else { return status };
    let state = old.state.clone().unwrap_or_default();
    if state.terminated.is_some() {
        return ApiStatus { ready: false, ..old.clone() };
    }
    status.restart_count = old.restart_count;
    status.last_state.clone_from(&old.last_state);
    let has_end = old.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    if state.running.is_some() && !has_end {
        let message =
            "The container could not be located when the pod was deleted.  The container used to be Running";
        status.last_state = Some(ended(LOST_EXIT_CODE, LOST, message));
        if pod.metadata.deletion_timestamp.is_none() {
            status.restart_count += 1;
        }
    }
    status
}

fn from_runtime(
    input: &Input<'_>,
    container: &Container,
    current: &ContainerStatus,
    previous: Option<&ContainerStatus>,
    old: Option<&ApiStatus>,
) -> ApiStatus {
    let resources = container.resources.clone().unwrap_or_default();
    let mut status = ApiStatus {
        name: current.name.clone(),
        restart_count: i32::try_from(current.attempt).unwrap_or(i32::MAX),
        image: current.image.clone(),
        image_id: current.image_id.clone(),
        container_id: Some(input.container_id(current)),
        state: Some(state(input, current)),
        allocated_resources: resources.requests.clone(),
        resources: Some(actual_resources(input, current, old).unwrap_or(resources)),
        user: current.user.as_ref().map(|(uid, gid, groups)| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: i64::from(*uid),
                gid: i64::from(*gid),
                supplemental_groups: (!groups.is_empty())
                    .then(|| groups.iter().map(|g| i64::from(*g)).collect()),
            }),
        }),
        volume_mounts: volume_mounts(container, input.recursive_read_only),
        ..ApiStatus::default()
    };
    status.last_state = Some(match previous {
        Some(previous) => state(input, previous),
        None => {
            let id = status.container_id.as_ref();
            let earlier = old.and_then(|old| {
                let state = old.state.as_ref().filter(|s| s.terminated.is_some());
                state.filter(|_| old.container_id.as_ref() != id).or(old.last_state.as_ref())
            });
            earlier.cloned().unwrap_or_default()
        }
    });
    status
}

/// Returns the resources that a running container has. If they are not known, for example after a restart of the
/// kubelet, these are the last published ones. `None` for a container that does not run: it will start with the
/// allocated resources.
fn actual_resources(
    input: &Input<'_>,
    current: &ContainerStatus,
    old: Option<&ApiStatus>,
) -> Option<ResourceRequirements> {
    if current.state != ContainerState::Running {
        return None;
    }
    let before = || {
        let old = old.filter(|old| old.container_id.as_deref() == Some(&input.container_id(current)))?;
        old.state.as_ref()?.running.as_ref()?;
        old.resources.clone()
    };
    input.actuated.get(&current.id).cloned().or_else(before)
}

fn state(input: &Input<'_>, status: &ContainerStatus) -> ApiState {
    match status.state {
        ContainerState::Created => waiting("", ""),
        ContainerState::Running => ApiState {
            running: Some(ContainerStateRunning { started_at: status.started_at.map(whole_seconds) }),
            ..ApiState::default()
        },
        ContainerState::Exited => {
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let message = input.messages.get(&status.id).map_or(status.message.as_str(), String::as_str);
            let terminated = ContainerStateTerminated {
                exit_code: status.exit_code.unwrap_or(LOST_EXIT_CODE),
                reason: text(&status.reason),
                message: text(message),
                started_at: status.started_at.or(Some(status.created_at)).map(whole_seconds),
                finished_at: status.finished_at.map(whole_seconds),
                container_id: Some(input.container_id(status)),
                signal: None,
            };
            ApiState { terminated: Some(terminated), ..ApiState::default() }
        }
    }
}

fn volume_mounts(container: &Container, can: bool) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref()?;
    let status = |mount: &k8s_openapi::api::core::v1::VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: (mount.read_only == Some(true)).then(|| {
            // A mount that cannot be read-only recursively was refused before the container's start.
            if recursive_read_only(mount, can).unwrap_or(false) { "Enabled" } else { "Disabled" }.to_owned()
        }),
        ..VolumeMountStatus::default()
    };
    Some(mounts.iter().map(status).collect())
}

/// Sets `started` and `ready` from the results of the probes.
fn probed(
    input: &Input<'_>,
    kind: ContainerKind,
    container: &Container,
    old: Option<&ApiStatus>,
    status: &mut ApiStatus,
) {
    if kind == ContainerKind::Ephemeral {
        return;
    }
    let current = newest(input.runtime, &container.name).filter(|s| s.state == ContainerState::Running);
    // A container that ran before this kubelet started keeps its earlier values until it is probed.
    let before = old.filter(|old| {
        current.is_some_and(|c| c.started_at.is_some_and(|at| at < input.kubelet_started))
            && old.container_id == status.container_id
    });
    let started = current.is_some_and(|c| match input.probes.startup.get(&c.id) {
        Some(result) => result == ProbeResult::Success,
        None => container.startup_probe.is_none() || before.is_some_and(|old| old.started == Some(true)),
    });
    status.started = Some(started);
    if kind == ContainerKind::Init && !pod::is_sidecar(container) {
        let end = status.state.as_ref().and_then(|s| s.terminated.as_ref());
        status.ready = end.is_some_and(|end| end.exit_code == 0);
        return;
    }
    status.ready = started
        && current.is_some_and(|c| match input.probes.readiness.get(&c.id) {
            Some(result) => result == ProbeResult::Success,
            None => container.readiness_probe.is_none() || before.is_some_and(|old| old.ready),
        });
}

/// Cuts messages so that their total stays within the limit. Upstream cuts those of terminated containers alone;
/// but a waiting container may have a message, too, with the output of a hook.
pub fn limit_messages(lists: &mut [&mut Vec<ApiStatus>]) {
    let count: usize = lists.iter().map(|list| list.len()).sum();
    let limit = MAX_MESSAGES / count.max(1);
    for status in lists.iter_mut().flat_map(|list| list.iter_mut()) {
        for state in [&mut status.state, &mut status.last_state] {
            let Some(state) = state else { continue };
            let ended = state.terminated.as_mut().and_then(|t| t.message.as_mut());
            let waiting = state.waiting.as_mut().and_then(|w| w.message.as_mut());
            for message in ended.into_iter().chain(waiting) {
                message.truncate(message.floor_char_boundary(limit));
            }
        }
    }
}

/// Marks containers as terminated once the pod has ended: every container whose turn to start had come has an end,
/// and one without an end is lost.
pub fn end_all(pod: &Pod, main: &mut [ApiStatus], init: &mut [ApiStatus]) {
    let message = "The container could not be located when the pod was terminated";
    let terminated = |s: &ApiStatus| s.state.as_ref().is_some_and(|s| s.terminated.is_some());
    let ran = |s: &ApiStatus| {
        let ran = |state: &Option<ApiState>| {
            state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some())
        };
        ran(&s.state) || ran(&s.last_state)
    };
    let initialized = main.iter().any(ran) || init_is_done(pod, init);
    // The turn of init containers after the last one that ran never came; that of the first one always did.
    let started = init.iter().rposition(ran).map_or(1, |at| at + 1);
    let main = main.iter_mut().filter(|_| initialized);
    for status in main.chain(init.iter_mut().take(started)).filter(|s| !terminated(s)) {
        status.state = Some(ended(LOST_EXIT_CODE, LOST, message));
        status.ready = false;
        status.started = Some(false);
    }
}

/// Returns whether the last init container has succeeded, or has started if it is a sidecar.
fn init_is_done(pod: &Pod, init: &[ApiStatus]) -> bool {
    let Some(last) = pod::init_containers(pod).last() else { return true };
    let Some(status) = init.iter().find(|s| s.name == last.name) else { return false };
    if pod::is_sidecar(last) {
        let runs = status.state.as_ref().is_some_and(|s| s.running.is_some());
        return runs && status.started == Some(true);
    }
    let ends =
        [&status.state, &status.last_state].into_iter().flatten().filter_map(|s| s.terminated.as_ref());
    ends.map(|end| end.exit_code).any(|code| code == 0)
}

/// Termination messages by container id.
pub type Messages = BTreeMap<String, String>;
