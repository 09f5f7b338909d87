//! Converts a pod's spec to the configuration of its sandbox and its containers.

pub mod dns;
pub mod downward;
pub mod env;
pub mod expansion;
pub mod mounts;
mod sandbox;
pub mod security;
pub mod services;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::kind::Kind;

pub use sandbox::{host_ports, sandbox_config};

use crate::config::Config;
use crate::labels;
use crate::pod::{self, ContainerKind};
use crate::qos;
use crate::resources::container_resources;
use crate::runtime::{ContainerConfig, Image, Mount, PidMode};
use expansion::expand_all;

/// The inputs of a container's configuration, beside pod and container.
pub struct Parts {
    pub restart_count: u32,
    pub image: Image,
    pub env: BTreeMap<String, String>,
    pub mounts: Vec<Mount>,
    /// The machine's memory, in bytes.
    pub memory_capacity: i64,
    /// The `oom_score_adj` of this process.
    pub own_oom_score_adj: i32,
    /// The runtime's id of the container whose processes an ephemeral container sees.
    pub target: Option<String>,
}

/// Returns the configuration of one container. The error text is shown with CreateContainerConfigError.
pub fn container_config(
    config: &Config,
    pod: &Pod,
    kind: ContainerKind,
    container: &Container,
    parts: Parts,
) -> Result<ContainerConfig, String> {
    let Parts { restart_count, image, env, mounts, memory_capacity, own_oom_score_adj, target } = parts;
    if let Some(device) = container.volume_devices.iter().flatten().next() {
        return Err(format!(
            "volume {:?} cannot be a block device: block volumes are not supported",
            device.name
        ));
    }
    let expanded =
        |list: &Option<Vec<String>>| expand_all(list.as_deref().unwrap_or_default(), |name| env.get(name));
    let spec = pod::spec(pod);
    let pid_mode = if spec.host_pid == Some(true) {
        PidMode::Host
    } else if spec.share_process_namespace == Some(true) {
        PidMode::Pod
    } else {
        target.map_or(PidMode::Container, PidMode::Target)
    };
    let log_dir = config.dirs().pod_logs_dir(pod.namespace(), pod.name(), pod.uid());
    let mut resources = container_resources(pod, container);
    if kind == ContainerKind::Ephemeral {
        // An ephemeral container has no resources of its own, and uses the pod's.
        resources = crate::runtime::Resources { cpu_shares: resources.cpu_shares, ..Default::default() };
    }
    let mut made = ContainerConfig {
        name: container.name.clone(),
        attempt: restart_count,
        image: image.id.clone(),
        image_name: container.image.clone().unwrap_or_default(),
        command: expanded(&container.command)?,
        args: expanded(&container.args)?,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts,
        labels: labels::container_labels(pod, container),
        annotations: labels::container_annotations(pod, container, restart_count),
        log_path: log_dir.join(&container.name).join(format!("{restart_count}.log")),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        resources,
        oom_score_adj: Some(qos::oom_score_adj(pod, container, memory_capacity, own_oom_score_adj)),
        pid_mode,
        stop_signal: container.lifecycle.as_ref().and_then(|l| l.stop_signal.clone()),
        ..ContainerConfig::default()
    };
    let root = config.data_dir.join("seccomp");
    let seccomp = security::Seccomp { root: &root, by_default: config.seccomp_default };
    security::apply(&mut made, pod, container, &image, seccomp)?;
    made.env = env.into_iter().collect();
    Ok(made)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_does_not_start_without_its_block_device() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c", "volumeDevices": [{"name": "raw", "devicePath": "/dev/x"}]}]}}))
        .unwrap();
        let config = Config::new("node", std::net::IpAddr::from([192, 0, 2, 1]), "/nowhere");
        let made = |container: &Container| {
            let parts = Parts {
                restart_count: 0,
                image: Image::default(),
                env: BTreeMap::new(),
                mounts: Vec::new(),
                memory_capacity: 0,
                own_oom_score_adj: -999,
                target: None,
            };
            container_config(&config, &pod, ContainerKind::Main, container, parts).map(|made| made.name)
        };
        let mut container = pod::spec(&pod).containers[0].clone();
        assert_eq!(
            made(&container).unwrap_err(),
            "volume \"raw\" cannot be a block device: block volumes are not supported"
        );
        container.volume_devices = None;
        assert_eq!(made(&container).unwrap(), "c");
    }
}
