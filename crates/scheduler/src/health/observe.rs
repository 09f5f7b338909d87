//! Derives from a pod's status whether it started on its node or failed to. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// Reasons of waiting containers for which the node, or something it depends on, may be the cause.
const NODE_REASONS: [&str; 3] = ["CreateContainerError", "RunContainerError", "ImageInspectError"];
/// Reasons of waiting containers where the image may be the cause: all pods with the image count as one owner.
const IMAGE_REASONS: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];
/// Reasons of pods that failed before they started, but not because of a fault of the node.
const ORDERLY: [&str; 4] = ["NodeShutdown", "Terminated", "Shutdown", "Preempting"];

/// The outcome of a pod's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Not decided yet.
    Open,
    Started,
    Failed,
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|s| s.init_container_statuses.as_deref()).unwrap_or_default();
    init.iter().chain(status.and_then(|s| s.container_statuses.as_deref()).unwrap_or_default())
}

/// The container's image as written in the pod's spec.
fn image<'a>(pod: &'a Pod, container: &'a ContainerStatus) -> &'a str {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let mut all = spec.map(|s| s.containers.as_slice()).unwrap_or_default().iter().chain(init);
    let named = all.find(|c| c.name == container.name).and_then(|c| c.image.as_deref());
    named.unwrap_or(&container.image)
}

fn has_run(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    let ended = |s: Option<&k8s_openapi::api::core::v1::ContainerState>| {
        s.and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.started_at.is_some())
    };
    status.restart_count > 0
        || state.is_some_and(|s| s.running.is_some())
        || ended(state)
        || ended(status.last_state.as_ref())
}

fn waits_for<'a>(pod: &'a Pod, reasons: &'a [&'a str]) -> Option<&'a ContainerStatus> {
    containers(pod).find(|c| {
        let waiting = c.state.as_ref().and_then(|s| s.waiting.as_ref());
        waiting.and_then(|w| w.reason.as_deref()).is_some_and(|r| reasons.contains(&r))
    })
}

/// Returns whether the pod started on its node, as far as its status shows.
pub fn start(pod: &Pod) -> Start {
    let status = pod.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
    let reason = status.and_then(|s| s.reason.as_deref()).unwrap_or_default();
    if phase == "Running" || phase == "Succeeded" || containers(pod).any(has_run) {
        return Start::Started;
    }
    let failed = phase == "Failed" && !ORDERLY.contains(&reason);
    if failed || waits_for(pod, &NODE_REASONS).is_some() || waits_for(pod, &IMAGE_REASONS).is_some() {
        return Start::Failed;
    }
    Start::Open
}

/// The owner of the pod: its controller, without the part of the name that changes with each rollout or run.
pub fn owner(pod: &Pod) -> String {
    let meta = &pod.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let controller = meta.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    let Some(controller) = controller else {
        return format!("{namespace}/Pod/{}", meta.name.as_deref().unwrap_or_default());
    };
    let (kind, name) = (controller.kind.as_str(), controller.name.as_str());
    let hash = meta.labels.as_ref().and_then(|l| l.get("pod-template-hash"));
    let name = match kind {
        "ReplicaSet" => hash.and_then(|h| name.strip_suffix(h.as_str())).unwrap_or(name),
        "Job" => name.trim_end_matches(|c: char| c.is_ascii_digit()),
        _ => name,
    };
    format!("{namespace}/{kind}/{}", name.trim_end_matches('-'))
}

/// What a failure is attributed to: the image if it cannot be pulled, the owner otherwise.
pub fn suspect(pod: &Pod) -> String {
    match waits_for(pod, &IMAGE_REASONS) {
        Some(container) => format!("image:{}", image(pod, container)),
        None => owner(pod),
    }
}

/// Returns whether a DaemonSet controls the pod.
pub fn is_of_daemon_set(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|o| o.controller == Some(true) && o.kind == "DaemonSet")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::testing::object;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        object(json!({"metadata": {"name": "p", "namespace": "ns"}, "status": status}))
    }

    fn container(state: Value) -> Value {
        let status = json!({"name": "c", "image": "web:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": state});
        json!({"phase": "Pending", "containerStatuses": [status]})
    }

    #[test]
    fn starts_are_told_from_failures() {
        let waiting = |reason: &str| container(json!({"waiting": {"reason": reason}}));
        let crashed = json!({"terminated": {"exitCode": 1, "startedAt": "2026-01-01T00:00:00Z"}});
        let table = [
            (json!({}), Start::Open),
            (waiting("ContainerCreating"), Start::Open),
            (waiting("CreateContainerConfigError"), Start::Open),
            (waiting("CreateContainerError"), Start::Failed),
            (waiting("ImagePullBackOff"), Start::Failed),
            (container(json!({"running": {}})), Start::Started),
            (container(crashed), Start::Started),
            (json!({"phase": "Failed", "reason": "OutOfcpu"}), Start::Failed),
            (json!({"phase": "Failed", "reason": "NodeShutdown"}), Start::Open),
            (json!({"phase": "Succeeded"}), Start::Started),
        ];
        for (status, expected) in table {
            assert_eq!(start(&pod(status.clone())), expected, "{status}");
        }
    }

    #[test]
    fn rollouts_and_runs_of_one_workload_are_one_owner() {
        let owned = |kind: &str, name: &str| -> Pod {
            let reference =
                json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", "controller": true});
            object(
                json!({"metadata": {"name": "p", "namespace": "ns", "labels": {"pod-template-hash": "5d9"},
                "ownerReferences": [reference]}}),
            )
        };
        let table = [
            (owned("ReplicaSet", "web-5d9"), "ns/ReplicaSet/web"),
            (owned("Job", "nightly-29123456"), "ns/Job/nightly"),
            (owned("StatefulSet", "db"), "ns/StatefulSet/db"),
            (pod(json!({})), "ns/Pod/p"),
        ];
        for (pod, expected) in table {
            assert_eq!(owner(&pod), expected);
        }
        let waiting = container(json!({"waiting": {"reason": "ErrImagePull"}}));
        assert_eq!(suspect(&pod(waiting)), "image:web:1");
        assert!(is_of_daemon_set(&owned("DaemonSet", "d")) && !is_of_daemon_set(&owned("Job", "d")));
    }
}
