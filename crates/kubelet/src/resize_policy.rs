//! Decides which containers are restarted for the resources that are allocated to their pod.
//!
//! A resource whose `resizePolicy` requires a restart is never changed in place: the container keeps what it was
//! started with. An annotation of the container in the runtime records that, so that a kubelet that has just
//! started knows it, too. Source: KEP-1287.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use crate::compute_actions::{ends_without_sandbox, newest};
use crate::labels;
use crate::pod;
use crate::resources::{amount, container_resources};
use crate::runtime::{ContainerState, ContainerStatus, PodRuntimeStatus};

/// The resources with which a container was started, as far as a policy can require a restart.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    cpu_shares: Option<u64>,
    cpu_quota: Option<i64>,
    memory_limit: Option<i64>,
    /// The memory request, which no cgroup holds.
    memory_request: Option<i64>,
}

impl Started {
    fn of(pod: &Pod, container: &Container) -> Self {
        let limits = container_resources(pod, container);
        let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        Self {
            cpu_shares: limits.cpu_shares,
            cpu_quota: limits.cpu_quota,
            memory_limit: limits.memory_limit,
            memory_request: amount(requests, "memory"),
        }
    }
}

fn restarts_for(container: &Container, resource: &str) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
}

/// Returns the annotation of a new container; `None` if all resources are changed in place.
pub fn annotation(pod: &Pod, container: &Container) -> Option<String> {
    let restarts = restarts_for(container, "cpu") || restarts_for(container, "memory");
    restarts.then(|| serde_json::to_string(&Started::of(pod, container)).ok()).flatten()
}

/// Returns whether this running container has other resources than the allocated ones, and needs a restart for them. A
/// container without the annotation does not.
fn needs_restart(pod: &Pod, container: &Container, status: &ContainerStatus) -> bool {
    let annotation = status.annotations.get(labels::CONTAINER_RESOURCES);
    let Some(has) = annotation.and_then(|text| serde_json::from_str::<Started>(text).ok()) else {
        return false;
    };
    let wants = Started::of(pod, container);
    let cpu = (has.cpu_shares, has.cpu_quota) != (wants.cpu_shares, wants.cpu_quota);
    let memory = (has.memory_limit, has.memory_request) != (wants.memory_limit, wants.memory_request);
    cpu && restarts_for(container, "cpu") || memory && restarts_for(container, "memory")
}

/// Returns the ids of the containers to replace. These are the running ones with earlier resources that need a
/// restart. Of those that were asked to stop for the resize (as `runtime` lists them), these are the ended ones
/// without a successor. Init containers that run to completion are not restarted.
pub fn to_replace(pod: &Pod, runtime: &PodRuntimeStatus) -> BTreeSet<String> {
    if ends_without_sandbox(pod, runtime) {
        return BTreeSet::new();
    }
    let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
    let lasting = sidecars.chain(&pod::spec(pod).containers);
    let replaced = lasting.filter_map(|container| {
        let status = newest(runtime, &container.name)?;
        let is_replaced = match status.state {
            ContainerState::Running => needs_restart(pod, container, status),
            ContainerState::Exited => runtime.is_replaced(status),
            ContainerState::Created => false,
        };
        is_replaced.then(|| status.id.clone())
    });
    replaced.collect()
}

#[cfg(test)]
mod tests {
    use knarr_api::kind::Kind;
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::{PodSandboxStatus, SandboxState};

