//! What simulated nodes and pods say of themselves: pure functions.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStatus, HostIP, Node,
    NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use knarr_api::kind::Kind;
use knarr_client::Patch;
use serde_json::json;

use super::Options;

/// A Ready node.
pub fn node(options: &Options, name: &str, now: Timestamp) -> Node {
    let mut labels = options.labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", "amd64"),
        ("node.kubernetes.io/instance-type", "simulated"),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    let capacity = BTreeMap::from([
        ("cpu".to_owned(), Quantity(options.cpu.clone())),
        ("memory".to_owned(), Quantity(options.memory.clone())),
        ("pods".to_owned(), Quantity(options.pods.to_string())),
    ]);
    let info = NodeSystemInfo {
        architecture: "amd64".to_owned(),
        container_runtime_version: "simulated://0".to_owned(),
        kubelet_version: concat!("v1.37.0+knarr", env!("CARGO_PKG_VERSION")).to_owned(),
        operating_system: "linux".to_owned(),
        os_image: "simulated".to_owned(),
        ..NodeSystemInfo::default()
    };
    let status = NodeStatus {
        addresses: Some(vec![NodeAddress { type_: "Hostname".to_owned(), address: name.to_owned() }]),
        allocatable: Some(capacity.clone()),
        capacity: Some(capacity),
        conditions: Some(conditions(now)),
        node_info: Some(info),
        ..NodeStatus::default()
    };
    Node {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() },
        spec: Some(NodeSpec::default()),
        status: Some(status),
    }
}

fn conditions(now: Timestamp) -> Vec<NodeCondition> {
    let condition = |type_: &str, status: &str, reason: &str, message: &str| NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    vec![
        condition(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
}

/// Brings a node that exists back to Ready.
pub fn status_patch(node: &Node) -> Patch {
    Patch::Strategic(json!({ "status": node.status }))
}

/// The status of a pod whose containers all run.
pub fn running(pod: &Pod, host: Option<&str>, ip: Option<Ipv4Addr>, now: Timestamp) -> PodStatus {
    let state = ContainerState {
        running: Some(ContainerStateRunning { started_at: Some(Time(now)) }),
        ..ContainerState::default()
    };
    PodStatus { phase: Some("Running".to_owned()), ..status(pod, host, ip, &state, true, now) }
}

/// The status of a pod whose containers have all ended well.
pub fn succeeded(pod: &Pod, host: Option<&str>, ip: Option<Ipv4Addr>, now: Timestamp) -> PodStatus {
    let started = started_at(pod).unwrap_or(now);
    let ended = ContainerStateTerminated {
        exit_code: 0,
        reason: Some("Completed".to_owned()),
        started_at: Some(Time(started)),
        finished_at: Some(Time(now)),
        ..ContainerStateTerminated::default()
    };
    let state = ContainerState { terminated: Some(ended), ..ContainerState::default() };
    PodStatus { phase: Some("Succeeded".to_owned()), ..status(pod, host, ip, &state, false, now) }
}

/// When the pod was reported to run.
pub fn started_at(pod: &Pod) -> Option<Timestamp> {
    pod.status.as_ref()?.start_time.as_ref().map(|t| t.0)
}

fn status(
    pod: &Pod,
    host: Option<&str>,
    ip: Option<Ipv4Addr>,
    state: &ContainerState,
    ready: bool,
    now: Timestamp,
) -> PodStatus {
    let value = |yes: bool| if yes { "True" } else { "False" }.to_owned();
    let condition = |type_: &str, yes: bool| PodCondition {
        type_: type_.to_owned(),
        status: value(yes),
        reason: (!yes).then(|| "PodCompleted".to_owned()),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    };
    let conditions = vec![
        condition("PodReadyToStartContainers", ready),
        condition("Initialized", true),
        condition("Ready", ready),
        condition("ContainersReady", ready),
        condition("PodScheduled", true),
    ];
    let containers = pod.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
    let statuses = containers.iter().map(|c| ContainerStatus {
        name: c.name.clone(),
        image: c.image.clone().unwrap_or_default(),
        image_id: format!("simulated://{}", c.image.as_deref().unwrap_or("")),
        container_id: Some(format!("simulated://{}-{}", pod.uid(), c.name)),
        ready,
        started: Some(ready),
        state: Some(state.clone()),
        ..ContainerStatus::default()
    });
    let (host, ip) = (host.map(str::to_owned), ip.map(|ip| ip.to_string()));
    PodStatus {
        conditions: Some(conditions),
        container_statuses: Some(statuses.collect()),
        host_ips: host.clone().map(|ip| vec![HostIP { ip }]),
        host_ip: host,
        pod_ips: ip.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip: ip,
        start_time: Some(Time(started_at(pod).unwrap_or(now))),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, PodSpec};

    #[test]
    fn a_running_pod_is_ready_with_all_its_containers() {
        let containers = ["a", "b"].map(|n| Container { name: n.into(), ..Container::default() }).to_vec();
        let pod = Pod { spec: Some(PodSpec { containers, ..PodSpec::default() }), ..Pod::default() };
        let status = running(&pod, None, Some(Ipv4Addr::new(10, 0, 0, 2)), Timestamp::UNIX_EPOCH);
        assert_eq!((status.phase.as_deref(), status.pod_ip.as_deref()), (Some("Running"), Some("10.0.0.2")));
        assert!(status.container_statuses.unwrap().iter().all(|c| c.ready));
        assert!(status.conditions.unwrap().iter().all(|c| c.status == "True"));
        let done = succeeded(&pod, None, None, Timestamp::UNIX_EPOCH);
        let ready = done.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("PodCompleted")));
    }
}
