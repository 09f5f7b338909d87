//! PodResizeValidator: a running pod may grow only within the capacity of its node.

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{StatusCause, StatusDetails};
use knarr_api::prepare::generation;
use knarr_api::quota::{add, list, spec_requests};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct PodResizeValidator;

#[async_trait]
impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let pod = &attributes.object;
        let name = pod["spec"]["nodeName"].as_str().unwrap_or("");
        let unchanged = attributes.old.is_none_or(|old| generation(old) == generation(pod));
        if !attributes.is_part("", "pods", "resize") || name.is_empty() || unchanged {
            return Ok(());
        }
        let Some(node) = lookup::value(context, ("", "v1", "nodes"), "", name).await? else {
            return Err(attributes.forbidden(&format!("node {name:?} not found")));
        };
        let Some((why, reason)) = refusal(pod, &node) else { return Ok(()) };
        let mut error = attributes.forbidden(&why);
        let details = error.0.details.get_or_insert_with(StatusDetails::default);
        let cause = StatusCause { reason: Some(reason.to_owned()), ..StatusCause::default() };
        details.causes.get_or_insert_default().push(cause);
        Err(error)
    }
}

fn refusal(pod: &Value, node: &Value) -> Option<(String, &'static str)> {
    let name = node["metadata"]["name"].as_str().unwrap_or("");
    if let Some(os) = node["metadata"]["labels"]["kubernetes.io/os"].as_str().filter(|os| *os != "linux") {
        let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
        return Some((why, "UnsupportedPlatform"));
    }
    let mut requests = spec_requests(pod);
    add(&mut requests, &list(&pod["spec"]["overhead"]));
    let allocatable = list(&node["status"]["allocatable"]);
    let amount = |all: &knarr_api::quota::Amounts, name: &str| all.get(name).cloned().unwrap_or_default();
    let mut parts = Vec::new();
    let (wanted, have) = (amount(&requests, "cpu"), amount(&allocatable, "cpu"));
    if wanted > have {
        parts.push(format!("cpu, requested: {}, allocatable: {}", wanted.milli_value(), have.milli_value()));
    }
    let (wanted, have) = (amount(&requests, "memory"), amount(&allocatable, "memory"));
    if wanted > have {
        parts.push(format!("memory, requested: {}, allocatable: {}", wanted.value(), have.value()));
    }
    let all = parts.join("; ");
    (!parts.is_empty())
        .then(|| (format!("node didn't have enough allocatable resources: {all}"), "NodeCapacity"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_node_can_take() {
        let pod = |cpu: &str, memory: &str| json!({"spec": {"containers": [{"resources": {"requests": {"cpu": cpu, "memory": memory}}}]}});
        let node = |os: &str| {
            json!({"metadata": {"name": "n", "labels": {"kubernetes.io/os": os}},
                "status": {"allocatable": {"cpu": "2", "memory": "1Ki"}}})
        };
        for (pod, node, expected) in [
            (pod("2", "1Ki"), node("linux"), None),
            (
                pod("3", "2Ki"),
                node("linux"),
                Some(
                    "node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000; memory, requested: 2048, allocatable: 1024",
                ),
            ),
            (
                pod("1", "1"),
                node("windows"),
                Some("pod resize is only supported on linux nodes, node \"n\" is \"windows\""),
            ),
        ] {
            assert_eq!(refusal(&pod, &node).map(|r| r.0).as_deref(), expected);
        }
    }
}
