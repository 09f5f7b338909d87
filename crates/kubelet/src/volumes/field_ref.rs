//! Fields of a pod, and resources of its containers, as text for downwardAPI volumes and environment variables.
//!
//! Source: `k8s.io/kubernetes/pkg/fieldpath`, `pkg/api/v1/resource`.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use knarr_apimachinery::quantity::Quantity;

/// The node's allocatable resources by name; they stand in for limits that a container does not have.
pub type Allocatable = BTreeMap<String, ApiQuantity>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    #[error("unsupported fieldPath: {0}")]
    UnsupportedPath(String),
    #[error("fieldPath {0:?} does not support subscript")]
    NoSubscript(String),
    #[error("unsupported container resource : {0}")]
    UnsupportedResource(String),
    #[error("container {0} not found")]
    ContainerNotFound(String),
}

type Result<T> = std::result::Result<T, FieldError>;

/// Returns a field of the pod's metadata or spec as text: `metadata.name`, `metadata.labels['app']` and the like.
pub fn metadata_field(pod: &Pod, path: &str) -> Result<String> {
    let meta = &pod.metadata;
    if let Some((field, key)) = subscript(path) {
        let map = match field {
            "metadata.annotations" => &meta.annotations,
            "metadata.labels" => &meta.labels,
            _ => return Err(FieldError::NoSubscript(path.to_owned())),
        };
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Ok(match path {
        "metadata.annotations" => format_map(meta.annotations.as_ref()),
        "metadata.labels" => format_map(meta.labels.as_ref()),
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        _ => return Err(FieldError::UnsupportedPath(path.to_owned())),
    })
}

/// Splits `metadata.labels['a']` into `metadata.labels` and `a`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (field, key) = path.strip_suffix("']")?.split_once("['")?;
    (!field.is_empty()).then_some((field, key))
}

/// Returns `key="value"` lines in the order of the keys.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let mut text = String::new();
    for (key, value) in map.into_iter().flatten() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(key);
        text.push('=');
        quote(value, &mut text);
    }
    text
}

/// Appends a string in double quotes with Go's escapes.
fn quote(value: &str, out: &mut String) {
    out.push('"');
    for c in value.chars() {
        let short = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{7}' => "\\a",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{b}' => "\\v",
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\x{:02x}", c as u32);
                continue;
            }
            c if (0x80..0xa1).contains(&(c as u32)) || c == '\u{ad}' || c == '\u{feff}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
                continue;
            }
            c => {
                out.push(c);
                continue;
            }
        };
        out.push_str(short);
    }
    out.push('"');
}

/// Returns the container or init container of this name.
pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Result<&'a Container> {
    let spec = pod.spec.as_ref();
    let containers = spec.map(|s| s.containers.as_slice()).unwrap_or_default();
    let init = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let found = containers.iter().chain(init).find(|c| c.name == name);
    found.ok_or_else(|| FieldError::ContainerNotFound(name.to_owned()))
}

/// Returns a resource of the container, in units of the selector's divisor, rounded up.
pub fn resource_field(
    selector: &ResourceFieldSelector,
    container: &Container,
    allocatable: &Allocatable,
) -> Result<String> {
    let unsupported = || FieldError::UnsupportedResource(selector.resource.clone());
    let (list, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let resources = container.resources.as_ref();
    let amount = match list {
        "limits" => {
            let own = resources.and_then(|r| r.limits.as_ref()).and_then(|l| l.get(name));
            let own = own.filter(|q| parse(q).is_none_or(|q| !q.is_zero()));
            own.or_else(|| (!name.starts_with("hugepages-")).then(|| allocatable.get(name)).flatten())
        }
        "requests" => resources.and_then(|r| r.requests.as_ref()).and_then(|l| l.get(name)),
        _ => return Err(unsupported()),
    };
    let amount = amount.and_then(parse).unwrap_or_default();
    let divisor = selector.divisor.as_ref().and_then(parse).filter(|d| d.signum() > 0);
    let scale = |q: &Quantity| if name == "cpu" { q.milli_value() } else { q.value() };
    let one = if name == "cpu" { 1000 } else { 1 };
    let (amount, divisor) = (scale(&amount), divisor.as_ref().map_or(one, scale).max(1));
    Ok((amount / divisor + i64::from(amount % divisor > 0)).to_string())
}

fn parse(quantity: &ApiQuantity) -> Option<Quantity> {
    Quantity::try_from(quantity).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ResourceRequirements;

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("shop".into());
        pod.metadata.labels = Some([("b".into(), "2\n\"x\"".into()), ("a".into(), "1".into())].into());
        pod.metadata.annotations = Some([("k8s.io/x".into(), "y".into())].into());
        pod
    }

    #[test]
    fn metadata() {
        let table = [
            ("metadata.name", Ok("web")),
            ("metadata.namespace", Ok("shop")),
            ("metadata.uid", Ok("")),
            ("metadata.labels", Ok("a=\"1\"\nb=\"2\\n\\\"x\\\"\"")),
            ("metadata.labels['a']", Ok("1")),
            ("metadata.labels['no']", Ok("")),
            ("metadata.annotations['k8s.io/x']", Ok("y")),
            ("metadata.name['x']", Err("fieldPath \"metadata.name['x']\" does not support subscript")),
            ("spec.nodeName", Err("unsupported fieldPath: spec.nodeName")),
        ];
        for (path, want) in table {
            let got = metadata_field(&pod(), path).map_err(|e| e.to_string());
            assert_eq!(got, want.map(str::to_owned).map_err(str::to_owned), "{path}");
        }
    }

    #[test]
    fn resources() {
        let list = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), ApiQuantity((*v).to_owned()))).collect())
        };
        let container = Container {
            resources: Some(ResourceRequirements {
                limits: list(&[("cpu", "1500m")]),
                requests: list(&[("cpu", "250m"), ("memory", "100Mi"), ("hugepages-2Mi", "4Mi")]),
                ..ResourceRequirements::default()
            }),
            ..Container::default()
        };
        let allocatable: Allocatable =
            list(&[("cpu", "2"), ("memory", "1Gi"), ("ephemeral-storage", "10Gi")]).unwrap();
        let table = [
            ("limits.cpu", "", "2"),
            ("limits.cpu", "1m", "1500"),
            ("requests.cpu", "1m", "250"),
            ("requests.cpu", "0", "1"),
            ("requests.memory", "1Mi", "100"),
            ("requests.memory", "1Gi", "1"),
            ("limits.memory", "", "1073741824"),
            ("limits.ephemeral-storage", "1Gi", "10"),
            ("requests.ephemeral-storage", "", "0"),
            ("requests.hugepages-2Mi", "1Mi", "4"),
        ];
        for (resource, divisor, want) in table {
            let selector = ResourceFieldSelector {
                resource: resource.into(),
                divisor: (!divisor.is_empty()).then(|| ApiQuantity(divisor.into())),
                ..ResourceFieldSelector::default()
            };
            assert_eq!(
                resource_field(&selector, &container, &allocatable).as_deref(),
                Ok(want),
                "{resource}/{divisor}"
            );
        }
        let selector =
            ResourceFieldSelector { resource: "limits.gpu".into(), ..ResourceFieldSelector::default() };
        let error = resource_field(&selector, &container, &allocatable).unwrap_err();
        assert_eq!(error.to_string(), "unsupported container resource : limits.gpu");
    }
}
