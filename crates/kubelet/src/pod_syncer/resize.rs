//! Changes in place what running containers and their pod may use, when what the pod was given has changed.
//!
//! Whether a pod is given what it wants is decided before ([`crate::allocation`]); here it is carried out.
//!
//! What was applied is remembered per container; after a restart of the server, where nothing is remembered, the
//! limits are written once more, which changes nothing. Source: KEP-1287.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use knarr_api::kind::Kind;
use serde::Serialize;

use super::{PodMemory, PodSyncer, blocking, lock};
use crate::compute_actions::{KillReason, newest};
use crate::pod;
use crate::resources::{amounts, container_resources, pod_resources};
use crate::runtime::{ContainerState, ContainerStatus, PodRuntimeStatus, Resources};
use crate::termination::Kill;

/// The exit code of what SIGKILL ends.
const KILLED: i32 = 137;

/// What a container's new limits need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    InPlace,
    Restart,
}

/// By what the container has and is to have, and by its `resizePolicy`. `had` are the requests and limits that it runs
/// with: a request of memory is in no cgroup, and may want a new start all the same.
fn change(
    container: &Container,
    had: Option<&ResourceRequirements>,
    applied: Option<&Resources>,
    wanted: &Resources,
) -> Change {
    let Some(applied) = applied else { return Change::InPlace };
    let requested =
        had.is_some_and(|had| memory_request(Some(had)) != memory_request(container.resources.as_ref()));
    let cpu = applied.cpu_shares != wanted.cpu_shares || applied.cpu_quota != wanted.cpu_quota;
    let memory = applied.memory_limit != wanted.memory_limit;
    let restarts = |resource: &str| {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
    };
    match (cpu, memory) {
        _ if cpu && restarts("cpu") || (memory || requested) && restarts("memory") => Change::Restart,
        (false, false) => Change::None,
        _ => Change::InPlace,
    }
}

fn memory_request(of: Option<&ResourceRequirements>) -> Option<i64> {
    amounts(of.and_then(|r| r.requests.as_ref())).get("memory").copied()
}

/// A container that runs to its end before the others are started.
fn runs_once(pod: &Pod, container: &Container) -> bool {
    !pod::is_sidecar(container) && pod::init_containers(pod).iter().any(|c| c.name == container.name)
}

/// The settings that lift what is no longer limited.
fn lifting(applied: Option<&Resources>, wanted: &Resources) -> Resources {
    let mut settings = wanted.clone();
    let had = |of: fn(&Resources) -> Option<i64>| applied.and_then(of).is_some_and(|n| n >= 0);
    if wanted.cpu_quota.is_none() && had(|r| r.cpu_quota) {
        settings.cpu_quota = Some(-1);
    }
    if wanted.memory_limit.is_none() && had(|r| r.memory_limit) {
        settings.memory_limit = Some(-1);
        settings.memory_swap_limit = Some(-1);
    }
    settings
}

/// What allows both: a pod's group must not be tighter than its containers' while they change.
fn widest(applied: &Resources, wanted: &Resources) -> Resources {
    let wider = |a: Option<i64>, b: Option<i64>| match (a, b) {
        (Some(a), Some(b)) if a >= 0 && b >= 0 => Some(a.max(b)),
        _ => Some(-1),
    };
    Resources {
        cpu_quota: wider(applied.cpu_quota, wanted.cpu_quota),
        memory_limit: wider(applied.memory_limit, wanted.memory_limit),
        ..wanted.clone()
    }
}

/// What events of a resize show, in upstream's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Named<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Named<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    resources: ResourceRequirements,
}

/// `Pod resize completed: {…}`, for this generation of the pod.
pub(super) fn message(what: &str, pod: &Pod, generation: i64, error: &str) -> String {
    let named = |c| -> Named<'_> {
        let container: &Container = c;
        Named { name: &container.name, resources: container.resources.clone().unwrap_or_default() }
    };
    let summary = Summary {
        init_containers: pod::init_containers(pod).iter().map(named).collect(),
        containers: pod::spec(pod).containers.iter().map(named).collect(),
        generation,
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(summary) => format!("Pod resize {what}: {summary}"),
        Err(_) => format!("Pod resize {what}"),
    }
}

