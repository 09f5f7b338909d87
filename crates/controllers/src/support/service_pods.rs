//! The pods that a Service selects, and their ports.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::kind::Kind;
use knarr_apimachinery::selector::Selector;

use crate::support::pod_state::{has_ended, is_ready};

/// Returns a Service's selector; `None` if it has none, so that another client maintains its endpoints.
pub fn selector_of(service: &Service) -> Option<Selector> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    spec.selector.as_ref().filter(|s| !s.is_empty()).map(Selector::from_labels)
}

/// Returns whether the Service publishes addresses of pods that are not ready.
pub fn publishes_not_ready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses).unwrap_or(false)
}

pub fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some("None")
}

/// Returns the pod's address, unless it has none or has ended.
pub fn pod_ip(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    status.pod_ip.as_deref().filter(|ip| !ip.is_empty() && !has_ended(pod))
}

pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty())
}

pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Returns the hostname under which DNS serves the pod within the Service, if the pod asks for one.
pub fn hostname_in<'p>(pod: &'p Pod, service: &Service) -> Option<&'p str> {
    let spec = pod.spec.as_ref()?;
    let same = spec.subdomain.as_deref() == Some(service.name()) && pod.namespace() == service.namespace();
    spec.hostname.as_deref().filter(|h| same && !h.is_empty())
}

/// Returns the port number on the pod, if the target port resolves there.
pub fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let sidecars =
        spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    let mut named = ports
        .filter(|p| p.name.as_deref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == protocol);
    named.next().map(|p| p.container_port)
}

/// One resolved port, as endpoints list it. Ports are written in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub name: String,
    pub number: i32,
    pub protocol: String,
    pub app_protocol: Option<String>,
}

/// Returns the Service's ports on this pod, without named ports that the pod does not define.
pub fn ports_on(pod: &Pod, service: &Service) -> Vec<Port> {
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_ref()).into_iter().flatten();
    ports
        .filter_map(|p| {
            Some(Port {
                name: p.name.clone().unwrap_or_default(),
                number: target_port(pod, p)?,
                protocol: p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                app_protocol: p.app_protocol.clone(),
            })
        })
        .collect()
}

/// Groups the pods of a Service that can be endpoints by their ports for it.
pub fn by_ports<'p>(service: &Service, pods: &'p [std::sync::Arc<Pod>]) -> BTreeMap<Vec<Port>, Vec<&'p Pod>> {
    let mut groups: BTreeMap<Vec<Port>, Vec<&Pod>> = BTreeMap::new();
    for pod in pods.iter().filter(|p| pod_ip(p).is_some() && node_of(p).is_some()) {
        groups.entry(ports_on(pod, service)).or_default().push(pod);
    }
    groups
}

/// Returns whether a pod's change can affect endpoints.
pub fn endpoints_differ(old: &Pod, new: &Pod) -> bool {
    pod_ip(old) != pod_ip(new)
        || node_of(old) != node_of(new)
        || is_ready(old) != is_ready(new)
        || is_terminating(old) != is_terminating(new)
        || old.metadata.labels != new.metadata.labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec};

    #[test]
    fn named_ports_resolve_on_the_pod() {
        let container = Container {
            ports: Some(vec![ContainerPort {
                name: Some("http".into()),
                container_port: 8080,
                ..ContainerPort::default()
            }]),
            ..Container::default()
        };
        let pod = Pod {
            spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
            ..Pod::default()
        };
        let port = |target| ServicePort { port: 80, target_port: target, ..ServicePort::default() };
        let text = |s: &str| Some(IntOrString::String(s.into()));
        assert_eq!(target_port(&pod, &port(text("http"))), Some(8080));
        assert_eq!(target_port(&pod, &port(text("other"))), None);
        assert_eq!(target_port(&pod, &port(Some(IntOrString::Int(81)))), Some(81));
        assert_eq!(target_port(&pod, &port(None)), Some(80));
    }
}
