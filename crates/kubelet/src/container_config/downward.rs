//! Fields of a pod for its containers: `fieldRef` and `resourceFieldRef`.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};

use crate::pod;
use crate::volumes::field_ref::{Allocatable, find_container, metadata_field, resource_field};

/// The addresses, which the pod's status may not have yet.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<String>,
}

/// Returns the value of a field such as `metadata.name`, `metadata.labels['app']` or `status.podIP`.
pub fn field_value(pod: &Pod, path: &str, addresses: &Addresses) -> Result<String, String> {
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    let spec = pod::spec(pod);
    Ok(match path {
        "spec.nodeName" => spec.node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec.service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(&addresses.host_ips),
        "status.hostIPs" => addresses.host_ips.join(","),
        "status.podIP" => first(&addresses.pod_ips),
        "status.podIPs" => addresses.pod_ips.join(","),
        _ => return metadata_field(pod, path).map_err(|e| e.to_string()),
    })
}

/// Returns the value of `limits.cpu`, `requests.memory` and so on, of the named container or of the one with the
/// variable.
pub fn resource_value(
    pod: &Pod,
    own: &Container,
    selector: &ResourceFieldSelector,
    allocatable: &Allocatable,
) -> Result<String, String> {
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => find_container(pod, name).map_err(|e| e.to_string())?,
        None => own,
    };
    resource_field(selector, container, allocatable).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        let addresses = Addresses {
            pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()],
            host_ips: vec!["1.1.1.1".into()],
        };
        for (path, expected) in [
            ("metadata.name", "web"),
            ("metadata.labels['c']", ""),
            ("status.podIP", "10.0.0.1"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
            ("status.hostIP", "1.1.1.1"),
        ] {
            assert_eq!(field_value(&pod, path, &addresses).unwrap(), expected, "{path}");
        }
        assert!(field_value(&pod, "spec.containers", &addresses).is_err());
    }
}
