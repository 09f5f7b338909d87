//! The configuration of a pod's sandbox.

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::kind::Kind;

use super::dns::kernel_hostname;
use crate::config::Config;
use crate::labels;
use crate::pod;
use crate::pod_network::{PortMapping, Protocol};
use crate::qos;
use crate::resources::pod_cgroup;
use crate::runtime::{DnsConfig, PodSandboxConfig};
use crate::se_linux;
use crate::sysctls::normalized;

pub fn sandbox_config(
    config: &Config,
    pod: &Pod,
    attempt: u32,
    dns: DnsConfig,
) -> Result<PodSandboxConfig, String> {
    let spec = pod::spec(pod);
    let sysctls = spec.security_context.iter().flat_map(|s| s.sysctls.iter().flatten());
    Ok(PodSandboxConfig {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        attempt,
        hostname: kernel_hostname(pod, &config.cluster_domain)?,
        log_directory: config.dirs().pod_logs_dir(pod.namespace(), pod.name(), pod.uid()),
        dns: Some(dns),
        port_mappings: if pod::is_host_network(pod) { Vec::new() } else { host_ports(pod) },
        labels: labels::pod_labels(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        host_network: pod::is_host_network(pod),
        host_ipc: spec.host_ipc == Some(true),
        host_pid: spec.host_pid == Some(true),
        shared_pid: spec.share_process_namespace == Some(true),
        privileged: has_privileged(pod),
        user: super::security::user(pod, &Container::default())?,
        se_linux: se_linux::of_pod(pod),
        runtime_handler: String::new(),
        sysctls: sysctls.map(|s| (normalized(&s.name), s.value.clone())).collect(),
        user_namespace: None,
        cgroup_parent: pod_cgroup(qos::qos_class(pod), pod.uid()),
    })
}

fn has_privileged(pod: &Pod) -> bool {
    pod::security_contexts(pod).any(|context| context.privileged == Some(true))
}

/// Returns the host ports of the pod's main containers and sidecars.
pub fn host_ports(pod: &Pod) -> Vec<PortMapping> {
    let sidecars = pod::init_containers(pod).iter().filter(|c| pod::is_sidecar(c));
    sidecars.chain(&pod::spec(pod).containers).flat_map(of_container).collect()
}

fn of_container(container: &Container) -> impl Iterator<Item = PortMapping> {
    let port = |n: i32| u16::try_from(n).ok();
    container.ports.iter().flatten().filter_map(move |p| {
        let host_port = p.host_port.and_then(port).filter(|n| *n != 0)?;
        Some(PortMapping {
            protocol: match p.protocol.as_deref() {
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                _ => Protocol::Tcp,
            },
            container_port: port(p.container_port)?,
            host_port,
            host_ip: p
                .host_ip
                .as_deref()
                .and_then(|ip| ip.parse().ok())
                .filter(|ip: &std::net::IpAddr| !ip.is_unspecified()),
        })
    })
}
