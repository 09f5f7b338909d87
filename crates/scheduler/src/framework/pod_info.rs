//! A pod with what scheduling computes of it once.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use knarr_api::kind::Kind;

use super::resources::{Resources, pod_non_zero_requests, pod_requests};

/// A port on the host that a pod wants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// `0.0.0.0` when the pod names none.
    pub ip: String,
    pub protocol: String,
    pub port: i32,
}

/// A pod, its requests and its host ports.
#[derive(Debug, Clone)]
pub struct PodInfo {
    pub pod: Arc<Pod>,
    pub requests: Resources,
    pub non_zero: Resources,
    pub host_ports: Vec<HostPort>,
}

impl PodInfo {
    pub fn new(pod: Arc<Pod>) -> Self {
        let (requests, non_zero) = (pod_requests(&pod), pod_non_zero_requests(&pod));
        let host_ports = host_ports(&pod);
        Self { pod, requests, non_zero, host_ports }
    }

    pub fn uid(&self) -> &str {
        self.pod.uid()
    }

    pub fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    pub fn priority(&self) -> i32 {
        self.spec().and_then(|s| s.priority).unwrap_or(0)
    }

    pub fn scheduler_name(&self) -> &str {
        self.spec().and_then(|s| s.scheduler_name.as_deref()).unwrap_or("default-scheduler")
    }
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|p| {
            let port = p.host_port.filter(|port| *port > 0)?;
            let ip = p.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned());
            let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            Some(HostPort { ip, protocol, port })
        })
        .collect()
}
