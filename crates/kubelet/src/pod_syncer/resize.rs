//! Resizes a pod in place: changes the limits of its running containers and its cgroup when its allocated
//! resources have changed.
//!
//! Whether the pod is allocated what its spec asks for is decided before ([`crate::allocation`]); this module
//! actuates the decision.
//!
//! The applied limits are remembered per container. After a restart of the server nothing is remembered, and the
//! same limits are written once more, which changes nothing. The limits of the pod as a whole are read from its
//! cgroup. Containers whose resize policy asks for a restart ([`crate::resize_policy`]) are stopped and started by
//! the actions of the pass, as for any other reason ([`crate::compute_actions`]). Source: KEP-1287.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use knarr_api::kind::Kind;
use serde::Serialize;

use super::retry::Retry;
use super::shrink::Limit;
use super::{PodMemory, PodSyncer, blocking, lock};
use crate::compute_actions::newest;
use crate::pod;
use crate::resize_policy::to_replace;
use crate::resources::{container_resources, pod_resources};
use crate::runtime::{ContainerState, ContainerStatus, PodRuntimeStatus, Resources};

/// Returns whether the applied limits of a container differ from the wanted ones. Memory requests are not compared, as
/// no cgroup holds them.
fn differ(applied: Option<&Resources>, wanted: &Resources) -> bool {
    applied.is_none_or(|applied| {
        applied.cpu_shares != wanted.cpu_shares
            || applied.cpu_quota != wanted.cpu_quota
            || applied.memory_limit != wanted.memory_limit
    })
}

/// Returns the wanted settings, with -1 (unlimited) for each applied limit that is not wanted any more.
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

/// Returns limits that allow both: a pod's cgroup must not be tighter than its containers' while they change.
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

/// The JSON in the message of a resize event, with upstream's order of fields.
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

