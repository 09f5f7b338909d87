//! NodeDeclaredFeatureValidator: a bound pod may only change in ways that its node's declared features support.

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Node, PodSpec};
use knarr_api::core::pod::node_features::{for_update, lacking};
use knarr_api::prepare::generation;
use knarr_apimachinery::status::StatusError;
use serde::Deserialize;
use serde_json::Value;

use super::{Attributes, Operation, Plugin, lookup};
use crate::Context;

pub struct NodeDeclaredFeatureValidator;

fn needed(old: &Value, new: &Value) -> Vec<&'static str> {
    let spec = |pod: &Value| PodSpec::deserialize(&pod["spec"]).unwrap_or_default();
    for_update(&spec(old), &spec(new))
}

#[async_trait]
impl Plugin for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Update
    }

    async fn validate(&self, attributes: &Attributes<'_>, context: &Context<'_>) -> Result<(), StatusError> {
        let pod = &attributes.object;
        let name = pod["spec"]["nodeName"].as_str().unwrap_or("");
        let is_spec = attributes.is("", "pods") || attributes.is_part("", "pods", "resize");
        let Some(old) = attributes.old.filter(|old| generation(old) != generation(pod)) else {
            return Ok(());
        };
        if !is_spec || name.is_empty() {
            return Ok(());
        }
        let needed = needed(old, pod);
        if needed.is_empty() {
            return Ok(());
        }
        let Some(node) = lookup::value(context, ("", "v1", "nodes"), "", name).await? else {
            return Err(attributes.forbidden(&format!("node {name:?} not found")));
        };
        let node = Node::deserialize(&node).unwrap_or_default();
        let lacking = lacking(&needed, &node).join(", ");
        if lacking.is_empty() {
            return Ok(());
        }
        let why = format!("pod update requires features {lacking} which are not available on node {name:?}");
        Err(attributes.forbidden(&why))
    }
}
