//! What a pod may learn of itself: fields (`fieldRef`) and resources (`resourceFieldRef`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use knarr_api::kind::Kind;
use knarr_apimachinery::quantity::Quantity;

use crate::pod;
use crate::resources::{Amounts, amount};

/// Addresses, which the pod object itself may not have yet.
#[derive(Debug, Clone, Default)]
pub struct Addresses {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<String>,
}

/// The value of a field such as `metadata.name`, `metadata.labels['app']`, `status.podIP`.
pub fn field_value(pod: &Pod, path: &str, addresses: &Addresses) -> Result<String, String> {
    let first = |list: &[String]| list.first().cloned().unwrap_or_default();
    let spec = pod::spec(pod);
    Ok(match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => pod.uid().to_owned(),
        "metadata.labels" => format_map(pod.metadata.labels.as_ref()),
        "metadata.annotations" => format_map(pod.metadata.annotations.as_ref()),
        "spec.nodeName" => spec.node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => spec.service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(&addresses.host_ips),
        "status.hostIPs" => addresses.host_ips.join(","),
        "status.podIP" => first(&addresses.pod_ips),
        "status.podIPs" => addresses.pod_ips.join(","),
        _ => {
            let subscript = path.strip_suffix("']").and_then(|p| p.split_once("['"));
            let map = match subscript {
                Some(("metadata.labels", key)) => pod.metadata.labels.as_ref().map(|m| (m, key)),
                Some(("metadata.annotations", key)) => pod.metadata.annotations.as_ref().map(|m| (m, key)),
                _ => return Err(format!("unsupported fieldPath: {path}")),
            };
            map.and_then(|(map, key)| map.get(key)).cloned().unwrap_or_default()
        }
    })
}

/// `key="value"` lines in the order of the keys.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quote(value))).collect();
    lines.join("\n")
}

/// As Go's `%q` writes a string.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The value of `limits.cpu`, `requests.memory` …, divided by the divisor and rounded up. A container without a
/// limit sees the node's allocatable amount. `own` is the container that asks, where it is one.
pub fn resource_value(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    allocatable: &Amounts,
) -> Result<String, String> {
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => match pod::find_container(pod, name) {
            Some((_, container)) => container,
            None => return Err(format!("container {name} not found")),
        },
        None => Cow::Borrowed(own.ok_or("container name is required")?),
    };
    let unsupported = || format!("unsupported container resource : {}", selector.resource);
    let (list, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if !known {
        return Err(unsupported());
    }
    let resources = container.resources.as_ref();
    let value = match list {
        "limits" => amount(resources.and_then(|r| r.limits.as_ref()), name)
            .filter(|n| *n != 0)
            .or_else(|| allocatable.get(name).copied().filter(|_| !name.starts_with("hugepages-"))),
        "requests" => amount(resources.and_then(|r| r.requests.as_ref()), name),
        _ => return Err(unsupported()),
    };
    let divisor = selector.divisor.as_ref().and_then(|q| Quantity::try_from(q).ok()).filter(|q| !q.is_zero());
    let divisor = match divisor {
        None if name == "cpu" => 1000,
        None => 1,
        Some(q) if name == "cpu" => q.milli_value(),
        Some(q) => q.value(),
    };
    let (value, divisor) = (value.unwrap_or(0).max(0), divisor.max(1));
    Ok((value / divisor + i64::from(value % divisor != 0)).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

    #[test]
    fn fields() {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.labels = Some(BTreeMap::from([
            ("b".to_owned(), "2".to_owned()),
            ("a".to_owned(), "say \"x\"\n".to_owned()),
        ]));
        let addresses = Addresses {
            pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()],
            host_ips: vec!["1.1.1.1".into()],
        };
        for (path, expected) in [
            ("metadata.name", "web"),
            ("metadata.labels", "a=\"say \\\"x\\\"\\n\"\nb=\"2\""),
            ("metadata.labels['b']", "2"),
            ("metadata.labels['c']", ""),
            ("status.podIP", "10.0.0.1"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
            ("status.hostIP", "1.1.1.1"),
        ] {
            assert_eq!(field_value(&pod, path, &addresses).unwrap(), expected, "{path}");
        }
        assert!(field_value(&pod, "spec.containers", &addresses).is_err());
    }

    #[test]
    fn resources() {
        let quantity = |text: &str| ApiQuantity(text.to_owned());
        let container = Container {
            name: "web".into(),
            resources: Some(ResourceRequirements {
                limits: Some(BTreeMap::from([("memory".to_owned(), quantity("100Mi"))])),
                requests: Some(BTreeMap::from([("cpu".to_owned(), quantity("1500m"))])),
                ..Default::default()
            }),
            ..Container::default()
        };
        let spec = PodSpec { containers: vec![container.clone()], ..PodSpec::default() };
        let pod = Pod { spec: Some(spec), ..Pod::default() };
        let node = Amounts::from([("cpu".to_owned(), 4000), ("memory".to_owned(), 1 << 30)]);
        for (resource, divisor, expected) in [
            ("requests.cpu", None, "2"),
            ("requests.cpu", Some("1m"), "1500"),
            ("limits.cpu", None, "4"),
            ("limits.memory", None, "104857600"),
            ("limits.memory", Some("1Mi"), "100"),
            ("limits.memory", Some("1Gi"), "1"),
            ("requests.memory", None, "0"),
        ] {
            let selector = ResourceFieldSelector {
                container_name: None,
                divisor: divisor.map(quantity),
                resource: resource.into(),
            };
            let value = resource_value(&pod, Some(&container), &selector, &node).unwrap();
            assert_eq!(value, expected, "{resource} {divisor:?}");
        }
    }
}