/// Returns the message of a resize event, such as `Pod resize completed: {…}`, for this generation of the pod.
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
    /// Applies the allocated resources to the pod's cgroup and running containers, as far as that is possible in
    /// place. Containers that need a restart for them are replaced in the rest of the pass; until then the pod's
    /// own limits stay wide enough for what these containers have.
    pub(super) async fn resize(
        &self,
        pod: &Arc<Pod>,
        memory: &mut PodMemory,
        runtime: &PodRuntimeStatus,
    ) -> Result<(), String> {
        let running = |c: &&ContainerStatus| c.state == ContainerState::Running;
        memory.applied.retain(|id, _| runtime.containers.iter().filter(running).any(|c| c.id == *id));
        memory.actuated.retain(|id, _| runtime.containers.iter().filter(running).any(|c| c.id == *id));
        let (mut todo, mut replaces) = (Vec::new(), false);
        for container in pod::init_containers(pod).iter().chain(&pod::spec(pod).containers) {
            let Some(status) = newest(runtime, &container.name).filter(running) else { continue };
            if runtime.is_replaced(status) {
                replaces = true;
                continue;
            }
            let wanted = container_resources(pod, container);
            let applied = memory.applied.get(&status.id);
            if differ(applied, &wanted) {
                todo.push((container, status, lifting(applied, &wanted), wanted));
            } else {
                // Other changes, such as one of a memory request, have no cgroup setting: no action is needed, and
                // they are recorded as actuated.
                actuated(memory, container, &status.id);
            }
        }
        let of_pod = pod_resources(pod, 0);
        let other = match &memory.applied_to_pod {
            Some(had) => *had != of_pod,
            // After a restart of the server the applied limits are not known.
            None => replaces || lock(&self.allocations).in_progress(pod.uid()),
        };
        if todo.is_empty() && !other {
            return Ok(());
        }
        let changed: Vec<_> =
            todo.iter().map(|(container, status, _, wanted)| (*container, *status, wanted)).collect();
        let before = self.limits_in_force(pod, memory.applied_to_pod.as_ref().unwrap_or(&of_pod)).await?;
        let widest = widest(&before, &of_pod);
        // Widened first: a replaced container has room to start, even if another limit cannot be lowered.
        self.limit_pod(pod, widest.clone()).await?;
        // While a container is replaced, the pod's limit is not lowered in this pass, and the pod's usage is not
        // checked: the replaced container will free its memory.
        let shrinks =
            (!replaces).then_some(Limit { in_force: before.memory_limit.or(Some(-1)), wanted: &of_pod });
        self.check_shrink(pod, memory, shrinks, &changed).await?;
        for (container, status, settings, wanted) in todo {
            self.limit_container(status, &settings).await?;
            memory.applied.insert(status.id.clone(), wanted);
            actuated(memory, container, &status.id);
        }
        if replaces {
            memory.applied_to_pod = Some(widest);
            return Ok(());
        }
        self.limit_pod(pod, lifting(Some(&before), &of_pod)).await?;
        memory.applied_to_pod = Some(of_pod);
        Ok(())
    }

    /// Returns the runtime's state of the pod, with the ids of the containers that a resize replaces.
    pub(super) async fn pod_state(&self, pod: &Pod) -> Result<PodRuntimeStatus, String> {
        let mut runtime = self.runtime.pod_status(pod.uid()).await.map_err(|e| e.to_string())?;
        runtime.replaced = lock(&self.allocations).replaced(pod.uid());
        runtime.replaced = to_replace(pod, &runtime);
        Ok(runtime)
    }

    /// Records that the pod's resize has failed, and when it is tried again.
    pub(super) fn cannot_resize(&self, pod: &Pod, memory: &mut PodMemory, error: &str) {
        tracing::warn!(pod = %pod::format(pod), error, "cannot resize the pod");
        memory.resize_retry = Some(Retry::after(memory.resize_retry, self.clock.now()));
        self.fail_resize(pod, error);
    }

    /// Returns the limits of the pod's cgroup. These may be neither the last allocated ones nor the ones before,
    /// as a resize may have stopped halfway. `known` supplies what the cgroup does not show.
    ///
    /// Source: upstream's `doPodResizeAction` reads the pod's cgroup, too.
    async fn limits_in_force(&self, pod: &Arc<Pod>, known: &Resources) -> Result<Resources, String> {
        let (cgroups, of_pod) = (self.cgroups.clone(), Arc::clone(pod));
        let shown = blocking(move || cgroups.limits(&of_pod)).await?;
        Ok(Resources {
            cpu_quota: shown.cpu_quota.or(known.cpu_quota),
            memory_limit: shown.memory_limit.or(known.memory_limit),
            ..known.clone()
        })
    }

    async fn limit_pod(&self, pod: &Arc<Pod>, resources: Resources) -> Result<(), String> {
        let (cgroups, pod) = (self.cgroups.clone(), Arc::clone(pod));
        blocking(move || cgroups.update(&pod, &resources)).await?
    }

    async fn limit_container(&self, status: &ContainerStatus, settings: &Resources) -> Result<(), String> {
        // On cgroups v1 the limit of memory and swap together may at no time be below the limit of memory alone:
        // it is raised first or lowered last. The first write fails where the limit becomes lower, and the second
        // one sets both.
        if let Some(limit) = settings.memory_swap_limit {
            let first = Resources { memory_swap_limit: Some(limit), ..Resources::default() };
            if let Err(error) = self.runtime.update_container_resources(&status.id, &first).await {
                tracing::debug!(container = %status.id, %error, "the swap limit is lowered last");
            }
        }
        self.runtime.update_container_resources(&status.id, settings).await.map_err(|e| e.to_string())
    }
}

/// Remembers the resources that a container has now, for its status.
fn actuated(memory: &mut PodMemory, container: &Container, id: &str) {
    memory.actuated.insert(id.to_owned(), container.resources.clone().unwrap_or_default());
}

/// Remembers the resources that a container was started with.
pub(super) fn note_start(memory: &mut PodMemory, pod: &Pod, container: &Container, id: &str) {
    memory.applied.insert(id.to_owned(), container_resources(pod, container));
    actuated(memory, container, id);
    // After a failed resize, the cgroup of a running pod has other limits than the allocated ones.
    if memory.resize_retry.is_none() {
        memory.applied_to_pod.get_or_insert_with(|| pod_resources(pod, 0));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
    fn which_limits_are_changed() {
        let old = limits(Some(5000), Some(64));
        assert!(differ(None, &old));
        assert!(!differ(Some(&old), &old));
        for wanted in [limits(Some(6000), Some(64)), limits(Some(5000), Some(65)), limits(None, None)] {
            assert!(differ(Some(&old), &wanted), "{wanted:?}");
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