impl PodSyncer {
    /// Returns whether a container was stopped to be started with its new limits.
    pub(super) async fn resize(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
        runtime: &PodRuntimeStatus,
    ) -> Result<bool, String> {
        let running = |c: &&ContainerStatus| c.state == ContainerState::Running;
        memory.applied.retain(|id, _| runtime.containers.iter().filter(running).any(|c| c.id == *id));
        memory.actuated.retain(|id, _| runtime.containers.iter().filter(running).any(|c| c.id == *id));
        let mut todo = Vec::new();
        for container in pod::init_containers(pod).iter().chain(&pod::spec(pod).containers) {
            let Some(status) = newest(runtime, &container.name).filter(running) else { continue };
            let wanted = container_resources(pod, container);
            let applied = memory.applied.get(&status.id);
            match change(container, memory.actuated.get(&status.id), applied, &wanted) {
                // What changes nothing in the cgroup, as a memory request, is there at once.
                Change::None => actuated(memory, container, &status.id),
                // What runs to its end is not begun anew.
                Change::Restart if runs_once(pod, container) => {
                    let settings = lifting(applied, &wanted);
                    todo.push((container, status, Change::InPlace, settings, wanted));
                }
                change => todo.push((container, status, change, lifting(applied, &wanted), wanted)),
            }
        }
        let of_pod = pod_resources(pod, 0);
        let other = match &memory.applied_to_pod {
            Some(had) => *had != of_pod,
            // After a restart of the server it is not known.
            None => lock(&self.allocations).in_progress(pod.uid()),
        };
        let pod_alone = todo.is_empty() && other;
        if todo.is_empty() && !pod_alone {
            return Ok(false);
        }
        let changed: Vec<_> = todo
            .iter()
            .filter(|(_, _, change, ..)| *change == Change::InPlace)
            .map(|(container, status, _, _, wanted)| (*container, *status, wanted))
            .collect();
        // What a container frees that is stopped for its new limits, the pod does not use any more.
        let restarts = todo.iter().any(|(_, _, change, ..)| *change == Change::Restart);
        self.check_shrink(pod, memory, (!restarts).then_some(&of_pod), &changed).await?;
        let before = memory.applied_to_pod.clone().unwrap_or_else(|| of_pod.clone());
        self.limit_pod(pod, widest(&before, &of_pod)).await?;
        let mut stopped = false;
        for (container, status, change, settings, wanted) in todo {
            if change == Change::Restart {
                memory.stopped_to_resize.insert(status.id.clone());
                self.stop_to_resize(pod, runtime, container, status).await?;
                stopped = true;
                continue;
            }
            self.limit_container(status, &settings).await?;
            memory.applied.insert(status.id.clone(), wanted);
            actuated(memory, container, &status.id);
        }
        self.limit_pod(pod, lifting(Some(&before), &of_pod)).await?;
        memory.applied_to_pod = Some(of_pod);
        Ok(stopped)
    }

    /// What runs of the pod. A container that was stopped for its new limits is to be started again, however it took
    /// its end: with an exit code of 0 it would be over, and perhaps its pod.
    pub(super) async fn pod_state(
        &self,
        pod: &Pod,
        memory: &mut PodMemory,
    ) -> Result<PodRuntimeStatus, String> {
        let mut runtime = self.runtime.pod_status(pod.uid()).await.map_err(|e| e.to_string())?;
        memory.stopped_to_resize.retain(|id| runtime.containers.iter().any(|c| c.id == *id));
        let mut seen: Vec<String> = Vec::new();
        for status in &mut runtime.containers {
            let is_newest = !seen.contains(&status.name);
            if is_newest && status.exit_code == Some(0) && memory.stopped_to_resize.contains(&status.id) {
                status.exit_code = Some(KILLED);
            }
            seen.push(status.name.clone());
        }
        Ok(runtime)
    }

    async fn limit_pod(&self, pod: &Arc<Pod>, resources: Resources) -> Result<(), String> {
        let (cgroups, pod) = (self.cgroups.clone(), Arc::clone(pod));
        blocking(move || cgroups.update(&pod, &resources)).await?
    }

    async fn limit_container(&self, status: &ContainerStatus, settings: &Resources) -> Result<(), String> {
        // On cgroups v1 memory and swap together may at no time be less than memory alone: grown first, shrunk last.
        if let Some(limit) = settings.memory_swap_limit {
            let first = Resources { memory_swap_limit: Some(limit), ..Resources::default() };
            if let Err(error) = self.runtime.update_container_resources(&status.id, &first).await {
                tracing::debug!(container = %status.id, %error, "the limit shrinks");
            }
        }
        self.runtime.update_container_resources(&status.id, settings).await.map_err(|e| e.to_string())
    }