    /// A pod with one container, with these requests and limits, whose memory is not changed in place.
    fn pod(requests: Value, limits: Value) -> Pod {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": requests, "limits": limits},
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                {"resourceName": "memory", "restartPolicy": "RestartContainer"}]});
        Pod::decode(json!({"spec": {"containers": [container]}}).to_string().as_bytes()).unwrap()
    }

    /// The pod's container, started with the resources of `started`.
    fn status(started: &Pod, state: ContainerState) -> ContainerStatus {
        let annotation = annotation(started, &pod::spec(started).containers[0]);
        ContainerStatus {
            id: "c-1".into(),
            sandbox_id: "s0".into(),
            name: "c".into(),
            attempt: 0,
            state,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code: (state == ContainerState::Exited).then_some(0),
            signal: None,
            reason: String::new(),
            message: String::new(),
            image: "i".into(),
            image_id: String::new(),
            labels: Default::default(),
            annotations: annotation
                .map(|a| (labels::CONTAINER_RESOURCES.to_owned(), a))
                .into_iter()
                .collect(),
            log_path: Default::default(),
            user: None,
        }
    }

    fn gone() -> PodSandboxStatus {
        PodSandboxStatus {
            id: "s0".into(),
            namespace: "default".into(),
            name: "web".into(),
            uid: "u".into(),
            attempt: 0,
            state: SandboxState::NotReady,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            ips: Vec::new(),
            labels: Default::default(),
            annotations: Default::default(),
            host_network: false,
            runtime_handler: String::new(),
        }
    }

    #[test]
    fn what_a_policy_asks_a_restart_for() {
        let old = pod(json!({"cpu": "1", "memory": "1Mi"}), json!({"memory": "2Mi"}));
        for (new, expected) in [
            (old.clone(), false),
            (pod(json!({"cpu": "1", "memory": "1024Ki"}), json!({"memory": "2Mi"})), false),
            (pod(json!({"cpu": "2", "memory": "1Mi"}), json!({"cpu": "2", "memory": "2Mi"})), false),
            (pod(json!({"cpu": "1", "memory": "1Mi"}), json!({"memory": "3Mi"})), true),
            (pod(json!({"cpu": "1", "memory": "2Mi"}), json!({"memory": "2Mi"})), true),
            (pod(json!({"cpu": "2", "memory": "1Mi"}), json!({"memory": "1Mi"})), true),
        ] {
            let container = &pod::spec(&new).containers[0];
            let found = needs_restart(&new, container, &status(&old, ContainerState::Running));
            assert_eq!(found, expected, "{:?}", container.resources);
        }
        let mut in_place = old.clone();
        in_place.spec.as_mut().unwrap().containers[0].resize_policy = None;
        assert_eq!(annotation(&in_place, &pod::spec(&in_place).containers[0]), None);
        let unknown =
            ContainerStatus { annotations: Default::default(), ..status(&old, ContainerState::Running) };
        let new = pod(json!({}), json!({}));
        assert!(!needs_restart(&new, &pod::spec(&new).containers[0], &unknown));
    }

    #[test]
    fn what_was_stopped_is_replaced_if_it_was_asked_to() {
        let old = pod(json!({"memory": "1Mi"}), json!({}));
        let new = pod(json!({"memory": "2Mi"}), json!({}));
        let id = || BTreeSet::from(["c-1".to_owned()]);
        for (state, recorded, expected) in [
            (ContainerState::Running, BTreeSet::new(), id()),
            (ContainerState::Running, id(), id()),
            (ContainerState::Exited, id(), id()),
            // The container ended of itself.
            (ContainerState::Exited, BTreeSet::new(), BTreeSet::new()),
            (ContainerState::Created, id(), BTreeSet::new()),
        ] {
            let mut runtime = PodRuntimeStatus {
                containers: vec![status(&old, state)],
                replaced: recorded,
                ..PodRuntimeStatus::default()
            };
            assert_eq!(to_replace(&new, &runtime), expected, "{state:?}");
            // The sandbox is gone, or another one is needed.
            runtime.sandboxes = vec![gone()];
            let mut never = new.clone();
            never.spec.as_mut().unwrap().restart_policy = Some("Never".into());
            assert_eq!(to_replace(&new, &runtime), expected, "{state:?}");
            assert_eq!(to_replace(&never, &runtime), BTreeSet::new(), "{state:?}");
        }
        // The resize was reverted before the stop.
        let runtime = PodRuntimeStatus {
            containers: vec![status(&old, ContainerState::Running)],
            replaced: id(),
            ..PodRuntimeStatus::default()
        };
        assert_eq!(to_replace(&old, &runtime), BTreeSet::new());
    }
}
