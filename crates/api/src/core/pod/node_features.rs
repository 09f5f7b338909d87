//! The features that nodes declare in `status.declaredFeatures`, and which of them a pod or an update of one
//! needs.
//!
//! Source: `k8s.io/component-helpers/nodedeclaredfeatures`, KEP-5328.

use k8s_openapi::api::core::v1::{Container, Node, PodSpec};

pub const EXTEND_WEBSOCKETS_TO_KUBELET: &str = "ExtendWebSocketsToKubelet";
pub const POD_LEVEL_RESIZE: &str = "InPlacePodLevelResourcesVerticalScaling";
pub const INIT_CONTAINER_RESIZE: &str = "InPlacePodVerticalScalingInitContainers";
const MEMORY_VOLUME_RESIZE: &str = "InPlacePodVerticalScalingMemoryBackedVolumes";
pub const RESTART_ALL_CONTAINERS: &str = "RestartAllContainersOnContainerExits";
const USER_NAMESPACES_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";
const BIND_MOUNT_OPTIONS: &str = "VolumeBindMountOptions";

/// A feature that nodes declare.
struct Feature {
    name: &'static str,
    for_pod: fn(&PodSpec) -> bool,
    /// Whether an update needs it: the old spec and the new one.
    for_update: fn(&PodSpec, &PodSpec) -> bool,
}

/// Sorted by name.
const FEATURES: [Feature; 6] = [
    Feature {
        name: POD_LEVEL_RESIZE,
        for_pod: |_| false,
        for_update: |old, new| old.resources != new.resources,
    },
    Feature { name: INIT_CONTAINER_RESIZE, for_pod: |_| false, for_update: resizes_init_containers },
    Feature { name: MEMORY_VOLUME_RESIZE, for_pod: |_| false, for_update: resizes_memory_volumes },
    Feature { name: RESTART_ALL_CONTAINERS, for_pod: restarts_all_containers, for_update: |_, _| false },
    Feature {
        name: USER_NAMESPACES_HOST_NETWORK,
        for_pod: |spec| spec.host_network == Some(true) && spec.host_users == Some(false),
        for_update: |_, _| false,
    },
    Feature { name: BIND_MOUNT_OPTIONS, for_pod: has_mount_options, for_update: |_, _| false },
];

/// Returns the features that a node needs to run the pod, sorted by name.
pub fn for_pod(spec: &PodSpec) -> Vec<&'static str> {
    FEATURES.iter().filter(|f| (f.for_pod)(spec)).map(|f| f.name).collect()
}

/// Returns the features that a node needs for this update of the pod, sorted by name.
pub fn for_update(old: &PodSpec, new: &PodSpec) -> Vec<&'static str> {
    FEATURES.iter().filter(|f| (f.for_update)(old, new)).map(|f| f.name).collect()
}

/// Returns the features that the node does not declare.
pub fn lacking(features: &[&'static str], node: &Node) -> Vec<&'static str> {
    let declared = node.status.as_ref().and_then(|s| s.declared_features.as_deref()).unwrap_or_default();
    features.iter().copied().filter(|name| !declared.iter().any(|d| d == name)).collect()
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers.iter().chain(spec.init_containers.iter().flatten())
}

/// Returns whether a restart rule of the container restarts all containers of the pod in place.
pub fn restarts_all(container: &Container) -> bool {
    container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers")
}

fn restarts_all_containers(spec: &PodSpec) -> bool {
    containers(spec).any(restarts_all)
}

fn has_mount_options(spec: &PodSpec) -> bool {
    let of_pod = containers(spec).flat_map(|c| c.volume_mounts.iter().flatten());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let mounts = of_pod.chain(ephemeral.flat_map(|c| c.volume_mounts.iter().flatten()));
    { mounts }.any(|m| m.bind_mount_options.as_ref().is_some_and(|o| !o.is_empty()))
}

fn resizes_init_containers(old: &PodSpec, new: &PodSpec) -> bool {
    let pairs = old.init_containers.iter().flatten().zip(new.init_containers.iter().flatten());
    { pairs }.any(|(o, n)| o.restart_policy.as_deref() != Some("Always") && o.resources != n.resources)
}

fn resizes_memory_volumes(old: &PodSpec, new: &PodSpec) -> bool {
    let (old, new) = (old.volumes.as_deref().unwrap_or_default(), new.volumes.as_deref().unwrap_or_default());
    old.len() == new.len()
        && old.iter().zip(new).any(|(old, new)| {
            let (Some(was), Some(is)) = (&old.empty_dir, &new.empty_dir) else { return false };
            let (Some(before), Some(after)) = (&was.size_limit, &is.size_limit) else { return false };
            old.name == new.name && is.medium.as_deref() == Some("Memory") && before != after
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(value: Value) -> PodSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_pods_need() {
        let rule = |action: &str| json!([{"name": "a", "restartPolicyRules": [{"action": action}]}]);
        for (pod, expected) in [
            (json!({"containers": [{"name": "a"}]}), vec![]),
            (json!({"containers": rule("Restart")}), vec![]),
            (json!({"containers": rule("RestartAllContainers")}), vec![RESTART_ALL_CONTAINERS]),
            (
                json!({"containers": [], "initContainers": rule("RestartAllContainers"), "hostNetwork": true,
                    "hostUsers": false}),
                vec![RESTART_ALL_CONTAINERS, USER_NAMESPACES_HOST_NETWORK],
            ),
            (json!({"containers": [], "hostUsers": false}), vec![]),
            (
                json!({"containers": [{"name": "a", "volumeMounts":
                    [{"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec"]}]}]}),
                vec![BIND_MOUNT_OPTIONS],
            ),
        ] {
            assert_eq!(for_pod(&spec(pod.clone())), expected, "{pod}");
        }
    }

    #[test]
    fn what_changes_need() {
        let pod = |init: &str, sidecar: &str, of_pod: &str, size: &str| {
            let cpu = |n: &str| json!({"requests": {"cpu": n}});
            spec(json!({"containers": [], "resources": cpu(of_pod), "initContainers": [
                {"name": "a", "resources": cpu(init)},
                {"name": "b", "resources": cpu(sidecar), "restartPolicy": "Always"}],
                "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]}))
        };
        let before = pod("1", "1", "4", "1Mi");
        for (after, expected) in [
            (pod("1", "1", "4", "1Mi"), vec![]),
            (pod("1", "2", "4", "1Mi"), vec![]),
            (pod("2", "1", "4", "1Mi"), vec![INIT_CONTAINER_RESIZE]),
            (pod("2", "1", "5", "1Mi"), vec![POD_LEVEL_RESIZE, INIT_CONTAINER_RESIZE]),
            (pod("1", "1", "4", "2Mi"), vec![MEMORY_VOLUME_RESIZE]),
        ] {
            assert_eq!(for_update(&before, &after), expected);
        }
    }

    #[test]
    fn what_a_node_lacks() {
        let node: Node =
            serde_json::from_value(json!({"status": {"declaredFeatures": ["Other", POD_LEVEL_RESIZE]}}))
                .unwrap();
        assert_eq!(lacking(&[POD_LEVEL_RESIZE, RESTART_ALL_CONTAINERS], &node), [RESTART_ALL_CONTAINERS]);
        assert_eq!(lacking(&[POD_LEVEL_RESIZE], &Node::default()), [POD_LEVEL_RESIZE]);
    }
}
