//! TaintNodesByCondition: taints a new node as not ready, so that no pods run on it before it is known to be ready.

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{Attributes, Operation, Plugin};
use crate::Context;

pub struct TaintNodesByCondition;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, operation: Operation) -> bool {
        operation == Operation::Create
    }

    async fn mutate(&self, attributes: &mut Attributes<'_>, _: &Context<'_>) -> Result<(), StatusError> {
        if attributes.is("", "nodes") {
            taint(&mut attributes.object);
        }
        Ok(())
    }
}

fn taint(node: &mut Value) {
    let taints = &mut node["spec"]["taints"];
    if !taints.is_array() {
        *taints = json!([]);
    }
    if let Value::Array(list) = taints
        && !list.iter().any(|t| t["key"] == NOT_READY && t["effect"] == "NoSchedule")
    {
        list.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once() {
        let mut node = json!({"spec": {}});
        taint(&mut node);
        taint(&mut node);
        assert_eq!(node["spec"]["taints"], json!([{"key": NOT_READY, "effect": "NoSchedule"}]));
    }
}