    async fn stop_to_resize(
        &self,
        pod: &Arc<Pod>,
        runtime: &PodRuntimeStatus,
        container: &Container,
        status: &ContainerStatus,
    ) -> Result<(), String> {
        let pod_ip = self.pod_ips(pod, runtime).into_iter().next().unwrap_or_default();
        let message = format!("Container {} resize requires restart", container.name);
        let kill = Kill {
            id: &status.id,
            name: &container.name,
            message: &message,
            reason: KillReason::Unknown,
            grace_seconds: None,
        };
        self.terminator.kill_container(pod, &pod_ip, &kill).await.map_err(|e| e.to_string())
    }
}

/// Notes what a container has now, for its status.
fn actuated(memory: &mut PodMemory, container: &Container, id: &str) {
    memory.actuated.insert(id.to_owned(), container.resources.clone().unwrap_or_default());
}

/// Notes what a container was started with.
pub(super) fn note_start(memory: &mut PodMemory, pod: &Pod, container: &Container, id: &str) {
    memory.applied.insert(id.to_owned(), container_resources(pod, container));
    actuated(memory, container, id);
    // After a failed resize the group of a pod that runs has other limits.
    if memory.failed_resizes == 0 {
        memory.applied_to_pod.get_or_insert_with(|| pod_resources(pod, 0));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(policies: &[(&str, &str)]) -> Container {
        let policies: Vec<Value> =
            policies.iter().map(|(r, p)| json!({"resourceName": r, "restartPolicy": p})).collect();
        serde_json::from_value(json!({"name": "c", "resizePolicy": policies})).expect("a container")
    }

    fn limits(quota: Option<i64>, memory: Option<i64>) -> Resources {
        Resources {
            cpu_shares: Some(100),
            cpu_quota: quota,
            memory_limit: memory,
            memory_swap_limit: memory,
            ..Resources::default()
        }
    }

    #[test]
    fn what_a_change_needs() {
        let restart: &[(&str, &str)] = &[("cpu", "NotRequired"), ("memory", "RestartContainer")];
        let old = limits(Some(5000), Some(64));
        let table = [
            (&[][..], Some(&old), limits(Some(5000), Some(64)), Change::None),
            (&[][..], Some(&old), limits(Some(6000), Some(64)), Change::InPlace),
            (&[][..], None, limits(Some(6000), Some(64)), Change::InPlace),
            (restart, Some(&old), limits(Some(6000), Some(64)), Change::InPlace),
            (restart, Some(&old), limits(Some(5000), Some(65)), Change::Restart),
            (restart, Some(&old), limits(Some(6000), Some(65)), Change::Restart),
        ];
        for (policies, applied, wanted, expected) in table {
            let found = change(&container(policies), None, applied, &wanted);
            assert_eq!(found, expected, "{policies:?} {wanted:?}");
        }
        let had: ResourceRequirements =
            serde_json::from_value(json!({"requests": {"memory": "64"}})).unwrap();
        for (policies, expected) in [(&[][..], Change::None), (restart, Change::Restart)] {
            let mut container = container(policies);
            assert_eq!(change(&container, Some(&had), Some(&old), &old), expected, "{policies:?}");
            container.resources = Some(had.clone());
            assert_eq!(change(&container, Some(&had), Some(&old), &old), Change::None, "the same");
        }
    }

    #[test]
    fn limits_that_are_gone_are_lifted() {
        let settings = lifting(Some(&limits(Some(5000), Some(64))), &limits(None, None));
        assert_eq!(
            (settings.cpu_quota, settings.memory_limit, settings.memory_swap_limit),
            (Some(-1), Some(-1), Some(-1))
        );
        let settings = lifting(None, &limits(None, Some(7)));
        assert_eq!((settings.cpu_quota, settings.memory_limit), (None, Some(7)));
        let both = widest(&limits(Some(5000), Some(64)), &limits(Some(4000), None));
        assert_eq!((both.cpu_quota, both.memory_limit), (Some(5000), Some(-1)));
    }

    #[test]
    fn events_name_the_containers() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"generation": 3},
            "spec": {
                "initContainers": [{"name": "first"}],
                "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
            },
        }))
        .expect("a pod");
        assert_eq!(
            message("completed", &pod, 2, ""),
            "Pod resize completed: {\"initContainers\":[{\"name\":\"first\",\"resources\":{}}],\
             \"containers\":[{\"name\":\"a\",\"resources\":{\"requests\":{\"cpu\":\"1\"}}}],\"generation\":2}"
        );
        let message = message("OutOfcpu", &pod, 3, "no room");
        assert!(
            message.starts_with("Pod resize OutOfcpu: {") && message.ends_with(",\"error\":\"no room\"}")
        );
    }
}
